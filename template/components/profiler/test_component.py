"""The profilers measure what they say, and training does not change."""

import json
import os
import pstats
from pathlib import Path
from typing import Any

import pytest
import torch

from ..distributed import World, find_device
from ..errors import UserError
from .support import equal, rows, state, train_here

ON = (
    "--profiler.enabled=true",
    "--profiler.skip=3",
    "--profiler.steps=4",
    "--train.gradient_accumulation_steps=2",
)


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("without")
    train_here(folder, *ON, "--profiler.enabled=false")
    return dict(state(folder)["model"])


def test_phases_are_in_the_rows_and_in_a_table(
    tmp_path: Path, without: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(tmp_path, *ON)
    last = rows(tmp_path, "train")[-1]
    assert last["ms_data"] > 0
    table = (tmp_path / "first/profile/phases.txt").read_text()
    assert table in capsys.readouterr().out
    assert equal(state(tmp_path)["model"], without)


def test_functions_are_sorted_by_their_time(
    tmp_path: Path,
    without: dict[str, Any],
) -> None:
    train_here(tmp_path, *ON, "--profiler.kind=advanced")
    folder = tmp_path / "first/profile"
    assert "Ordered by: internal time" in (folder / "functions.txt").read_text()
    functions: Any = pstats.Stats(str(folder / "functions.prof"))
    calls = {place[2]: counts[0] for place, counts in functions.stats.items()}
    assert calls["timed_gradients"] == 8
    assert calls["timed_update"] == 4
    assert equal(state(tmp_path)["model"], without)


@pytest.mark.parametrize("steps", [12, 5])
def test_trace_has_the_recorded_steps_also_of_a_short_run(
    tmp_path: Path,
    steps: int,
) -> None:
    train_here(tmp_path, *ON, "--profiler.kind=torch", f"--train.steps={steps}")
    folder = tmp_path / "first/profile"
    trace = json.loads((folder / "trace.json").read_text())
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("optimizer") == min(4, steps - 3)
    assert "aten::" in (folder / "operators.txt").read_text()


def test_ranges_need_cuda(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^profiler.kind is nvtx: its ranges need CUDA"):
        train_here(tmp_path, *ON, "--profiler.kind=nvtx")


@pytest.mark.gpu
@pytest.mark.skipif(
    not (torch.cuda.is_available() or os.environ.get("REQUIRE_GPU")), reason="needs a CUDA device"
)
@pytest.mark.parametrize("kind", ["basic", "torch", "nvtx"])
def test_profilers_run_on_a_gpu(
    tmp_path: Path,
    kind: str,
) -> None:
    world = World(
        0,
        1,
        find_device("cuda"),
    )
    train_here(
        tmp_path,
        *ON,
        f"--profiler.kind={kind}",
        world=world,
    )
    last = rows(tmp_path, "train")[-1]
    assert ("ms_data" in last) == (kind == "basic")
