"""The LSTM: autocast formats that its kernels lack."""

from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layers_run_in_fp32_under_autocast_on_a_cpu_and_norms_under_autocast(
    package: Callable[[str], Any], dtype: torch.dtype
) -> None:
    project = package("lstm")
    spec = project.data.Spec(
        vocabulary=0, context=20, horizon=5, columns=("a", "b"), mean=(0.0, 0.0), std=(1.0, 5.0)
    )
    torch.manual_seed(0)
    net = project.model.build(project.model.ModelConfig(), spec)
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


def test_the_reason_not_to_compile_is_a_text(package: Callable[[str], Any]) -> None:
    project = package("lstm")
    net = project.model.build(
        project.model.ModelConfig(), project.data.Spec(vocabulary=256, context=32)
    )
    assert net.no_compile_reason.startswith("torch.compile does not trace nn.LSTM")
