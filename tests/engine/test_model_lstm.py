"""The LSTM: autocast formats that its kernels lack."""

from typing import Any

import pytest
import torch
from engine import Package
from torch import nn

MODEL = "lstm"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layers_run_in_fp32_under_autocast_on_a_cpu_and_norms_under_autocast(
    p: Package, dtype: torch.dtype
) -> None:
    spec = p.data.Spec(
        vocabulary=0, context=20, horizon=5, columns=("a", "b"), mean=(0.0, 0.0), std=(1.0, 5.0)
    )
    torch.manual_seed(0)
    net = p.model.build(p.model.ModelConfig(), spec)
    seen: list[Any] = []
    for block in net.blocks:
        block.norm.register_forward_pre_hook(
            lambda *_: seen.append(torch.is_autocast_enabled("cpu"))
        )
        block.lstm.register_forward_hook(
            lambda layer, inputs, outputs: seen.append(outputs[0].dtype)
        )
    rows = torch.randn(3, 20, 2)
    with torch.autocast("cpu", dtype):
        forecast = net.predict(rows)
    assert seen == [True, torch.float32] * 2
    assert forecast.dtype == torch.float32


def test_forget_gates_start_open_and_recurrent_weights_orthogonal(
    p: Package,
) -> None:
    spec = p.data.Spec(vocabulary=256, context=32)
    lstm = p.model.build(p.model.ModelConfig(width=32), spec).blocks[0].lstm
    biases = lstm.bias_ih_l0 + lstm.bias_hh_l0
    assert biases.view(4, 32).unique(dim=1).flatten().tolist() == [0, 1, 0, 0]
    for gate in lstm.weight_hh_l0.split(32):
        torch.testing.assert_close(gate @ gate.T, torch.eye(32))


def test_the_copy_of_the_weights_in_bf16_has_the_outputs_and_gradients_of_the_weights(
    p: Package,
) -> None:
    """The path of GPUs in bf16, shown on the CPU, where torch has such a layer as well."""
    torch.manual_seed(0)
    lstm = nn.LSTM(32, 16, batch_first=True)
    x = torch.randn(3, 20, 32)
    states = p.model.in_bf16(lstm, x)
    expected = lstm(x)[0]
    direction = torch.randn_like(expected)
    torch.testing.assert_close(
        states.float(),
        expected,
        atol=0.02,
        rtol=0,
    )
    gradients = [
        torch.autograd.grad((output * direction).sum(), list(lstm.parameters()))
        for output in (states, expected)
    ]
    for mine, its in zip(*gradients, strict=True):
        assert (mine - its).norm() < 0.02 * its.norm()
