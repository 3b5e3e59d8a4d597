"""`profile`: what it finds in a run whose data is slow, its diagnoses, and what it refuses."""

import errno
import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ..config import Config, DebugConfig, as_dict
from ..distributed import World
from ..errors import UserError
from ..techniques.profiler import Profiler
from ..tools import profile, trial
from ..tools.diagnosis import of_operators, of_phases
from ..tools.memory_timeline import draw
from .conftest import PARENT, SMALL

CONFIG = as_dict(Config())
CONFIG["loader"]["workers"] = 0


def test_slow_data_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(trial, "run", partial(trial.run, program=f"{PARENT}.tests.slow_batches"))
    monkeypatch.setattr(trial, "busy", str)
    monkeypatch.setattr(profile, "WARMUP", 5)
    monkeypatch.setattr(profile, "TORCH_STEPS", 1)
    signals = []
    monkeypatch.setattr(trial, "end_on_signals", lambda: signals.append("all"))
    options = [*SMALL, "--loader.workers=0", "--train.micro_batch=2", "--train.accumulate=2"]
    options += ["--steps=5", f"--run.dir={tmp_path}"]
    profile.main([*options, "--run.name=run"])
    output, progress = capfd.readouterr()
    assert signals, "SIGTERM would leave the folder of the run"
    assert all(len(line) <= 80 for line in output.splitlines() if not line.startswith("files in"))
    assert "profiling 5 steps" in progress
    found = json.loads((tmp_path / "run/profile/profile.json").read_text())
    assert found["diagnosis"]["bound"] == "input-bound"
    assert "--loader.workers" in found["diagnosis"]["advice"]
    assert f"input-bound: {found['diagnosis']['why']}; try " in " ".join(output.split())
    phases = {it["phase"]: it for it in found["phases"]}
    assert [*phases] == ["data_wait", "prepare", "forward", "backward", "optimizer", "other"]
    assert phases["data_wait"]["calls"] == 10
    assert phases["optimizer"]["calls"] == 5
    assert phases["data_wait"]["mean_ms"] > 55
    assert sum(it["share"] for it in found["phases"]) == pytest.approx(1, abs=0.05)
    assert any(it["name"].startswith("aten::") and it["us"] > 0 for it in found["operators"])
    assert {file.name for file in (tmp_path / "run/profile").iterdir()} == {"profile.json", "operators.json"}
    assert "files in" in output


def test_kernels_are_not_counted_with_the_operators_that_they_are_named_like(tmp_path: Path) -> None:
    """Triton's kernels have the name of the host's event, whose time on the device is theirs."""

    def event(name: str, kind: str) -> SimpleNamespace:
        span = SimpleNamespace(start=0.0, end=5.0, elapsed_us=lambda: 5.0)
        totals = {"count": 2, "self_device_time_total": 5.0, "self_cpu_time_total": 1.0, "flops": 0, "input_shapes": []}
        more = {"is_user_annotation": False, "time_range": span, "device_type": SimpleNamespace(name=kind)}
        return SimpleNamespace(key=name, name=name, **totals, **more)

    found = [event("triton_poi_0", "CPU"), event("triton_poi_0", "CUDA"), event("aten::mm", "CPU")]
    recorded: Any = SimpleNamespace(key_averages=lambda **_: found, events=lambda: found)
    hook = Profiler(DebugConfig(profile="simple"), World(0, 1, torch.device("cpu")), 100)
    hook.folder, hook.on_device = tmp_path, True
    hook._write_operators(recorded)
    operators = json.loads((tmp_path / "operators.json").read_text())["operators"]
    assert [(it["name"], it["calls"], it["us"]) for it in operators] == [("triton_poi_0", 2, 5.0), ("aten::mm", 2, 5.0)]


def test_full_disk_is_named_in_one_line_and_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def copy(source: str, target: str, **_: Any) -> None:
        Path(target).write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device", source, None, target)

    monkeypatch.setattr(shutil, "copyfile", copy)
    for name in ("a", "b"):
        (tmp_path / "new").mkdir(exist_ok=True)
        (tmp_path / "new" / name).touch()
    said = r"^cannot write .*profile \(.*No space left on device\): give another --run.dir$"
    with pytest.raises(UserError, match=said):
        profile._replace(tmp_path / "runs/a/profile", tmp_path / "new")
    assert not [*(tmp_path / "runs").iterdir()]


def test_profile_that_cannot_be_kept_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def rename(self: Path, _: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", self)

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(trial, "_has_row", lambda *_: True)
    said = r"^cannot write .*kept \(No space left on device\): set TMPDIR to a larger folder$"
    with pytest.raises(UserError, match=said):
        trial.run([], limit=60, program=f"{PARENT}.tests.slow_batches", keep=tmp_path / "kept")


def test_memory_of_a_trace_is_drawn(tmp_path: Path) -> None:
    sizes = [
        {"name": "[memory]", "ts": ts, "args": {"Device Type": 0, "Device Id": -1, "Total Allocated": 1e6}}
        for ts in (2, 1)
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [{"name": "aten::mm", "ts": 0}, *sizes]}))
    draw(tmp_path / "trace.json", tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


def test_diagnoses_of_phases_and_operators() -> None:
    waits = {"data_wait": 0.5, "forward": 0.4}
    assert str(of_phases(waits, CONFIG, 2, 16)) == (
        "input-bound: 50% of the time is spent waiting for data; try --loader.workers 7"
    )
    auto = {**CONFIG, "loader": {"workers": "auto"}, "data": {"cache": "memory"}}
    found = of_phases(waits, auto, 1, 4)
    assert found is not None
    assert found.advice.startswith("--loader.workers 3, unless the first lines of a run say that auto is as many;")
    assert found.advice.endswith("; then --data.cache device")
    busy = {"data_wait": 0.5, "forward": 0.4, "backward": 0.55}  # a GPU computes while the host loads
    assert of_phases(busy, CONFIG, 1, 16) is None
    found = of_phases({"communication": 0.3, "backward": 0.7}, CONFIG, 2, 2)
    assert found is not None
    assert (found.bound, found.advice) == ("communication-bound", "--dist.bf16_gradients true")
    late = of_phases({"backward": 1.0, "slowest_rank": 1.0, "slowest_rank_share": 0.6}, CONFIG, 2, 2)
    assert late is not None
    assert "rank 1 takes 60% longer" in late.why

    def bound(us: float, calls: int, name: str = "aten::mul", flops: int = 0, **on_device: float) -> str:
        operator = {"name": name, "calls": calls, "us": us, "flops": flops, "numbers": 1000}
        record: dict[str, Any] = {"us": 1000.0, "no_compile": "", "operators": [operator], **on_device}
        return of_operators(record, {}, CONFIG).bound

    assert bound(900, 100) == "launch-bound", "each takes 9 us"
    assert bound(900, 3) == "memory-bound"
    assert bound(900, 3, "aten::mm", flops=10_000_000) == "compute-bound"
    assert bound(900, 3, "aten::mm", flops=10_000) == "memory-bound", "a product with a vector"
    assert bound(900, 3, "aten::convolution_backward") == "compute-bound", "whose operations torch does not count"
    assert bound(500, 3, "aten::mm", flops=10_000_000, busy_us=600) == "launch-bound", "the GPU has nothing to do"
    assert bound(500, 3, busy_us=900, exposed_us=300) == "communication-bound"
    assert bound(900, 900, "aten::mm", flops=10_000_000_000, busy_us=950) == "compute-bound", "a GPU's are short"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--kind=flame"], "--kind is flame: use simple, advanced, trace or nvtx"),
        (["--steps=4"], "--steps is 4: at least 5 are needed"),
        (["--limit=0"], "the training ended (timeout): no result within 0 s; raise --limit"),
    ],
)
def test_refused(options: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "end_on_signals", lambda: None)
    with pytest.raises(SystemExit) as error:
        profile.main([*options, f"--run.dir={tmp_path}"])
    assert str(error.value).startswith(f"error: {why}")
    assert not [*tmp_path.iterdir()]


def test_nsys_records_a_range_per_step(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Between the calls that start and stop it, which wait for the device; the steps before and after are not there."""
    done: list[str] = []
    for name in ("synchronize", "profiler.start", "profiler.stop", "nvtx.range_pop"):
        monkeypatch.setattr(f"torch.cuda.{name}", partial(done.append, name))
    monkeypatch.setattr("torch.cuda.nvtx.range_push", done.append)
    monkeypatch.setattr("torch.autograd.profiler.emit_nvtx", lambda: nullcontext())
    profiler = Profiler(
        DebugConfig(profile="nvtx", profile_start=4, profile_steps=2), replace(world, device=torch.device("cuda")), 9
    )
    with profiler.running(nn.Linear(1, 1), tmp_path):
        for step in range(9):
            profiler.before_step(step)
    begin, end = ["synchronize", "profiler.start"], ["synchronize", "nvtx.range_pop", "profiler.stop"]
    assert done == [*begin, "step 4", "nvtx.range_pop", "step 5", *end]


def test_nvtx_needs_cuda_and_one_process_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "end_on_signals", lambda: None)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available: None)
    with pytest.raises(SystemExit, match="error: --kind nvtx needs CUDA, which torch does not find here"):
        profile.main(["--kind=nvtx"])
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit, match="error: a launcher has started this"):
        profile.main([])
