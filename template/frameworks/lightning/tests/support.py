"""Short runs for tests: 12 steps on the first samples of the data."""

import functools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml
from torch.utils.data import Subset

from .. import data
from ..data import DataConfig
from ..train import main

ROOT = Path(__file__).parents[3]
SMALL = {
    "max_epochs": None,
    "max_steps": 12,
    "val_check_interval": 4,
    "check_val_every_n_epoch": None,
    "log_every_n_steps": 2,
    "accelerator": "cpu",
    "devices": 1,
    "num_nodes": 1,
    "strategy": "auto",
    "precision": "32-true",
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
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


def config(folder: Path) -> str:
    """Write the config of a small run with a checkpoint every 2 steps; return its option."""
    recipe = (ROOT / "configs/default.yaml").read_text(encoding="utf-8")
    options = yaml.safe_load(recipe)
    trainer = options["trainer"]
    trainer |= SMALL
    logger = trainer["logger"]["init_args"]
    logger["save_dir"] = str(folder)
    logger["version"] = "first"
    trainer["callbacks"][1]["init_args"]["every_n_train_steps"] = 2
    options["model"]["compile_mode"] = "off"
    options["data"]["batch_size"] = 4

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(options), encoding="utf-8")
    return f"--config={file}"


@few_samples()
def train_here(
    folder: Path,
    *options: str,
    command: str = "fit",
) -> None:
    """Train in this process; the run is `folder/first`."""
    with mock.patch.object(sys, "argv", ["train", command, config(folder), *options]):
        main()


def rows(folder: Path, split: str) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl without times."""
    kept = []
    for line in (folder / "first/metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for key in ("seconds", "samples_per_second", "data_wait"):
            row.pop(key, None)
        if row["split"] == split:
            kept.append(row)
    return kept


def newest(folder: Path) -> dict[str, Any]:
    """Return what of the newest checkpoint of a run does not depend on time."""
    checkpoint = torch.load(folder / "first/checkpoints/last.ckpt", weights_only=True)
    names = (
        "global_step",
        "state_dict",
        "optimizer_states",
        "lr_schedulers",
        "Data",
    )
    return {name: checkpoint[name] for name in names}


def equal(a: Any, b: Any) -> bool:
    """Whether two states are equal to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return bool(a == b)
