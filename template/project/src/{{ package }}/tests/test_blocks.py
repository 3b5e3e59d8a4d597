"""Techniques that change blocks, on small networks of their own; and the device cache's limit."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import FlopCounterMode

from ..config import Config, SpeedConfig
from ..contracts import no_compile_reason
from ..distributed import World
from ..errors import UserError
from ..metrics import evaluate
from ..techniques import activation_checkpointing, device_cache, fp8
from ..train import train


def test_a_reason_not_to_compile_is_read_by_both_names() -> None:
    class Old(nn.Module):
        eager = "it is fast already"

    class New(nn.Module):
        no_compile_reason = "it is fast already"

    assert no_compile_reason(Old()) == no_compile_reason(New()) == "it is fast already"
    assert no_compile_reason(nn.Linear(1, 1)) == ""


class Attention(nn.Module):
    """A block with what is expensive, what is cheap, and what draws random numbers."""

    def __init__(self, attention_dropout: float, inplace: bool) -> None:
        super().__init__()
        self.linear, self.convolution = nn.Linear(8, 8), nn.Conv1d(8, 8, 1)
        self.norm, self.dropout, self.activation = nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(inplace)
        self.attention_dropout = attention_dropout

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.linear(x)).sigmoid()
        x = self.norm(self.convolution(self.dropout(x)))
        heads = x.reshape(4, 2, -1, 4)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=self.attention_dropout)
        y: Tensor = self.dropout(mixed.reshape(x.shape)).tanh()
        return y


class Attentions(nn.Module):
    """Two of these blocks."""

    def __init__(self, attention_dropout: float = 0.0, inplace: bool = False) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Attention(attention_dropout, inplace) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks(x)
        return y


@pytest.mark.parametrize("attention_dropout", [0.0, 0.5])
def test_expensive_operations_run_once_and_random_ones_alike(attention_dropout: float) -> None:
    torch.manual_seed(0)
    plain, flops, found = Attentions(attention_dropout), {}, {}
    inputs = torch.randn(4, 8, 8)
    for how in ("none", "ops", "blocks"):
        net = copy.deepcopy(plain)
        if how != "none":
            activation_checkpointing.apply(net, SpeedConfig(activation_checkpointing=how))
        torch.manual_seed(1)
        with FlopCounterMode(display=False) as counter:
            net(inputs).square().sum().backward()
        flops[how] = counter.get_total_flops()
        found[how] = [*net.buffers(), *(p.grad for p in net.parameters() if p.grad is not None)]
    assert flops["ops"] == flops["none"] < flops["blocks"]
    assert all(map(torch.equal, found["ops"], found["none"]))
    assert len(found["none"]) == 2 * (3 + 6)


def test_attention_is_saved_unless_it_draws_random_numbers() -> None:
    """On a CPU, attention with dropout consists of other operations."""
    attention: Any = torch.ops.aten._scaled_dot_product_flash_attention.default
    decide = activation_checkpointing._policy
    x = torch.randn(1, 2, 8, 4)
    assert decide(None, attention, x, x, x, 0.1, True) is CheckpointPolicy.PREFER_RECOMPUTE
    assert decide(None, attention, x, x, x, dropout_p=0.1) is CheckpointPolicy.PREFER_RECOMPUTE
    assert decide(None, attention, x, x, x, is_causal=True) is CheckpointPolicy.MUST_SAVE


def test_operations_in_place_are_refused_only_where_they_change_what_is_saved() -> None:
    net = Attentions(inplace=True)
    activation_checkpointing.apply(net, SpeedConfig(activation_checkpointing="ops"))
    with pytest.raises(UserError, match=r"^speed.activation_checkpointing=ops: an operation in place"):
        net(torch.randn(4, 8, 8)).sum().backward()
    with pytest.raises(UserError, match="the compiler chooses the operations itself; use budget:0.5"):
        activation_checkpointing.apply(net, SpeedConfig(activation_checkpointing="ops", compile="blocks"))


def test_recomputed_dropout_is_identical() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.BatchNorm1d(64))])

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.blocks[0](x)
            return y

    torch.manual_seed(0)
    plain = Net()
    checkpointed = copy.deepcopy(plain)
    activation_checkpointing.apply(checkpointed, SpeedConfig(activation_checkpointing="blocks"))
    inputs = torch.randn(4, 8)
    for net in (plain, checkpointed):
        torch.manual_seed(1)
        net(inputs).square().sum().backward()
    for ours, theirs in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, checkpointed.state_dict()[name]), "statistics are updated once"


def test_memory_budget_reaches_the_compiler() -> None:
    import torch._functorch.config as compiler

    with compiler.patch(activation_memory_budget=1.0):  # which restores it, unlike monkeypatch
        options = SpeedConfig(activation_checkpointing="budget:0.25", compile="model")
        activation_checkpointing.apply(nn.Module(), options)
        assert compiler.activation_memory_budget == 0.25


def test_cache_larger_than_memory_is_refused(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_cache, "_free", lambda device: 1000)
    with pytest.raises(UserError, match=r"data.cache is 'device': the samples take .* GB, and cpu has 0.00 GB free"):
        train(config("--run.name=a", "--data.cache=device"), world)
    assert not (tmp_path / "a").exists()


def test_fp8_converts_matching_layers_agrees_with_bf16_and_is_validated() -> None:
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 40), nn.Linear(40, 16))
            self.head = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(self.blocks(x))
            return y

    net, inputs = Net(), torch.randn(64, 32)
    names = list(net.state_dict())
    with torch.autocast("cpu", torch.bfloat16):
        before = net(inputs)
    fp8.convert(net, emulate=True)
    kinds = [type(layer).__name__ for layer in [*net.blocks, net.head]]
    assert kinds == ["Float8Linear", "GELU", "Linear", "Linear", "Linear"]
    with torch.autocast("cpu", torch.bfloat16):
        after = net(inputs)
    after.sum().backward()
    assert list(net.state_dict()) == names
    assert {p.grad.dtype for p in net.parameters() if p.grad is not None} == {torch.float32}
    difference = ((after - before).norm() / before.norm()).item()
    assert 0 < difference < 0.1

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
            assert not torch.is_grad_enabled(), "the graph would take memory"
            loss = self.net(x).mean()
            return loss, {"loss": (loss.detach() * len(x), len(x))}

    autocast = torch.autocast("cpu", torch.bfloat16)
    found = evaluate(Loss(), [(inputs,)], lambda batch, *_: batch, autocast, World(0, 1, torch.device("cpu")))
    assert found["loss"] == pytest.approx(after.mean().item(), abs=1e-3)
    net.blocks = nn.Sequential(nn.Linear(10, 10))
    with pytest.raises(UserError, match="multiples of 16, and there are none: use bf16"):
        fp8.convert(net)
