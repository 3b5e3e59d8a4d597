"""CUDA graphs: what is refused, the update's formula, and on a GPU the losses of a run without graphs."""

import os
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

from ..components.cuda_graphs import CudaGraphs, CudaGraphsConfig, adamw_step
from ..distributed import World, find_device
from ..errors import UserError
from ..loader import BatchPlan
from ..log import Run
from ..optim import adamw
from .support import config, rows, train_here

ENABLED = "--cuda_graphs.enabled=true"


def test_run_without_cuda_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^cuda_graphs\.enabled needs a CUDA device: set it to false"
    ):
        train_here(tmp_path, ENABLED)


@pytest.mark.parametrize(
    ("options", "ranks", "message"),
    [
        ([], 2, "works in one process"),
        (["--speed.precision=fp16"], 1, "needs speed.precision=bf16, tf32 or fp32: fp16 waits"),
        (["--optim.fused=false"], 1, "needs AdamW with optim.fused=true"),
        (["--optim.amsgrad=true"], 1, "optim.amsgrad=false"),
        (
            ["--speed.compile=model", "--speed.compile_mode=reduce-overhead"],
            1,
            "CUDA graphs of its own",
        ),
        ([], 1, ""),
    ],
)
def test_what_cannot_be_captured_is_refused(
    tmp_path: Path, options: list[str], ranks: int, message: str
) -> None:
    cfg, model, world = (
        config(tmp_path, *options),
        nn.Linear(1, 1),
        World(0, ranks, torch.device("cuda", 0)),
    )
    plan = BatchPlan.make(cfg.train, 100, 1)
    run = Run(cfg, world, tmp_path, plan, model, adamw(model, cfg.optim), torch.Generator())
    component = CudaGraphs(CudaGraphsConfig(enabled=True), world)
    with mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)):
        if message:
            with pytest.raises(UserError, match=f"^cuda_graphs.enabled .*{message}"):
                component.on_train_start(run)
        else:
            component.on_train_start(run)


def test_update_with_momentum_on_the_device_is_that_of_adamw() -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape)) for shape in ((8, 4), (8,), (3, 8))]
    copies = [nn.Parameter(weight.detach().clone()) for weight in weights]
    mine, theirs = (
        torch.optim.AdamW(some, lr=1e-2, weight_decay=0.1, fused=True) for some in (weights, copies)
    )
    for number in range(20):
        for weight, copy in zip(weights, copies, strict=True):
            weight.grad = torch.randn_like(weight)
            copy.grad = weight.grad.clone()
        beta1 = 0.95 - 0.005 * number
        for group in (*mine.param_groups, *theirs.param_groups):
            group.update(lr=1e-2 / (number + 1), betas=(beta1, 0.999))
        adamw_step(mine, torch.tensor(beta1)) if number else mine.step()
        theirs.step()
    torch.testing.assert_close(weights, copies, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(
    not (torch.cuda.is_available() or os.environ.get("REQUIRE_GPU")), reason="needs a CUDA device"
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_captured_step_has_the_same_losses(tmp_path: Path, accumulate: int) -> None:
    world = World(0, 1, find_device("cuda"))
    options = ("--run.device=cuda", "--log.every=1", f"--train.accumulate={accumulate}")
    train_here(tmp_path / "eager", *options, world=world)
    with mock.patch.object(
        torch.cuda.CUDAGraph, "replay", autospec=True, side_effect=torch.cuda.CUDAGraph.replay
    ) as it:
        train_here(tmp_path / "graphs", *options, ENABLED, world=world)
    assert it.call_count == 12 * (accumulate + 1)
    for split in ("train", "val"):
        for row, other in zip(
            *(rows(tmp_path / name, split) for name in ("graphs", "eager")), strict=True
        ):
            assert row["loss"] == pytest.approx(other["loss"], rel=1e-3)
