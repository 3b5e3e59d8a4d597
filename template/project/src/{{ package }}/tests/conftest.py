"""What the tests share: the project's own config made small, and a world of one CPU process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ..config import Config, parse
from ..distributed import World

ROOT = Path(__file__).parents[3]
PACKAGE = __package__.split(".")[-2]
FP32_ON_CPU = ["--run.device=cpu", "--speed.precision=fp32", "--speed.compile=off"]
SMALL = [f"--config={ROOT}/configs/default.yaml", f"--config={ROOT}/configs/smoke.yaml", *FP32_ON_CPU]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a GPU, its tests are skipped and said to be; with REQUIRE_GPU=1 they run, and so fail."""
    if torch.cuda.is_available() or os.environ.get("REQUIRE_GPU") == "1":
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def world() -> World:
    """One process on the CPU."""
    return World(0, 1, torch.device("cpu"))


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Config]:
    """Make the project's config small, with runs in a temporary folder and options as on the command line."""

    def make(*options: str) -> Config:
        return parse("test", "", [*SMALL, f"--run.dir={tmp_path}", "--log.tensorboard=false", *options])

    return make


def run_ranks(ranks: int, options: list[str]) -> subprocess.CompletedProcess[str]:
    """Train in a process of its own, or under torchrun, as a user does."""
    module = [f"{PACKAGE}.train", *SMALL, "--log.tensorboard=false", *options]
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"] if ranks > 1 else []
    return subprocess.run(
        [sys.executable, "-m", *torchrun, *module],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
