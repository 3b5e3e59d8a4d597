"""Files of two ranks; times of the phases on a device that is far behind; a run that fails."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine import MakePackage

ON = ["--train.steps=8", "--profiler.enabled=true", "--profiler.skip=2", "--profiler.steps=3"]


def test_each_rank_writes_its_files(tiny: MakePackage, tmp_path: Path) -> None:
    tiny("profiler").finish(
        tmp_path, *ON, "--profiler.kind=advanced", "--train.batch_size=8", ranks=2
    )
    names = {file.name for file in (tmp_path / "a/profile").iterdir()}
    of_one = {"functions.prof", "functions.txt"}
    assert names == of_one | {f"rank-1-{name}" for name in of_one}


@pytest.mark.parametrize("kind", ["basic", "advanced", "torch"])
def test_failed_run_keeps_what_was_measured(
    tiny: MakePackage, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = tiny("profiler")
    monkeypatch.setattr(
        p.model.Net,
        "forward",
        fail_at(p.model.Net.forward, 4),
    )
    with pytest.raises(ArithmeticError):
        p.train_here(tmp_path, *ON, f"--profiler.kind={kind}")
    written = {"basic": "phases.txt", "advanced": "functions.txt", "torch": "operators.txt"}
    assert (tmp_path / "a/profile" / written[kind]).stat().st_size > 0


def fail_at(forward: Any, number: int) -> Any:
    """Return a `forward` whose call of this number fails."""
    calls: list[None] = []

    def failing(net: Any, *parts: Any) -> Any:
        calls.append(None)
        if len(calls) == number:
            raise ArithmeticError("a failure")
        return forward(net, *parts)

    return failing


def test_times_are_those_of_the_clock(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tick per reading: each phase of a step ends one tick after the one before."""
    p = tiny("profiler")
    clock = iter(range(10_000))
    monkeypatch.setattr(
        p.components.profiler, "time", SimpleNamespace(perf_counter=lambda: next(clock))
    )
    evaluate = p.train.evaluate
    monkeypatch.setattr(
        p.train, "evaluate", lambda *given: [next(clock) for _ in range(50)] and evaluate(*given)
    )
    p.train_here(
        tmp_path,
        *ON,
        "--train.gradient_accumulation_steps=2",
        "--log.every=2",
        "--train.eval_every=4",
    )
    lines = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    found = []
    for row in lines:
        if row["split"] == "train":
            found.append({key: row[key] for key in row if key.startswith("ms_")})
    once = {
        "ms_data": 2000.0,
        "ms_forward_backward": 2000.0,
        "ms_optimizer": 1000.0,
        "ms_other": 1500.0,
    }
    first = once | {"ms_other": 2000.0}  # of one step
    # the end of a row is a half tick of `other` for each of its two steps
    assert found == [
        {},
        first,
        once,
        once,
    ]


@pytest.mark.parametrize("skip", [1, 2, 3])
def test_start_of_a_tracker_is_not_measured(tiny: MakePackage, tmp_path: Path, skip: int) -> None:
    p = tiny("profiler", "tracker", "tensorboard")
    tensorboard = p.components.tensorboard.Tensorboard
    with pytest.MonkeyPatch.context() as patch:
        begin = tensorboard.open
        seconds = [0.0]

        def tick() -> float:
            seconds[0] += 0.001
            return seconds[0]

        def open_slowly(*given: Any) -> Any:
            seconds[0] += 0.5
            return begin(*given)

        patch.setattr(p.components.profiler, "time", SimpleNamespace(perf_counter=tick))
        patch.setattr(tensorboard, "open", open_slowly)
        more = [f"--profiler.skip={skip}", "--log.every=2", "--tensorboard.enabled=true"]
        p.train_here(tmp_path, *ON, *more)
    lines = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert max(row["ms_data"] for row in lines if "ms_data" in row) < 100
