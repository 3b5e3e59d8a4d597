"""The LSTM: parameter counts, initialization, causality, metrics, and the path of GPUs in bf16."""

from typing import Any, Literal

import pytest
import torch
from torch import nn

from ..data import Spec
from ..model import Forecaster, Language, ModelConfig, build, in_bf16

TEXT = Spec(vocabulary=256, context=32)
SERIES = Spec(
    vocabulary=0, context=20, horizon=5, columns=("a", "b"), mean=(0.0, 0.0), std=(1.0, 5.0)
)


@pytest.mark.parametrize(("size", "depth", "width"), [("small", 2, 96), ("base", 3, 640)])
def test_parameter_counts_are_those_of_the_layers(
    size: Literal["small", "base"], depth: int, width: int
) -> None:
    with torch.device("meta"):
        net = build(ModelConfig(size=size), TEXT)
    # four gates with two matrices and two biases; a norm
    layer = 4 * width * (2 * width + 2) + 2 * width
    assert (
        sum(parameter.numel() for parameter in net.parameters())
        == 256 * width + depth * layer + 2 * width
    )


def test_forget_gates_start_open_and_recurrent_weights_orthogonal() -> None:
    block: Any = build(ModelConfig(width=32), TEXT).blocks[0]
    biases = block.lstm.bias_ih_l0 + block.lstm.bias_hh_l0
    assert biases.view(4, 32).unique(dim=1).flatten().tolist() == [0, 1, 0, 0]
    for gate in block.lstm.weight_hh_l0.split(32):
        torch.testing.assert_close(gate @ gate.T, torch.eye(32))


def test_predictions_depend_on_all_earlier_tokens_and_on_no_later_one() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), TEXT).eval()
    tokens = torch.randint(0, 256, (2, 32))
    changed = tokens.clone()
    changed[:, 20] = (tokens[:, 20] + 1) % 256
    with torch.no_grad():
        original, other = net.predict(tokens), net.predict(changed)
    torch.testing.assert_close(original[:, :20], other[:, :20])
    assert not torch.equal(original[:, -1], other[:, -1])


def test_the_copy_of_the_weights_in_bf16_has_the_outputs_and_gradients_of_the_weights() -> None:
    """The path of GPUs in bf16, shown on the CPU, where torch has such a layer as well."""
    torch.manual_seed(0)
    lstm = nn.LSTM(32, 16, batch_first=True)
    x = torch.randn(3, 20, 32)
    found, expected = in_bf16(lstm, x), lstm(x)[0]
    direction = torch.randn_like(expected)
    torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0)
    gradients = [
        torch.autograd.grad((states * direction).sum(), list(lstm.parameters()))
        for states in (found, expected)
    ]
    for mine, its in zip(*gradients, strict=True):
        assert (mine - its).norm() < 0.02 * its.norm()


def test_untrained_models_predict_uniformly_or_repeat_the_last_row() -> None:
    torch.manual_seed(0)
    text, series = build(ModelConfig(), TEXT), build(ModelConfig(), SERIES)
    assert isinstance(text, Language)
    assert isinstance(series, Forecaster)
    tokens, rows = torch.randint(0, 256, (8, 33)), torch.randn(3, 20, 2)
    total, count = text(tokens[:, :-1], tokens[:, 1:])[1]["bits_per_byte"]
    assert float(total) / count == pytest.approx(8, abs=0.5)
    assert torch.equal(series.predict(rows), rows[:, -1:].expand(3, 5, 2))


def test_forecast_metrics_have_their_definitions() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(width=8), SERIES)
    rows, targets = torch.randn(6, 20, 2), torch.randn(6, 5, 2)
    nn.init.normal_(net.head.weight, std=0.1)
    loss, metrics = net(rows, targets)
    found = {name: float(total) / float(count) for name, (total, count) in metrics.items()}
    error, naive = net.predict(rows).detach() - targets, rows[:, -1:] - targets
    assert found["loss"] == pytest.approx(float(error.square().mean()), rel=1e-5)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert found["skill"] == pytest.approx(
        1 - float(error.square().sum() / naive.square().sum()), abs=1e-5
    )
    assert found["mae"] == pytest.approx(
        float((error.abs() * torch.tensor([1.0, 5.0])).mean()), rel=1e-5
    )
