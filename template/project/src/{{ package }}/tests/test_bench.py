"""`bench`: what it compares, what it says of it, and what it refuses."""

import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from .. import data, model, techniques
from ..config import as_dict
from ..contracts import tensors
from ..tools import bench, bench_measure, bench_pages, bench_report, bench_run, trial
from ..tools.bench_techniques import TECHNIQUES, Facts
from ..tools.trial import Trial
from .conftest import PARENT, SMALL, small

FIXED = [*SMALL, "--loader.workers=0"]
OWN = ["--config=not_read.yaml", *FIXED]
REFUSED = "loader.workers is 1: the ranks here share a core, and the step waits for it; use auto, or 0"
CPU = "--run.device=cpu"
STEP = 0.010
"""Seconds of a step with all techniques."""
Run = Callable[..., Trial]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Runs that are not started: a step without `fused` takes 5 ms longer, and one without `set_to_none` varies."""
    commands: list[list[str]] = []
    config = as_dict(small(*FIXED, "--log.every=5"))

    def run(options: list[str], *, steps: int, warmup: int, every: int, **others: Any) -> Trial:
        commands.append([*options, os.environ[bench_run.VARIABLE]])
        if "--loader.workers=1" in options:
            return Trial("failed", REFUSED, 1.0, None)
        fused = ["--speed.compile=off" in it and "--optim.fused=false" not in it for it in commands]
        if fused[-1] and sum(fused) == 2:
            return Trial("failed", "a node is gone", 1.0, None)
        seconds = STEP + 0.005 * ("--optim.fused=false" in options)
        if "--optim.set_to_none=false" in options and "--speed.compile=off" not in options:
            seconds += 0.003 * (len(commands) % 2)
        rows = [{"samples_per_second": 16 / seconds, "data_wait": 0.25} for _ in range(steps // every)]
        return Trial("ok", "", 1.0, 0.5, config, rows)

    monkeypatch.setattr(trial, "run", run)
    monkeypatch.setattr(trial, "busy", lambda: "the machine is busy")
    return commands


def test_each_technique_gets_its_effect(
    started: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="^0$"):
        bench.main([*OWN, f"--output={tmp_path}/a", "--only=fused,set_to_none,step_graph,bf16_gradients", "--json"])
    said = capsys.readouterr()
    result = json.loads(said.out.splitlines()[-1])  # a model of yours may print
    assert result == json.loads((tmp_path / "a/bench.json").read_text())
    assert (tmp_path / "a/bench.png").read_bytes().startswith(b"\x89PNG")
    assert {file.name for file in (tmp_path / "a").iterdir()} == {"bench.json", "bench.png"}
    without, config = (result["runs"][name]["step_ms"][0] for name in ("config - fused", "config"))
    assert without - config == pytest.approx(5)
    assert result["effects"]["config - fused"]["kind"] == "faster"
    assert result["effects"]["config - fused"]["ratio"] == pytest.approx(1.5)
    assert result["effects"]["config - set_to_none"]["kind"] == "none"
    assert result["skipped"]["bf16_gradients"] == "it needs several ranks, such as --run.processes 2"
    assert torch.cuda.is_available() or result["skipped"]["step_graph"] == "it needs a CUDA device"
    assert "warning: the machine is busy" in said.err
    naive = next(command for command in started if "--speed.compile=off" in command)
    assert {"--optim.fused=false", "--optim.set_to_none=false", "--speed.compile=off"} <= {*naive}
    first, second = started[1:7], started[7:13]
    assert first == second[::-1]


def test_table_is_narrow_and_says_what_is_refused(
    started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_report, "draw", lambda result: Figure())
    with pytest.raises(SystemExit, match="^0$"):
        bench.main([*OWN, f"--output={tmp_path}/a", "--rounds=2"])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines()[:-1])) <= 80  # but for the places of the files
    lines = printed.replace("\n    ", " ").splitlines()  # long ones are wrapped
    assert next(line for line in lines if line.startswith("- fused")).endswith(" 1.50 (1.50-1.50)")
    assert "skipped pin_memory: it needs a GPU, and not one of Apple's" in lines or torch.cuda.is_available()
    assert "all that your config has, times as fast as none of them: 1.50 (1.50-1.50)" in lines
    assert f"+ workers           failed: {REFUSED}" in lines
    assert next(line for line in lines if line.startswith("+ fused")).endswith(" one round only")
    assert "naive + fused: round 2: failed: a node is gone" in lines
    names = {technique.name for technique in TECHNIQUES}
    assert {line.split()[1].rstrip(":") for line in lines if line.startswith(("+ ", "skipped "))} == names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only=fused,nothing"], "error: --only fused,nothing: there is no such technique; choose from precision, "),
        (["--only="], "there is no such technique"),
        (["--budget=9"], r"error: --budget 9 is too small: 6 runs of about 3 s, 2 times; give \d+ or more"),
        (["--rounds=1"], "argument --rounds: 1 is not a number of 2 or more"),
        (["--budget=nan"], "argument --budget: nan is not a number of 1 or more"),
        (["--output=FOLDER/file/a"], r"error: cannot write .*/file/a \(Not a directory\): give another --output"),
        (["--pages=FOLDER/none"], "error: cannot read .*/none/comparisons.json"),
    ],
)
def test_bad_input_is_refused(
    started: list[list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    (tmp_path / "file").touch()
    fixed = ["--only=fused,log_every", "--config=not_read.yaml", f"--output={tmp_path}/out"]
    with pytest.raises(SystemExit) as ended:
        bench.main([*fixed, *(it.replace("FOLDER", str(tmp_path)) for it in options)])
    assert ended.value.code
    assert re.search(message, f"{ended.value.code}{capsys.readouterr().err}")


def test_an_interrupt_during_imports_is_quiet(tmp_path: Path) -> None:
    """A module in place of torch, which is imported first, interrupts the program."""
    (tmp_path / "torch.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    found = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-m", f"{PARENT}.tools.bench"]
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background
    try:
        done = subprocess.run(command, env=found, cwd=tmp_path, capture_output=True, text=True, check=False)
    finally:
        signal.signal(signal.SIGINT, kept)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_project_without_a_config_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^error: there is no configs/default.yaml here: "):
        bench.main([])


@pytest.mark.parametrize(("count", "config", "alone"), [(3, "auto", "auto"), (0, "0", "1")])
def test_each_rank_counts_its_workers(monkeypatch: pytest.MonkeyPatch, count: int, config: str, alone: str) -> None:
    monkeypatch.setattr(techniques, "worker_count", lambda *_: count)
    facts = Facts(as_dict(small(*SMALL, "--loader.workers=auto")))
    workers = next(it for it in TECHNIQUES if it.name == "workers")
    assert facts.options["loader.workers"] == config
    assert facts.switched_on(workers) == {"loader.workers": alone}


def test_other_accelerators_are_named_and_not_taken_for_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def use(kind: str) -> None:
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device(kind))

    monkeypatch.setattr(torch.xpu, "get_device_name", lambda device: "Intel Max 1550")
    for kind, name, missing in (("xpu", "Intel Max 1550", {"cuda"}), ("mps", ".* cores, mps", {"cuda", "streams"})):
        use(kind)
        facts = Facts(as_dict(small(*SMALL)) | {"run": {"device": "auto"}})
        assert {need for need in ("cuda", "streams") if not facts.has[need]} == missing
        assert re.fullmatch(name, bench_report.where(facts)["machine"])
    (tmp_path / "comparisons.json").write_text(json.dumps([{"what": "a", "without": [], "with": [], "rounds": 1}]))
    monkeypatch.setattr(bench_pages, "_value", lambda *_: 1.0)
    for kind, base, name in (("xpu", [], "Intel Max 1550"), ("mps", [], ".* cores, mps"), ("xpu", [CPU], ".* cores")):
        use(kind)
        bench_pages.fill(tmp_path, base)
        assert re.fullmatch(name, json.loads((tmp_path / "measured.json").read_text())[0]["machine"])


def test_memory_is_in_units_of_a_million_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU as its rows have it, on the host as the system counts it."""
    monkeypatch.setattr(trial, "_family", lambda pid: [os.getpid()])
    found = Trial("ok", "", 1.0, 3.0, {}, [{"samples_per_second": 1.0}])
    monkeypatch.setattr(bench_pages, "run", lambda *_, **__: found)
    assert bench_pages._value({"value": "memory_mb"}, bench_measure.Case("a"), []) == 3000
    if sys.platform == "linux":
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of 1024 bytes
        assert trial._memory([os.getpid()], "VmHWM") == pytest.approx(kilobytes * 1024 / 1e9, rel=0.02)


def test_speed_is_that_of_chunks() -> None:
    rows = [{"samples_per_second": value} for value in [100, 50] * 5]  # logged in each step
    assert bench_measure.speed(rows) == pytest.approx(200 / 3)
    assert bench_measure.speed([*rows[:8], *[{"samples_per_second": 1}] * 2]) == pytest.approx(200 / 3)
    assert math.isclose(bench_measure.speed(rows[:1]), 100)


def test_single_samples_make_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = small(*SMALL)
    if Facts(as_dict(cfg)).lacking(next(it for it in TECHNIQUES if it.name == "whole_batches")):
        pytest.skip("the samples do not come as whole batches of one shape")
    monkeypatch.setattr(data, "load", data.load)
    whole = techniques.load(cfg.data).train
    bench_run.per_sample()
    assert not hasattr(data.load(cfg.data).train, "__getitems__")
    for left, right in zip(
        tensors(whole.__getitems__([3, 1])), tensors(techniques.load(cfg.data).train.__getitems__([3, 1])), strict=True
    ):
        torch.testing.assert_close(left, right)


def test_convolutions_get_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = small(*SMALL)
    spec = data.load(cfg.data).spec
    monkeypatch.setattr(model, "build", model.build)
    before = len(bench_run.unbiased(model.build(cfg.model, spec)))
    bench_run.bias()
    built = model.build(cfg.model, spec)
    assert bench_run.unbiased(built) == []
    added = [part for part in built.modules() if bench_run.is_convolution(part)]
    assert len(added) >= before
    assert all(part.bias.shape == (part.out_channels,) for part in added)
