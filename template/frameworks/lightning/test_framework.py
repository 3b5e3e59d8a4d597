"""What users of Lightning expect of its Trainer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint, WeightAveraging
from lightning.pytorch.loggers import CSVLogger

from .. import checkpoint, train
from ..config import Config
from ..datamodule import DataModule
from ..distributed import World
from ..errors import UserError
from ..module import Module
from ..run import Run, open_run
from ..tools import evaluate
from ..tools.trained_model import open_trained
from ..train import make_trainer
from .conftest import main, read_rows, read_weights

STEPS = ["--train.steps=12", "--train.eval_every=4", "--log.every=2"]


@pytest.fixture
def with_extras(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what extras.py returns."""

    def set_extras(**arguments: Any) -> None:
        monkeypatch.setattr(train, "extras", lambda run: arguments)

    return set_extras


def fit(cfg: Config, world: World, **options: Any) -> tuple[Run, Any, Module]:
    """Train by the parts that train.py uses."""
    with open_run(cfg, world) as run:
        trainer, module = make_trainer(run), Module(run)
        trainer.fit(module, datamodule=DataModule(run), **options)
        run.finish()
    return run, trainer, module
