"""Regional compilation: how often the blocks are compiled, and what is refused."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from engine import MakePackage, Package
from torch import Tensor, nn


class Wide(nn.Module):
    """A block of a certain inner width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen = nn.Linear(4, width)
        self.narrow = nn.Linear(width, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.dropout(self.narrow(self.widen(x).relu()))
        return found


class Net(nn.Module):
    """Blocks of these widths."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(map(Wide, widths))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def p(package: MakePackage) -> Package:
    found: Package = package("mlp", "regional-compile")
    return found


def compilations(p: Package, net: Net) -> int:
    """Compile the blocks.

    Return the number of graphs after a training step and two batches of a validation.
    """
    graphs: list[Any] = []

    def note(graph: torch.fx.GraphModule, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    module = p.components.regional_compile
    component = module.RegionalCompile(module.RegionalCompileConfig(enabled=True), None)
    names = list(net.state_dict())
    traced = partial(torch.compile, backend=note, fullgraph=True)
    with mock.patch.object(
        torch, "compile", side_effect=lambda call, **_: traced(call, dynamic=False)
    ):
        component.on_train_start(SimpleNamespace(cfg=p.options(), model=net))
    assert list(net.state_dict()) == names
    net(torch.randn(6, 4, requires_grad=True)).sum().backward()
    with torch.inference_mode():
        net.eval()(torch.randn(6, 4))
        net(torch.randn(5, 4))
    return len(graphs)


def test_equal_blocks_are_compiled_once(p: Package) -> None:
    assert compilations(p, Net(*[5] * 7, *[6] * 7)) == 2 * 3


def test_many_kinds_of_blocks_are_all_compiled(p: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, torch fails, or uses eager mode, after it compiled a function eight times."""
    torch.compiler.config.recompile_limit = 8
    assert compilations(p, Net(*range(1, 13))) == 12 * 3


def test_mode_with_cuda_graphs_is_refused(p: Package, tmp_path: Path) -> None:
    with pytest.raises(
        p.errors.UserError,
        match="speed.compile_mode is max-autotune: the CUDA graphs of the blocks",
    ):
        p.train_here(
            tmp_path, "--regional_compile.enabled=true", "--speed.compile_mode=max-autotune"
        )


def test_blocks_that_torch_compile_skips_are_refused(p: Package) -> None:
    module = p.components.regional_compile
    component = module.RegionalCompile(module.RegionalCompileConfig(enabled=True), None)
    net = Net(8)
    assert component.convert_model(net) is net
    net.blocks.append(nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(p.errors.UserError, match="blocks of Sequential, which torch.compile skips"):
        component.convert_model(net)
