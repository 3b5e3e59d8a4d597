"""The gradient of a step, of the mean over all positions that count, computed here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

BATCH = 16
"""Samples of a step, which are all samples: so they do not depend on their order."""
UNEVEN = [0, 0, 0, 0, 0, 0, 0, 0, 1, 32, 1, 1, 32, 32, 1, 32]
"""Positions of each sample of the step that count."""


class Expected(NamedTuple):
    """The mean over all positions that count, and its gradients in the order of AdamW's groups."""

    loss: float
    gradients: list[Tensor]

    @property
    def norm(self) -> float:
        """The global norm of the gradients."""
        return math.sqrt(sum(float(part.square().sum()) for part in self.gradients))


def expected(p: Any, counts: Sequence[int]) -> Expected:
    """Compute the gradient of the first step in fp64, without the training loop."""
    data = p.data.DataConfig(
        samples=BATCH,
        val_samples=2,
        counts=(*counts, 0, 0),
    )
    samples, _, spec = p.data.load(data)
    torch.manual_seed(0)
    net = p.model.build(p.model.ModelConfig(kind="counted", dropout=0), spec).double()
    inputs, targets, number = samples.tensors
    inputs = inputs[:, None] * torch.linspace(0.5, 1.5, 32)[:, None]
    scores = net.layers(inputs.double())[..., 0]
    signs = torch.where(targets > 0, 1, -1)[:, None]
    losses = torch.nn.functional.softplus(-2 * signs * scores)  # cross-entropy of (-score, score)
    counted = torch.arange(32) < number[:, None]
    loss = losses[counted].sum() / max(sum(counts), 1)
    loss.backward()
    weights = sorted(net.parameters(), key=lambda weight: weight.ndim < 2)
    return Expected(loss.item(), [weight.grad for weight in weights])


def options(counts: Sequence[int]) -> dict[str, str]:
    """Return the options of the data, for training samples with these counts."""
    listed = ",".join(
        map(
            str,
            [
                *counts,
                0,
                0,
            ],
        )
    )  # nothing counts in the validation
    return {"samples": str(BATCH), "val_samples": "2", "counts": f"[{listed}]"}


def gradients(optimizer: Mapping[str, Any]) -> list[Tensor]:
    """Return the gradients of a run's only step, from the state of its AdamW."""
    found = []
    for group in optimizer["param_groups"]:
        for number in group["params"]:
            state = optimizer["state"][number]
            size = (state["exp_avg_sq"].double() / (1 - group["betas"][1])).sqrt()
            found.append(state["exp_avg"].sign() * size)
    return found


def check(found: Sequence[Tensor], wanted: Expected, tolerance: float = 1e-6) -> None:
    """Compare gradients, relative to the largest one of their tensor."""
    for mine, other in zip(found, wanted.gradients, strict=True):
        error = (mine - other).abs().max().item()
        assert error <= tolerance * other.abs().max().item(), (
            f"off by {error}: {mine} is not {other}"
        )


def check_row(row: Mapping[str, float], wanted: Expected) -> None:
    """Compare the row of the step."""
    assert row["loss"] == pytest.approx(wanted.loss, rel=1e-6)
    assert row["grad_norm"] == pytest.approx(wanted.norm, rel=1e-6)
