"""The profilers measure what they say, and training does not change."""

import csv
import json
import os
import pstats
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from .. import data
from ..components import profiler
from ..distributed import World, find_device
from ..errors import UserError
from .support import equal, rows, state, train_here

ON = ("--profiler.enabled=true", "--profiler.skip=3", "--profiler.steps=4", "--train.accumulate=2")
OFF = (*ON, "--profiler.enabled=false")


def test_phases_are_in_the_rows_and_in_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slow augmentation is in `data`, twice per step; the rows after the skipped steps have the phases."""
    prepare, seconds = data.Prepare.forward, [0.0]  # seconds on a clock that nothing else moves

    def prepare_slowly(*given: Any) -> Any:
        seconds[0] += 0.02
        return prepare(*given)

    clock = SimpleNamespace(perf_counter=lambda: seconds[0])
    with (
        mock.patch.object(data.Prepare, "forward", prepare_slowly),
        mock.patch.object(profiler, "time", clock),
    ):
        train_here(tmp_path / "with", *ON)
    with_it = rows(tmp_path / "with", "train")
    measured = [{key: row.pop(key) for key in [*row] if key.startswith("ms_")} for row in with_it]
    assert [len(row) for row in measured] == [0, 4, 4, 4, 4, 4]
    for row in measured[1:]:
        assert row["ms_data"] == pytest.approx(40)
        assert row["ms_forward_backward"] == row["ms_optimizer"] == 0
        assert row["ms_other"] == 0, "without validations, which are slow as well"
    shown = (tmp_path / "with/first/profile/phases.txt").read_text()
    assert shown in capsys.readouterr().out
    assert shown.splitlines()[1].split()[0] == "data"
    total = sum(float(line.split()[1]) for line in shown.splitlines()[1:])
    steps = [1, 2, 2, 2, 2]
    means = [
        sum(row.values()) * count / sum(steps)
        for row, count in zip(measured[1:], steps, strict=True)
    ]
    assert total == pytest.approx(sum(means), rel=1e-3)
    train_here(tmp_path / "without", *OFF)
    assert with_it == rows(tmp_path / "without", "train")
    assert equal(state(tmp_path / "with")["model"], state(tmp_path / "without")["model"])


def test_functions_are_sorted_by_their_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(tmp_path, *ON, "--profiler.kind=advanced")
    text = (tmp_path / "first/profile/functions.txt").read_text()
    assert "Ordered by: internal time" in text
    assert "Ordered by: internal time" in capsys.readouterr().out
    found: Any = pstats.Stats(str(tmp_path / "first/profile/functions.prof"))
    calls = {
        name: counts[0]
        for (file, _, name), counts in found.stats.items()
        if file.endswith("profiler.py")
    }
    assert calls["timed_gradients"] == 8
    assert calls["timed_update"] == 4


@pytest.mark.parametrize("steps", [12, 5])
def test_trace_has_the_recorded_steps_also_of_a_short_run(tmp_path: Path, steps: int) -> None:
    train_here(
        tmp_path, *ON, "--profiler.kind=torch", f"--train.steps={steps}", "--train.eval_every=9"
    )
    folder = tmp_path / "first/profile"
    names = [
        event.get("name")
        for event in json.loads((folder / "trace.json").read_text())["traceEvents"]
    ]
    assert names.count("forward_backward") == 2 * min(4, steps - 3)
    assert names.count("optimizer") == min(4, steps - 3)
    assert "aten::" in (folder / "operators.txt").read_text()
    memory = [*csv.DictReader((folder / "memory.csv").read_text().splitlines())]
    assert max(float(line["allocated_mb"]) for line in memory) > 0
    assert float(memory[-1]["milliseconds"]) > 0


def test_training_does_not_change(tmp_path: Path) -> None:
    train_here(tmp_path / "off", *OFF)
    for kind in ("advanced", "torch"):
        train_here(tmp_path / kind, *ON, f"--profiler.kind={kind}")
        assert rows(tmp_path / kind, "train") == rows(tmp_path / "off", "train")
        assert equal(
            state(tmp_path / kind), state(tmp_path / "off") | {"components": {"profiler": {}}}
        )


def test_ranges_need_cuda(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^profiler.kind is nvtx: its ranges need CUDA, and this run is on cpu"
    ):
        train_here(tmp_path, *ON, "--profiler.kind=nvtx")


@pytest.mark.gpu
@pytest.mark.skipif(
    not (torch.cuda.is_available() or os.environ.get("REQUIRE_GPU")), reason="needs a CUDA device"
)
@pytest.mark.parametrize("kind", ["basic", "torch", "nvtx"])
def test_profilers_run_on_a_gpu(tmp_path: Path, kind: str) -> None:
    train_here(tmp_path, *ON, f"--profiler.kind={kind}", world=World(0, 1, find_device("cuda")))
    assert ("ms_data" in rows(tmp_path, "train")[-1]) == (kind == "basic")
