"""Runs that differ only in the framework, and their comparison."""

import json
from pathlib import Path
from typing import Any

import pytest
from matrix import MEASURED
from program import PROGRAMS
from warm import run_python

STEPS = 12
SETTINGS = ["--config=configs/default.yaml", "--run.device=cpu", "--loader.workers=0"]
SETTINGS += ["--train.micro_batch=4", f"--train.steps={STEPS}", f"--train.eval_every={STEPS}", "--log.every=1"]
FP32 = "--speed.precision=fp32"
VARIANTS: dict[str, tuple[list[str], float]] = {
    "plain": ([FP32], 1e-6),
    "accumulated": ([FP32, "--train.accumulate=4", "--train.micro_batch=2", "--optim.clip=0.3"], 1e-6),
    "bf16": (["--speed.precision=bf16"], 1e-3),
}
"""Options, and the relative tolerance of the losses."""
SHARDED = [FP32, "--dist.strategy=fsdp", "--optim.name=adamw", "--optim.clip=0.3"]
RANKS = {name: VARIANTS[name] for name in ("plain", "accumulated")}
RANKS |= {"sharded": ([*SHARDED, "--train.accumulate=2", "--train.micro_batch=2"], 1e-6)}
"""The same for several ranks."""


def train_in_turn(folder: Path, runs: Path, variants: list[str], ranks: int = 1, nodes: int = 1) -> None:
    """Train the variants of a project into `runs`."""
    every = [[*SETTINGS, *(VARIANTS | RANKS)[name][0], f"--run.dir={runs}", f"--run.name={name}"] for name in variants]
    result = run_python(folder, str(PROGRAMS / "train_in_turn.py"), json.dumps(every), ranks=ranks, nodes=nodes)
    assert result.returncode == 0, result.stderr[-4000:]


def read_rows(run: Path) -> list[dict[str, Any]]:
    """Return all rows of a run, without values that depend on time."""
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if key not in MEASURED} for row in logged]


def assert_equal_runs(ours: Path, theirs: Path, tolerance: float) -> float:
    """Compare two runs; return the largest relative difference of a loss."""
    largest = 0.0
    first, second = read_rows(ours), read_rows(theirs)
    assert len(first) == len(second) == STEPS + 1
    assert first[-1]["split"] == "val"
    for mine, other in zip(first, second, strict=True):
        assert mine.keys() == other.keys()
        for key in ("split", "step", "lr"):
            assert mine.get(key) == other.get(key)
        for key in mine.keys() - {"split", "step", "lr"}:
            assert mine[key] == pytest.approx(other[key], rel=tolerance, abs=1e-12)
        largest = max(largest, abs(mine["loss"] - other["loss"]) / abs(other["loss"]))
    for seen in sorted(theirs.glob("seen-*")):
        assert (ours / seen.name).read_text() == seen.read_text(), "each rank had the same samples"
    return largest
