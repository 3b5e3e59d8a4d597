"""Projects with Lightning: imported here, or trained in processes of their own."""

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import yaml
from engine import TIMES
from matrix import QUESTIONS
from warm import Started, start_python

LIGHTNING = QUESTIONS["frameworks"]["default"]["lightning"]
IGNORED = [pytest.mark.filterwarnings(message) for message in LIGHTNING["ignored_warnings"]]
"""Marks for the warnings that rendered tests ignore."""
SMALL: dict[str, Any] = {
    "max_epochs": -1,
    "max_steps": 6,
    "val_check_interval": 3,
    "log_every_n_steps": 1,
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
LightningProject = Callable[..., "Project"]
"""Renders a project, by the name of its model; the fixture `lightning` gives it."""


class Project:
    """A rendered project with Lightning; the modules of its package are attributes."""

    def __init__(
        self,
        root: Path,
    ) -> None:
        self.root = root
        self.name = root.name.replace("-", "_")

    def __getattr__(
        self,
        module: str,
    ) -> ModuleType:
        return importlib.import_module(f"{self.name}.{module}")

    def arguments(
        self,
        folder: Path,
        *options: str,
        command: str = "fit",
        every: int = 2,
    ) -> list[str]:
        """Return the arguments of a command: 6 steps, a checkpoint every few steps.

        The run is `folder/a`.
        """
        recipe = (self.root / "configs/default.yaml").read_text()
        config = yaml.safe_load(recipe)
        trainer = config["trainer"]
        trainer |= SMALL
        trainer["default_root_dir"] = str(folder / "a")
        logger = trainer["logger"]["init_args"]
        logger["save_dir"] = str(folder)
        logger["version"] = "a"
        newest = trainer["callbacks"][1]
        newest["init_args"]["every_n_train_steps"] = every
        config["data"]["batch_size"] = 16
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "small.yaml"
        file.write_text(yaml.safe_dump(config))
        return [command, f"--config={file}", *options]

    def run(
        self,
        folder: Path,
        *options: str,
        command: str = "fit",
        every: int = 2,
    ) -> Any:
        """Run a command in this process, and return its LightningCLI.

        What Lightning sets for the whole process is undone.
        """
        arguments = self.arguments(
            folder,
            *options,
            command=command,
            every=every,
        )
        programs = []
        create = self.train.CLI.before_instantiate_classes

        def remember(cli: Any) -> None:
            programs.append(cli)
            create(cli)

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # sums depend on it
        with (
            mock.patch.object(self.train.CLI, "before_instantiate_classes", remember),
            mock.patch("sys.argv", ["train", *arguments]),
            mock.patch.dict(os.environ),
        ):
            self.train.main()
        torch.backends.cudnn.benchmark = False
        torch.set_float32_matmul_precision("highest")
        return programs[0]

    def start(
        self,
        folder: Path,
        *options: str,
        ranks: int = 1,
        every: int = 2,
        **changes: Any,
    ) -> Started:
        """Start a training program."""
        arguments = self.arguments(folder, *options, every=every)
        module = f"{self.name}.train"
        return start_python(
            self.root,
            "-m",
            module,
            *arguments,
            ranks=ranks,
            **changes,
        )

    def finish(
        self,
        folder: Path,
        *options: str,
        expect: int = 0,
        **given: Any,
    ) -> str:
        """Run a training program, check its exit status, and return what it printed."""
        done = self.start(folder, *options, **given).finish()
        assert done.returncode == expect, done.stdout + done.stderr
        return str(done.stdout + done.stderr)


def rows(
    folder: Path,
    split: str = "train",
) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl without times."""
    kept = []
    for line in (folder / "a/metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for key in TIMES:
            row.pop(key, None)
        if row["split"] == split:
            kept.append(row)
    return kept


def column(
    folder: Path,
    key: str,
    split: str = "train",
) -> list[float]:
    """Return a value of all rows of training or validation."""
    return [row[key] for row in rows(folder, split)]


def saved(
    folder: Path,
    name: str = "last",
) -> dict[str, Any]:
    """Return what of a checkpoint does not depend on time."""
    checkpoint = torch.load(folder / f"a/checkpoints/{name}.ckpt", weights_only=True)
    names = ("global_step", "state_dict", "optimizer_states", "lr_schedulers", "Data")
    return {name: checkpoint[name] for name in names}
