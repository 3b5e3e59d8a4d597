"""Short runs for tests: 12 steps on the first samples of the data."""

import functools
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file
from torch.utils.data import Subset

from .. import data
from .. import train as program
from ..config import Config, parse
from ..data import DataConfig
from ..loss import compute_loss

SMALL = [
    "--run.name=first",
    "--run.device=cpu",
    "--speed.precision=fp32",
    "--loader.num_workers=0",
    "--train.batch_size=4",
    "--train.steps=12",
    "--train.eval_every=4",
    "--log.every=2",
]
TIMES = {"seconds", "samples_per_second", "data_wait"}
# for the programs that tests start as well
if os.environ.setdefault("OMP_NUM_THREADS", "1") == "1":
    torch.set_num_threads(1)  # sums depend on the number of threads


class First(Subset[Any]):
    """The first samples of a dataset, with its attributes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)


load_all = functools.cache(data.load)


@contextmanager
def few_samples() -> Iterator[None]:
    """Train with 36 samples, which are 9 small batches; validate with 11."""

    def load(cfg: DataConfig) -> tuple[Any, Any, Any]:
        train_set, val_set, spec = load_all(cfg)
        return First(train_set, range(36)), First(val_set, range(11)), spec

    with mock.patch.object(data, "load", load):
        yield


@few_samples()
def train_here(folder: Path, *options: str) -> dict[str, float]:
    """Train in this process; the run is `folder/first`."""
    return program.train(parse(Config, [*SMALL, f"--run.dir={folder}", *options]))


@contextmanager
def at_batch(number: int, action: Callable[[], object]) -> Iterator[None]:
    """Run an action before the forward pass of a micro-batch, counted from 0."""
    numbers = itertools.count()

    def act_and_compute(net: Any, batch: Any) -> Any:
        if next(numbers) == number:
            action()
        return compute_loss(net, batch)

    with mock.patch.object(program, "compute_loss", act_and_compute):
        yield


def ask_to_stop() -> None:
    """Send SIGTERM to this process."""
    signal.raise_signal(signal.SIGTERM)


def state(folder: Path) -> dict[str, Any]:
    """Return the newest checkpoint of a run: its progress, weights and the optimizer's state."""
    newest = max(folder.glob("first/checkpoints/step-*"))
    saved: dict[str, Any] = torch.load(newest / "custom_checkpoint_0.pkl")
    saved["optimizer"] = torch.load(newest / "optimizer.bin")
    saved["model"] = load_file(newest / "model.safetensors")
    return saved


def rows(folder: Path, split: str) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl without times."""
    lines = (folder / "first/metrics.jsonl").read_text().splitlines()
    kept = []
    for row in map(json.loads, lines):
        if row["split"] == split:
            kept.append({name: row[name] for name in row.keys() - TIMES})
    return kept


def equal(a: Any, b: Any) -> bool:
    """Whether two states are equal to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return bool(a == b)


def check_close(
    folder: Path,
    other: Path,
    *splits: str,
) -> None:
    """Compare the rows of two runs whose sums have another order."""
    for split in splits:
        ours = rows(folder, split)
        theirs = rows(other, split)
        for name in ("loss", "grad_norm"):
            values = torch.tensor([row.get(name, 0.0) for row in ours])
            expected = torch.tensor([row.get(name, 0.0) for row in theirs])
            torch.testing.assert_close(
                values,
                expected,
                rtol=1e-3,
                atol=1e-4,
            )
