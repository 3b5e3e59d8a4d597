"""`make gpu-smoke` on the CPU: its dry run passes, and failures, crashes and time limits are reported."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import gpu_smoke
import pytest
from gpu_smoke import bundle, report, results, supervisor
from gpu_smoke.__main__ import show
from gpu_smoke.results import Result
from gpu_smoke.supervisor import Supervisor, WorkerError, worker_command
from matrix import ENGINE_MODEL, EVERY, PAIRS

SUPPORT = Path(gpu_smoke.__file__).parents[1]
CHOSEN = ["build", "item", f"{ENGINE_MODEL}, plain", "prefetch", "MLP"]
"""Some of each kind, in seconds; `made_up.py` trains on two ranks, and `make test-all` runs all of them."""
RENDERED = [("pytorch", ENGINE_MODEL)]
PASSED = 55 if EVERY else 6
"""The others need a GPU, or two."""


def smoke(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program, in a folder."""
    environment = os.environ | {"PYTHONPATH": str(SUPPORT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gpu_smoke", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_dry_run_passes(tmp_path: Path) -> None:
    bundle.pack(tmp_path / "bundle", PAIRS if EVERY else RENDERED)
    output, here = tmp_path / "out.jsonl", tmp_path / "here"
    here.mkdir()
    chosen = [] if EVERY else ["--only", *CHOSEN]
    options = ["--dry-run", f"--bundle={tmp_path}/bundle", f"--output={output}", "--limit=1800", *chosen]
    done = smoke(*options, folder=here)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(here.iterdir()), "files were left where the program was started"
    about, found = results.read(output)
    assert about["device"] == "CPU"
    assert {"date", "python", "torch", "numpy", "triton", "lightning", "accelerate", "torchao"} <= about.keys()
    assert {result.status for result in found} == {"ok", "skipped"}
    assert {result.message for result in found if result.status == "skipped"} <= {"needs CUDA", "needs two GPUs"}
    assert sum(result.status == "ok" for result in found) == PASSED


def test_checks_fail_as_they_should() -> None:
    """In a process of its own, as it imports torch's compiler."""
    environment = os.environ | {"PYTHONPATH": str(SUPPORT), "OMP_NUM_THREADS": "1"}
    some = [] if EVERY else ["-k", "not ranks_report and not measured_runs"]  # which train
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *some]
    command.append(str(SUPPORT / "gpu_smoke" / "made_up.py"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def planted(output: Path, limit: float, *only: str, **variables: str) -> Supervisor:
    """Return what runs the planted checks, which import no torch."""
    environment = os.environ | {"PYTHONPATH": str(SUPPORT), **variables}
    command = worker_command(output.parent, output.parent / "runs", True, "planted_checks")
    return Supervisor(command, environment, output, limit, only)


def supervise(output: Path, limit: float) -> dict[str, Result]:
    """Run the planted checks, and return the results, which are on disk too."""
    found = list(planted(output, limit).run())
    assert results.read(output)[1] == found
    return {result.name: result for result in found}


def test_failures_and_crashes_are_reported_and_cost_one_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = supervise(tmp_path / "out.jsonl", 100)
    messages = {name: result.message for name, result in found.items() if result.status != "ok"}
    assert messages == {
        "fails": "AssertionError: planted failure",
        "exits": "SystemExit: planted exit",
        "hangs": "took longer than 2 s",
        "crashes": "the process died of SIGABRT",
        "lacks_hardware": "needs two GPUs",
    }
    assert [name for name, result in found.items() if result.status == "skipped"] == ["lacks_hardware"]
    assert all(result.figures == {"answer": 42} for name, result in found.items() if name not in messages)
    assert found["fails"].figures == {"before": 1}, "what was known when it failed"
    assert not (tmp_path / "left").exists(), "what a check writes into the current folder goes away with its runs"
    assert "planted failure" in (tmp_path / "out.log").read_text(), "the traceback is in the log"


def test_time_limit_costs_the_remaining_checks(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    before, *others = planted(output, 3, PLANTED_LIMIT="60").run()
    assert before.status == "ok"
    assert {(result.status, result.message) for result in others} == {("not run", "the time limit was reached")}
    assert others[0].seconds > 1, "the check that was cut off"
    assert results.read(output)[1] == [before, *others]


def test_second_call_adds_what_is_left_then_what_has_failed(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    assert [result.name for result in planted(output, 100, "first", "fails").run()] == ["first", "fails", "after fails"]
    again = planted(output, 100, "first", "fails", "lacks")
    assert [result.name for result in again.run()] == ["lacks_hardware", "after lacks_hardware", "fails"]
    results.append_result(output, Result("fails", "planted", "not run", 0.0))
    (kept,) = (result for result in results.read(output)[1] if result.name == "fails")
    assert kept.status == "failed", "what was not run again has its result of before"
    output.write_text(json.dumps({"about": {"device": "NVIDIA H100", "gpus": 1}}) + "\n")
    with pytest.raises(WorkerError, match="has results of NVIDIA H100"):
        list(planted(output, 100).run())


def test_only_the_checks_of_a_group_are_run(tmp_path: Path) -> None:
    for group, expected in {"planted": ["first"], "other": []}.items():
        chosen = planted(tmp_path / f"{group}.jsonl", 100, "first")
        chosen.groups = [group]
        assert [result.name for result in chosen.run()] == expected


def gone(log: Path) -> bool:
    """Whether the processes that a log names have ended, or do in ten seconds."""
    ids = next(line.split()[1:] for line in log.read_text().splitlines() if line.startswith("processes"))
    for _ in range(100):
        listed = subprocess.run(["ps", "-o", "stat=", "-p", ",".join(ids)], capture_output=True, text=True, check=False)
        if all(status.startswith("Z") for status in listed.stdout.split()):
            return True
        time.sleep(0.1)
    return False


def wait_for(log: Path, text: str) -> None:
    """Wait until a text is in a log."""
    for _ in range(300):
        if log.exists() and text in log.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"no {text!r} in {log}")


def test_worker_that_does_not_start_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "START", 1.5)
    with pytest.raises(WorkerError, match="took longer than 2 s"):
        list(planted(tmp_path / "out.jsonl", 100, PLANTED_START="1").run())
    assert gone(tmp_path / "out.log")


def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    command = worker_command(tmp_path, tmp_path / "runs", True, "planted_checks")
    program = f"""import os, pathlib, gpu_smoke.supervisor
output = pathlib.Path({str(tmp_path)!r}, "o.jsonl")
list(gpu_smoke.supervisor.Supervisor({command}, dict(os.environ), output, 100, ["hangs"]).run())"""
    environment = os.environ | {"PYTHONPATH": str(SUPPORT), "PLANTED_LIMIT": "60"}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as process:
        wait_for(tmp_path / "o.log", "processes")
        process.send_signal(signal.SIGKILL)
    assert gone(tmp_path / "o.log")


@pytest.mark.parametrize(
    ("status", "expected"), [("ok", True), ("skipped", True), ("failed", False), ("not run", False)]
)
def test_only_missing_hardware_excuses_a_check(status: results.Status, expected: bool) -> None:
    good = Result("a", "b", "ok", 0.0)
    assert results.passed([good, Result("c", "b", status, 0.0)]) == expected


def pack_nothing(folder: Path) -> None:
    """Create an archive without projects."""
    (folder / "projects").mkdir()
    with tarfile.open(folder / bundle.PROJECTS, "w:gz") as archive:
        archive.add(folder / "projects", "projects")


def test_program_fails_without_a_gpu_and_without_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack_nothing(tmp_path)
    done = smoke(f"--bundle={tmp_path}", f"--output={tmp_path}/out.jsonl")
    assert done.returncode == 1
    assert "finds no CUDA device: use --dry-run" in done.stderr
    assert not show(planted(tmp_path / "none.jsonl", 100, "nothing"))
    assert "no check has this name, or is left" in capsys.readouterr().out
    assert show(planted(tmp_path / "one.jsonl", 100, "first"))
    assert show(planted(tmp_path / "one.jsonl", 100, "first"), appended=True), "nothing is left, and all have passed"


def test_page_is_that_of_the_kept_results() -> None:
    assert report.PAGE.read_text() == report.page(report.KEPT), "make gpu-smoke ARGS=--report"


def test_page_names_machine_figures_and_failures(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    assert report.page(output).endswith("No GPU run is available yet.\n")
    results.append(output, {"about": {"device": "NVIDIA H100", "torch": "2.11.0", "gpus": 1}})
    results.append_result(
        output, Result("ResNet-50", "speed", "ok", 9.0, {"samples_per_second": 2512.3, "host_us": 910.0})
    )
    results.append_result(output, Result("two GPUs", "ranks", "skipped", 0.0, message="needs two GPUs"))
    results.append_result(output, Result("fp8", "precision", "failed", 1.0, message="planted"))
    page = report.page(output)
    assert "device NVIDIA H100, torch 2.11.0, gpus 1. 1 of 3 checks passed." in page
    assert "| check | status | s | samples per second | host (µs) |" in page
    assert "| ResNet-50 | ok | 9.0 | 2,512 | 910 |" in page
    assert "| two GPUs | skipped: needs two GPUs | 0.0 |" in page
    assert "- fp8: planted" in page


def test_results_of_a_dry_run_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text(json.dumps({"about": {"device": "CPU", "gpus": 0}}) + "\n")
    done = smoke("--report", f"--output={tmp_path}/out.jsonl")
    assert done.returncode == 1
    assert "has no results of a GPU" in done.stderr


def test_bundle_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wheel").write_bytes(bytes(1000))
    assert bundle.check_size(tmp_path) == 1000
    monkeypatch.setattr(bundle, "LIMIT", 999)
    with pytest.raises(SystemExit, match="more than"):
        bundle.check_size(tmp_path)


def test_bundle_is_unpacked_without_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack_nothing(tmp_path)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "module.py").touch()
    for name in ("Un_known-1.0-py3-none-any.whl", "pytest-1.0-py3-none-any.whl"):
        shutil.make_archive(str(tmp_path / "wheels" / name), "zip", tmp_path / "source")
        (tmp_path / "wheels" / f"{name}.zip").rename(tmp_path / "wheels" / name)
    (tmp_path / "left" / "removed-1.0.dist-info").mkdir(parents=True)  # as pip sometimes leaves them
    monkeypatch.syspath_prepend(str(tmp_path / "left"))
    bundle.unpack(tmp_path, tmp_path / "first")
    assert (tmp_path / "first" / "packages" / "module.py").exists()
    (tmp_path / "wheels" / "Un_known-1.0-py3-none-any.whl").unlink()
    bundle.unpack(tmp_path, tmp_path / "second")
    assert [path.name for path in (tmp_path / "second").iterdir()] == ["projects"]


def test_bundle_has_projects_of_this_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other" / "fastproj").mkdir(parents=True)
    (tmp_path / "other" / "fastproj" / "__main__.py").write_text("raise SystemExit('another checkout')\n")
    (tmp_path / "other" / "fastproj" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other"))
    bundle.pack(tmp_path / "bundle", [("pytorch", ENGINE_MODEL)])
    bundle.unpack(tmp_path / "bundle", tmp_path)
    assert (tmp_path / "projects" / f"pytorch-{ENGINE_MODEL}" / "configs" / "default.yaml").exists()


def test_bundle_has_what_the_projects_import_but_not_torch() -> None:
    names = {requirement.partition("==")[0] for requirement in bundle.resolve("3.12")}
    assert {"jsonargparse", "docstring-parser", "pyyaml", "lightning", "torchmetrics", "accelerate", "torchao"} <= names
    assert not names & {"torch", "numpy", "scipy", "scikit-learn"}
