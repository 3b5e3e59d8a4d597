"""Short runs for tests: 12 steps on the first samples of the data."""

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file
from torch.utils.data import Subset

from .. import checkpoint, data
from ..accelerator import Config
from ..config import parse
from ..data import DataConfig
from ..distributed import World
from ..optim import OneCycle
from ..train import train

CPU = World(0, 1, torch.device("cpu"))
SMALL = ["--run.name=first", "--run.device=cpu", "--speed.precision=fp32", "--loader.workers=0"]
SMALL += ["--train.micro_batch=4", "--train.steps=12", "--train.eval_every=4", "--log.every=2"]
if (
    os.environ.setdefault("OMP_NUM_THREADS", "1") == "1"
):  # for the programs that tests start as well
    torch.set_num_threads(1)  # sums depend on the number of threads


class First(Subset[Any]):
    """The first samples of a dataset, with its attributes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)


load_all = functools.cache(data.load)


@contextmanager
def few_samples() -> Iterator[None]:
    """Train with 36 samples, which are 9 small batches; validate with 11, whose last batch is smaller."""

    def load(cfg: DataConfig) -> tuple[Any, Any, Any]:
        train_set, val_set, spec = load_all(cfg)
        return First(train_set, range(36)), First(val_set, range(11)), spec

    with mock.patch.object(data, "load", load):
        yield


@few_samples()
def train_here(folder: Path, *options: str, world: World = CPU) -> dict[str, float]:
    """Train in this process; the run is `folder/first`."""
    return train(parse(Config, [*SMALL, f"--run.dir={folder}", *options]), world)


def run_program(module: str, *arguments: object, ranks: int = 1) -> None:
    """Run the `__main__` part of a test module, started by `accelerate launch` if there are several ranks."""
    root, package = Path(__file__).parents[2], Path(__file__).parents[1].name
    launch = [
        "accelerate.commands.launch",
        "--multi_gpu",
        f"--num_processes={ranks}",
        "--num_machines=1",
    ]
    # 0: a free port
    launch += [
        "--mixed_precision=no",
        "--dynamo_backend=no",
        "--main_process_port=0",
        "-m",
    ]
    command = [
        sys.executable,
        "-m",
        *(launch if ranks > 1 else []),
        f"{package}.tests.{module}",
        *map(str, arguments),
    ]
    variables = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def at_step(step: int, action: Callable[[Any], object]) -> Iterator[None]:
    """Run an action in a step, counted from 0: between its backward pass and its update."""
    original = OneCycle.set

    def act_and_set(schedule: OneCycle, optimizer: torch.optim.Optimizer, number: int) -> float:
        if number == step:
            action(optimizer)
        return original(schedule, optimizer, number)

    with mock.patch.object(OneCycle, "set", act_and_set):
        yield


def ask_to_stop(_: object = None) -> None:
    """Send SIGTERM to this process."""
    signal.raise_signal(signal.SIGTERM)


def state(folder: Path) -> dict[str, Any]:
    """Return the newest checkpoint of a run: its counters, weights and the optimizer's state."""
    found = checkpoint.newest(folder / "first" / "checkpoints")
    assert found is not None
    counters, optimizer = (
        torch.load(found / name, weights_only=True) for name in ("state.pt", "optimizer.bin")
    )
    return {**counters, "model": load_file(found / "model.safetensors"), "optimizer": optimizer}


def rows(folder: Path, split: str) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl without times."""
    found = [json.loads(line) for line in (folder / "first/metrics.jsonl").read_text().splitlines()]
    times = {"seconds", "samples_per_second", "data_wait"}
    return [
        {key: row[key] for key in row if key not in times} for row in found if row["split"] == split
    ]


def equal(a: Any, b: Any) -> bool:
    """Whether two states are equal to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


def check_close(folder: Path, other: Path, *splits: str) -> None:
    """Compare two runs whose sums have another order, without BatchNorm's statistics, which differ on two ranks."""
    counted = ("running_mean", "running_var", "num_batches_tracked")
    ours, theirs = (state(it)["model"] for it in (folder, other))
    names = [name for name in theirs if not name.endswith(counted)]
    torch.testing.assert_close(
        [ours[it] for it in names], [theirs[it] for it in names], rtol=1e-3, atol=1e-5
    )
    found, wanted = ([row for split in splits for row in rows(it, split)] for it in (folder, other))
    for key in ("loss", "grad_norm"):
        values, expected = (
            torch.tensor([row[key] for row in these if key in row]) for these in (found, wanted)
        )
        torch.testing.assert_close(values, expected, rtol=1e-3, atol=1e-4)
