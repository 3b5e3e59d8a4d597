"""The shares of a row of metrics: on the CPU of all steps, on a GPU of the last."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from .. import data
from ..config import Config
from ..device_times import DeviceTimes
from ..distributed import World
from ..hooks import Hook
from ..loaders import Loader
from ..phase_times import PHASES
from ..train import train

PAUSE = 0.02


class Slow(Hook):
    """Makes forward, backward and the update slow, each by a pause, and checkpoints by many."""

    def running(self, model: nn.Module, folder: Path) -> AbstractContextManager[Any]:
        """Let the model wait."""
        model.register_forward_pre_hook(lambda *call: time.sleep(PAUSE))
        next(model.parameters()).register_hook(lambda gradient: time.sleep(PAUSE))
        return nullcontext()

    def manifest(self) -> dict[str, Any]:
        """Wait in each checkpoint."""
        time.sleep(25 * PAUSE)
        return {}


@pytest.mark.usefixtures("short_validation")
def test_each_phase_has_its_share_of_the_time_without_checkpoints(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, prepare = Loader._load, data.Prepare.forward

    def slow_load(loader: Loader, indices: list[int]) -> Any:
        time.sleep(PAUSE)
        return load(loader, indices)

    def slow_prepare(*given: Any) -> Any:
        time.sleep(PAUSE)
        return prepare(*given)

    monkeypatch.setattr(Loader, "_load", slow_load)
    monkeypatch.setattr(data.Prepare, "forward", slow_prepare)
    hook = register_optimizer_step_post_hook(lambda *step: time.sleep(PAUSE))
    options = ["--train.steps=6", "--train.eval_every=4", "--log.every=2", "--optim.name=adamw", "--train.accumulate=2"]
    try:
        train(config(*options, "--run.name=run", "--loader.workers=0"), world, [Slow()])
    finally:
        hook.remove()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    row = next(it for it in rows if (it["split"], it["step"]) == ("train", 6))
    seconds = 2 * 32 / row["samples_per_second"]
    measured = {name: row[name] for name in PHASES if name in row}
    assert [*measured] == ["data_wait", "prepare", "forward", "backward", "optimizer"]
    for name, share in measured.items():
        assert share * seconds > (2 if name == "optimizer" else 4) * 0.99 * PAUSE, measured
    rest = 1 - sum(measured.values())
    assert -0.001 < rest < 20 * PAUSE / seconds, "the time of a validation and a checkpoint is in no row"


def test_a_gpu_records_events_in_the_last_step_before_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Event:
        """One of a GPU, which is at a time of its own."""

        def __init__(self, device: torch.device, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            """Note the time."""
            clock[0] += 1.0
            self.at = clock[0]

        def query(self) -> bool:
            """Whether the host has waited for it."""
            return True

        def elapsed_time(self, after: "Event") -> float:
            """Return the milliseconds until another."""
            return after.at - self.at

    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda device: 3e9)
    monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", lambda device: None)
    progress = SimpleNamespace(step=0, is_logged=lambda step: step == 2)
    for captured in (False, True):
        times = DeviceTimes(torch.device("cuda", 0), captured)
        times.begin_row(progress)
        assert clock == [0.0], "the first step is not the last before a row"
        progress.step = 1
        times.begin_step(progress)
        for phase in ("data_wait", "other", "prepare", "forward", "backward", "communication", "other", "optimizer"):
            times.begin(phase)
        clock[0] += 3  # the update takes four
        times.begin("outside")
        times.begin("other")
        row = {"loss": 1.0, "forward": 7.0}
        times.add_to(row, 10)
        row.pop("samples_per_second")
        expected = {"loss": 1.0, "forward": 7.0, "data_wait": pytest.approx(0, abs=1), "memory_gb": 3.0}
        if not captured:  # twelve, of which one is outside; a metric of the model's comes first
            expected |= dict.fromkeys(("prepare", "backward", "communication"), pytest.approx(1 / 12, abs=1e-4))
            expected["optimizer"] = pytest.approx(4 / 12, abs=1e-4)
        assert row == expected
        progress.step, clock[0] = 0, 0.0
