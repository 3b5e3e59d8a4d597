"""Short runs for tests: 12 steps on the first samples of the data."""

import functools
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils.data import Subset

from .. import checkpoint, data
from ..components import Config
from ..config import parse
from ..data import DataConfig
from ..distributed import World, init
from ..optim import OneCycle
from ..train import train
from . import run_ranks

CPU = World(0, 1, torch.device("cpu"))
SMALL = [
    "--run.name=first",
    "--run.device=cpu",
    "--speed.precision=fp32",
    "--loader.num_workers=0",
]
SMALL += [
    "--train.batch_size=4",
    "--train.steps=12",
    "--train.eval_every=4",
    "--log.every=2",
]
# Sums depend on the number of threads, also in the programs that tests start.
if os.environ.setdefault("OMP_NUM_THREADS", "1") == "1":
    torch.set_num_threads(1)


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


def config(folder: Path, *options: str) -> Config:
    """Return the config of a short run, whose folder is `first`."""
    return parse(Config, [*SMALL, f"--run.dir={folder}", *options])


@few_samples()
def train_here(
    folder: Path,
    *options: str,
    world: World = CPU,
) -> dict[str, float]:
    """Train in this process."""
    return train(config(folder, *options), world)


def run_group(
    action: Callable[..., object],
    *arguments: object,
    ranks: int = 1,
) -> list[int | None]:
    """Run an action in processes of a group, and return their exit codes.

    Its last argument is the `World` of the process.
    """
    return run_ranks(join_and_run, action, *arguments, ranks=ranks)


def join_and_run(action: Callable[..., object], *arguments: object) -> None:
    """Run an action in this process, which joins the group."""
    with init("cpu") as world:
        action(*arguments, world)


@contextmanager
def at_step(step: int, action: Callable[[torch.optim.Optimizer], object]) -> Iterator[None]:
    """Run an action in a step, counted from 0: between its backward pass and its update."""
    original = OneCycle.set

    def act_and_set(
        schedule: OneCycle,
        optimizer: torch.optim.Optimizer,
        number: int,
    ) -> float:
        if number == step:
            action(optimizer)
        return original(schedule, optimizer, number)

    with mock.patch.object(OneCycle, "set", act_and_set):
        yield


def ask_to_stop(_: object = None) -> None:
    """Send SIGTERM to this process."""
    signal.raise_signal(signal.SIGTERM)


def state(folder: Path) -> dict[str, Any]:
    """Return the newest checkpoint of a run."""
    newest = checkpoint.newest(folder / "first" / "checkpoints")
    assert newest is not None
    return dict(torch.load(newest / "state.pt", weights_only=True))


def rows(folder: Path, split: str) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl without times."""
    chosen = []
    for line in (folder / "first/metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for time in ("seconds", "samples_per_second", "data_wait"):
            row.pop(time, None)
        if row["split"] == split:
            chosen.append(row)
    return chosen


def equal(a: Any, b: Any) -> bool:
    """Whether two states are equal to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


def parameters(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state dict without what BatchNorm counts, which differs between two ranks."""
    counted = ("running_mean", "running_var", "num_batches_tracked")
    return {name: value for name, value in model.items() if not name.endswith(counted)}
