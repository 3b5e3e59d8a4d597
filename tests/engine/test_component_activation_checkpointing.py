"""What activation checkpointing computes twice, random numbers, statistics, ranks, copies."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, Package, equal, rows, saved
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import FlopCounterMode

MODES: list[dict[str, Any]] = [
    {"mode": "blocks"},
    {"mode": "ops"},
    {"mode": "blocks", "every": 2},
]


class Mixed(nn.Module):
    """A block with what is expensive, what is cheap, and what draws random numbers."""

    def __init__(self, attention_dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.convolution = nn.Conv1d(8, 8, 1)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)
        self.cumulative = nn.BatchNorm1d(8, momentum=None)
        self.attention_dropout = attention_dropout

    def forward(self, x: Tensor) -> Tensor:
        x = self.cumulative(self.linear(x).sigmoid())
        x = self.norm(self.convolution(self.dropout(x)))
        heads = x.reshape(4, 2, -1, 4)
        mixed = nn.functional.scaled_dot_product_attention(
            heads, heads, heads, dropout_p=self.attention_dropout
        )
        found: Tensor = self.dropout(mixed.reshape(x.shape)).tanh()
        return found


class Net(nn.Module):
    """Three of these blocks."""

    def __init__(self, attention_dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Mixed(attention_dropout) for _ in range(3)))
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.blocks(x))
        return found


@pytest.fixture
def convert(package: MakePackage) -> Callable[..., nn.Module]:
    """Return a function that applies the component to a copy of a network."""
    p: Package = package("mlp", "activation-checkpointing")

    def apply(net: nn.Module, **options: Any) -> nn.Module:
        module = p.components.activation_checkpointing
        cfg = module.ActivationCheckpointingConfig(enabled=True, **options)
        world = p.distributed.World(0, 1, torch.device("cpu"))
        converted: nn.Module = module.ActivationCheckpointing(cfg, world).convert_model(
            copy.deepcopy(net)
        )
        return converted

    return apply


def trained(net: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of a step, the buffers, and the next random number."""
    torch.manual_seed(1)
    net(torch.randn(4, 8, 8)).square().sum().backward()
    found = {name: p.grad for name, p in net.named_parameters() if p.grad is not None} | dict(
        net.named_buffers()
    )
    return found | {"random": torch.rand(())}


def counted(net: nn.Module) -> tuple[int, dict[str, Tensor]]:
    """Return the FLOPs of a step, and its results."""
    with FlopCounterMode(display=False) as counter:
        found = trained(net)
    return counter.get_total_flops(), found


@pytest.mark.parametrize("attention_dropout", [0.0, 0.5])
def test_gradients_and_statistics_are_equal_to_the_bit(
    convert: Callable[..., nn.Module], attention_dropout: float
) -> None:
    torch.manual_seed(0)
    net = Net(attention_dropout)
    flops, expected = counted(copy.deepcopy(net))
    assert len(expected) == 3 * (4 + 4 + 2 * 3) + 2 + 1
    every_flops = []
    for options in MODES:
        converted = convert(net, **options)
        assert list(converted.state_dict()) == list(net.state_dict())
        used, found = counted(converted)
        every_flops.append(used)
        assert equal(found, expected)
    blocks, ops, every_second = every_flops
    assert ops == flops < every_second < blocks, "only `ops` repeats no matrix product"


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch.compile reads it
@pytest.mark.parametrize("options", MODES[:2])
def test_compiled_blocks_have_the_same_gradients(
    convert: Callable[..., nn.Module], options: dict[str, Any]
) -> None:
    """With the compiler's graphs in eager mode, which takes seconds less than to generate code."""
    torch.manual_seed(0)
    net = Net()
    for block in net.blocks:
        # torch cannot compile None
        setattr(block.get_submodule("cumulative"), "momentum", 0.1)  # noqa: B010
    expected = trained(copy.deepcopy(net))
    converted = convert(net, **options)
    for block in converted.get_submodule("blocks").children():
        block.compile(backend="aot_eager", dynamic=False, fullgraph=True)
    found = trained(converted)
    torch.testing.assert_close(found, expected)


def test_blocks_with_an_lstm_work_where_it_writes_into_products(
    convert: Callable[..., nn.Module],
) -> None:
    """As in float64, or in a build of torch without oneDNN."""
    net = nn.Sequential()
    net.blocks = nn.ModuleList([nn.LSTM(8, 8)])
    inputs = torch.randn(4, 3, 8, dtype=torch.float64)
    gradients = []
    for model in (copy.deepcopy(net), convert(net, mode="ops")):
        model.double().get_submodule("blocks.0")(inputs)[0].sum().backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    assert equal(*gradients)


def test_evaluation_with_gradients_keeps_the_statistics(convert: Callable[..., nn.Module]) -> None:
    net = convert(Net()).eval()
    before = {name: value.clone() for name, value in net.named_buffers()}
    net(torch.randn(4, 8, 8)).sum().backward()
    assert equal(dict(net.named_buffers()), before)


def test_copy_has_weights_of_its_own(convert: Callable[..., nn.Module]) -> None:
    net = convert(Net()).eval()
    inputs = torch.randn(4, 8, 8)
    expected = net(inputs)
    other = copy.deepcopy(net)
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(net(inputs), expected)
    assert not other(inputs).any()


def test_attention_is_kept_unless_it_draws_random_numbers(package: MakePackage) -> None:
    """On a CPU, attention with dropout consists of other operations."""
    policy = package("mlp", "activation-checkpointing").components.activation_checkpointing._policy
    flash: Any = torch.ops.aten._scaled_dot_product_flash_attention.default
    x = torch.randn(1, 2, 8, 4)
    assert policy(None, flash, x, x, x, 0.1, True) is CheckpointPolicy.PREFER_RECOMPUTE
    assert policy(None, flash, x, x, x, dropout_p=0.1) is CheckpointPolicy.PREFER_RECOMPUTE
    assert policy(None, flash, x, x, x, is_causal=True) is CheckpointPolicy.MUST_SAVE
    assert policy(None, torch.ops.aten.mm.default, x, x) is CheckpointPolicy.MUST_SAVE
    assert policy(None, torch.ops.aten.relu.default, x) is CheckpointPolicy.PREFER_RECOMPUTE


def test_memory_budget_wraps_what_is_compiled(
    convert: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[float] = []

    class Region:
        def __init__(self, budget: float) -> None:
            entered.append(budget)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(
        torch.autograd.graph, "region_activation_memory_budget", Region, raising=False
    )
    net = convert(Net(), mode="budget", budget=0.25)
    net(torch.randn(4, 8, 8))
    assert entered == []
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    net(torch.randn(4, 8, 8))
    assert entered == [0.25] * 4, "the model and its three blocks"


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", ["false", "true"])
def test_two_ranks_train_as_without(package: MakePackage, tmp_path: Path, fsdp: str) -> None:
    p = package("mlp", "activation-checkpointing", "fsdp")
    options = [
        "--train.steps=4",
        "--train.eval_every=4",
        "--train.gradient_accumulation_steps=2",
        f"--fsdp.enabled={fsdp}",
    ]
    p.finish(tmp_path / "plain", *options, ranks=2)
    p.finish(tmp_path / "recomputed", *options, "--activation_checkpointing.enabled=true", ranks=2)
    assert rows(tmp_path / "recomputed") == rows(tmp_path / "plain")
    if fsdp == "false":
        assert equal(saved(tmp_path / "recomputed")["model"], saved(tmp_path / "plain")["model"])
