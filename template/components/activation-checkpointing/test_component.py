"""Activation checkpointing: the same weights to the bit, and fewer saved activations."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ..components.activation_checkpointing import (
    ActivationCheckpointing,
    ActivationCheckpointingConfig,
)
from ..data import Prepare
from ..errors import UserError
from ..loader import Loader
from ..loss import compute_loss
from ..model import build
from .support import CPU, config, equal, load_all, rows, state, train_here

SHORT = ("--train.steps=3", "--train.eval_every=3", "--log.every=1")
ENABLED = "--activation_checkpointing.enabled=true"


@pytest.mark.parametrize("mode", ["blocks", "ops"])
def test_training_does_not_change(
    tmp_path: Path,
    mode: str,
) -> None:
    train_here(tmp_path / "plain", *SHORT)
    train_here(tmp_path / mode, *SHORT, ENABLED, f"--activation_checkpointing.mode={mode}")
    assert equal(state(tmp_path / mode)["model"], state(tmp_path / "plain")["model"])
    assert rows(tmp_path / mode, "train") == rows(tmp_path / "plain", "train")


def count_saved(
    folder: Path,
    every: int | None,
) -> int:
    """Return the elements that a forward pass saves for the backward pass."""
    cfg = config(folder)
    train_set, _, spec = load_all(cfg.data)
    model: nn.Module = build(cfg.model, spec)
    if every is not None:
        options = ActivationCheckpointingConfig(enabled=True, every=every)
        model = ActivationCheckpointing(options, CPU).convert_model(model)
    (loaded,) = Loader(train_set, [[0, 1]], cfg.loader, CPU)
    batch = Prepare(spec, cfg.data)(loaded, True, torch.default_generator)
    sizes: list[int] = []

    def note(value: Tensor) -> Tensor:
        sizes.append(value.numel())
        return value

    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        compute_loss(model, batch)
    return sum(sizes)


def test_fewer_activations_are_saved(tmp_path: Path) -> None:
    half = count_saved(tmp_path, 2)
    assert count_saved(tmp_path, 1) <= half < count_saved(tmp_path, None)


def test_model_without_blocks_is_refused() -> None:
    component = ActivationCheckpointing(ActivationCheckpointingConfig(enabled=True), CPU)
    message = r"Linear has no `blocks`: put its repeated layers into self\.blocks = nn\.Mo"
    with pytest.raises(UserError, match=message):
        component.convert_model(nn.Linear(1, 1))


def test_memory_budget_needs_the_compiler(tmp_path: Path) -> None:
    message = "mode is budget: the compiler implements it: set speed.compile=model"
    with pytest.raises(UserError, match=message):
        train_here(tmp_path, ENABLED, "--activation_checkpointing.mode=budget")
