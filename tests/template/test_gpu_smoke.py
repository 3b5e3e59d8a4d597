"""`make gpu-smoke` on the CPU: its dry run passes, and failures, crashes and time limits are reported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_smoke
import pytest
from gpu_smoke import bundle, report, results
from gpu_smoke.__main__ import show
from gpu_smoke.results import Result
from gpu_smoke.supervisor import Supervisor, worker_command
from matrix import ENGINE_MODEL, EVERY, PAIRS

SUPPORT = Path(gpu_smoke.__file__).parents[1]
CHOSEN = ["build", "item", f"{ENGINE_MODEL}, plain", "prefetch", "two ranks on", "MLP"]
"""One of each kind, 20 seconds together; `make test-all` runs all of them."""
RENDERED = [("pytorch", ENGINE_MODEL), ("pytorch", "vit")]
PASSED = 46 if EVERY else 7
"""The others need a GPU, or two."""


def smoke(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    environment = os.environ | {"PYTHONPATH": str(SUPPORT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gpu_smoke", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_dry_run_passes(tmp_path: Path) -> None:
    bundle.render(tmp_path / "projects", PAIRS if EVERY else RENDERED)
    output = tmp_path / "out.jsonl"
    chosen = [] if EVERY else ["--only", *CHOSEN]
    done = smoke("--dry-run", f"--bundle={tmp_path}", f"--output={output}", "--limit=1800", *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    about, found = results.read(output)
    assert about["device"] == "CPU"
    assert {result.status for result in found} == {"ok", "skipped"}
    assert {result.message for result in found if result.status == "skipped"} <= {"needs CUDA", "needs two GPUs"}
    assert sum(result.status == "ok" for result in found) == PASSED


def planted(output: Path, limit: float, *only: str) -> Supervisor:
    """Return what runs the planted checks, which import no torch."""
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    return Supervisor(worker_command(output.parent, True, "planted_checks"), environment, output, limit, only)


def supervise(output: Path, limit: float) -> dict[str, Result]:
    """Run the planted checks, and return the results, which are on disk too."""
    found = list(planted(output, limit).run())
    assert results.read(output)[1] == found
    return {result.name: result for result in found}


def test_failures_and_crashes_are_reported_and_cost_one_check(tmp_path: Path) -> None:
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
    assert "planted failure" in (tmp_path / "out.log").read_text(), "the traceback is in the log"


def test_time_limit_costs_the_remaining_checks(tmp_path: Path) -> None:
    found = supervise(tmp_path / "out.jsonl", 1.5)
    before, hanging, *others = found.values()
    assert before.status == "ok"
    assert hanging.status == "failed"
    assert hanging.message.startswith("took longer than")
    assert {result.status for result in others} == {"not run"}


@pytest.mark.parametrize(
    ("status", "expected"), [("ok", True), ("skipped", True), ("failed", False), ("not run", False)]
)
def test_only_missing_hardware_excuses_a_check(status: results.Status, expected: bool) -> None:
    good = Result("a", "b", "ok", 0.0)
    assert results.passed([good, Result("c", "b", status, 0.0)]) == expected


def test_program_fails_without_a_gpu_and_without_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "projects").mkdir()
    done = smoke(f"--bundle={tmp_path}", f"--output={tmp_path}/out.jsonl")
    assert done.returncode == 1
    assert "finds no CUDA device: use --dry-run" in done.stderr
    assert not show(planted(tmp_path / "none.jsonl", 100, "nothing"))
    assert "no check has this name" in capsys.readouterr().out
    assert show(planted(tmp_path / "one.jsonl", 100, "first"))


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


def test_bundle_has_what_the_projects_import_but_not_torch() -> None:
    names = {requirement.partition("==")[0] for requirement in bundle.resolve("3.12")}
    assert {"jsonargparse", "docstring-parser", "pyyaml", "lightning", "torchmetrics", "accelerate", "torchao"} <= names
    assert not names & {"torch", "numpy", "scipy", "scikit-learn"}
