"""Options of DDP: gradients in bf16, and what cannot be enabled together.

`test_component.py` trains on two ranks.
"""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from engine import MakePackage, equal, rows, saved
from torch import nn


def test_gradients_are_averaged_in_bf16(package: MakePackage, tmp_path: Path) -> None:
    """In a group of one rank, the average is the gradient itself, rounded."""
    p = package("mlp", "ddp-options", "fsdp")
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    inputs = torch.randn(5, 4)
    model(inputs).square().sum().backward()
    expected = [
        parameter.grad.bfloat16().float()
        for parameter in model.parameters()
        if parameter.grad is not None
    ]
    model.zero_grad()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        cfg = p.components.ddp_options.DdpOptionsConfig(enabled=True, bf16_gradients=True)
        world = p.distributed.World(0, 2, torch.device("cpu"))
        net = (
            p.components.ddp_options.DdpOptions(cfg, world)
            .parallelize(model, p.options(), world)
            .net
        )
        net(inputs).square().sum().backward()
    finally:
        dist.destroy_process_group()
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert equal(found, expected)


def test_fsdp_is_refused_by_name(package: MakePackage) -> None:
    p = package("mlp", "ddp-options", "fsdp")
    cfg = p.options("--ddp_options.enabled=true", "--fsdp.enabled=true")
    components = p.components.build_components(
        cfg,
        p.distributed.World(
            0,
            2,
            torch.device("cpu"),
        ),
    )
    with pytest.raises(
        p.errors.UserError, match="ddp_options.enabled and fsdp.enabled exclude each other"
    ):
        components.check(cfg, ())


def test_one_process_trains_as_without(package: MakePackage, tmp_path: Path) -> None:
    p = package("mlp", "ddp-options", "fsdp")
    options = [
        "--ddp_options.static_graph=true",
        "--ddp_options.bf16_gradients=true",
        "--ddp_options.enabled=true",
    ]
    p.train_here(tmp_path / "plain", "--train.steps=3")
    p.train_here(tmp_path / "options", "--train.steps=3", *options)
    assert rows(tmp_path / "options") == rows(tmp_path / "plain")
    assert equal(saved(tmp_path / "options")["model"], saved(tmp_path / "plain")["model"])
