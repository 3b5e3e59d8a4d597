"""Activation checkpointing: the same weights to the bit, and fewer saved activations."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ..components.activation_checkpointing import (
    ActivationCheckpointing,
    ActivationCheckpointingConfig,
)
from ..data import DataConfig, Prepare
from ..errors import UserError
from ..loader import Loader
from ..metrics import compute_loss
from ..model import ModelConfig, build
from .support import CPU, config, equal, load_all, rows, state, train_here

SHORT = ("--train.steps=3", "--train.eval_every=3", "--log.every=1")
ENABLED = "--activation_checkpointing.enabled=true"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    train_here(folder, *SHORT)
    return folder


@pytest.mark.parametrize(("mode", "every"), [("blocks", 1), ("blocks", 2), ("ops", 1)])
def test_training_does_not_change(plain: Path, tmp_path: Path, mode: str, every: int) -> None:
    options = (
        f"--activation_checkpointing.mode={mode}",
        f"--activation_checkpointing.every={every}",
    )
    train_here(tmp_path, *SHORT, ENABLED, *options)
    assert equal(state(tmp_path)["model"], state(plain)["model"])
    assert rows(tmp_path, "train") == rows(plain, "train")
    assert rows(tmp_path, "val") == rows(plain, "val")


def saved_elements(tmp_path: Path, every: int | None) -> int:
    """Return the elements that a forward pass saves for the backward pass."""
    cfg, (train_set, _, spec) = config(tmp_path), load_all(DataConfig())
    model: nn.Module = build(ModelConfig(), spec)
    if every is not None:
        options = ActivationCheckpointingConfig(enabled=True, every=every)
        model = ActivationCheckpointing(options, CPU).convert_model(model)
    (loaded,) = Loader(train_set, [[0, 1]], cfg.loader, CPU)
    batch, sizes = Prepare(spec, cfg.data)(loaded, True, torch.default_generator), list[int]()

    def note(value: Tensor) -> Tensor:
        sizes.append(value.numel())
        return value

    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        compute_loss(model, batch)
    return sum(sizes)


def test_fewer_activations_are_saved(tmp_path: Path) -> None:
    everything, half, little = (saved_elements(tmp_path, every) for every in (None, 2, 1))
    assert little <= half < everything


def test_model_without_blocks_is_refused() -> None:
    component = ActivationCheckpointing(ActivationCheckpointingConfig(enabled=True), CPU)
    with pytest.raises(
        UserError,
        match=r"Linear has no `blocks`: put its repeated layers into self\.blocks = nn\.Mo",
    ):
        component.convert_model(nn.Linear(1, 1))


def test_memory_budget_needs_the_compiler(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="mode is budget: the compiler implements it: set speed.compile=model"
    ):
        train_here(tmp_path, ENABLED, "--activation_checkpointing.mode=budget")
