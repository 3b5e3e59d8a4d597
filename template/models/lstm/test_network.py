"""The LSTM: parameter counts, initialization, causality, metrics, and a forecast of the built-in series.

Delete this file together with the example's model.py: nothing else needs it.
"""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from .. import data
from ..config import parse
from ..data import Spec
from ..distributed import World
from ..errors import UserError
from ..model import Forecaster, Language, ModelConfig, build, in_bf16
from ..train import train
from .conftest import FP32_ON_CPU, ROOT

pytestmark = pytest.mark.fast

TEXT = Spec(vocabulary=256, context=32)
SERIES = Spec(vocabulary=0, context=20, horizon=5, columns=("a", "b"), mean=(0.0, 0.0), std=(1.0, 5.0))


@pytest.mark.parametrize(("size", "depth", "width"), [("small", 2, 96), ("base", 3, 640)])
def test_parameter_counts_are_those_of_the_layers(size: Literal["small", "base"], depth: int, width: int) -> None:
    with torch.device("meta"):
        net = build(ModelConfig(size=size), Spec(vocabulary=50257, context=256))
    layer = 4 * width * (2 * width + 2) + 2 * width  # four gates with two matrices and two biases; a norm
    assert sum(parameter.numel() for parameter in net.parameters()) == 50304 * width + depth * layer + 2 * width
    assert net.predict(torch.zeros(1, 16, dtype=torch.int64, device="meta")).shape == (1, 16, 50257)


def test_forget_gates_start_open_and_recurrent_weights_orthogonal() -> None:
    block: Any = build(ModelConfig(width=32), TEXT).blocks[0]
    biases = block.lstm.bias_ih_l0 + block.lstm.bias_hh_l0
    assert biases.view(4, 32).unique(dim=1).flatten().tolist() == [0, 1, 0, 0]
    for gate in block.lstm.weight_hh_l0.split(32):
        torch.testing.assert_close(gate @ gate.T, torch.eye(32))


def test_predictions_do_not_depend_on_later_tokens() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(depth=2), TEXT).eval()
    tokens = torch.randint(0, 256, (2, 32))
    changed = tokens.clone()
    changed[:, 20:] = torch.randint(0, 256, (2, 12))
    with torch.no_grad():
        original, other = net.predict(tokens), net.predict(changed)
    torch.testing.assert_close(original[:, :20], other[:, :20])
    assert not torch.allclose(original[:, 20:], other[:, 20:])
    with torch.no_grad():
        later = net.predict(torch.cat([changed[:, :1], tokens[:, 1:]], dim=1))
    changed[:, 0] = (tokens[:, 0] + 1) % 256
    with torch.no_grad():
        other = net.predict(torch.cat([changed[:, :1], tokens[:, 1:]], dim=1))
    assert not torch.equal(later[:, -1], other[:, -1])  # but on all earlier tokens


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}], ids=str)
def test_copy_of_the_weights_in_bf16_has_the_outputs_and_gradients_of_the_weights(options: Any) -> None:
    """The path of GPUs in bf16, shown on the CPU, where torch has such a layer as well."""
    torch.manual_seed(0)
    lstm = nn.LSTM(32, 16, batch_first=True, **options)
    x = torch.randn(3, 20, 32)
    found, expected = in_bf16(lstm, x), lstm(x)[0]
    direction = torch.randn_like(expected)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0)
    weights = list(lstm.parameters())
    gradients = [torch.autograd.grad((states * direction).sum(), weights) for states in (found, expected)]
    for mine, its in zip(*gradients, strict=True):
        assert (mine - its).norm() < 0.02 * its.norm()


def test_norms_run_under_autocast() -> None:
    """On a GPU the kernel of a norm takes no bf16 with fp32 weights, as the series' first layer returns it."""
    seen: list[bool] = []
    net: Any = build(ModelConfig(), SERIES)
    for block in net.blocks:
        block.norm.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    with torch.autocast("cpu", torch.float16):  # which no LSTM kernel of a CPU supports
        net.predict(torch.randn(3, 20, 2))
    assert seen == [True, True]


def test_untrained_models_predict_uniformly_or_repeat_the_last_row() -> None:
    torch.manual_seed(0)
    text, series = build(ModelConfig(), TEXT), build(ModelConfig(), SERIES)
    assert isinstance(text, Language)
    assert isinstance(series, Forecaster)
    tokens = torch.randint(0, 256, (8, 33))
    total, count = text(tokens[:, :-1], tokens[:, 1:])[1]["bits_per_byte"]
    assert float(total) / count == pytest.approx(8, abs=0.5)
    rows = torch.randn(3, 20, 2)
    assert torch.equal(series.predict(rows), rows[:, -1:].expand(3, 5, 2))
    reduction, naive = series(rows, torch.randn(3, 5, 2))[1]["skill"]
    assert float(reduction) == 0
    assert float(naive) > 0


def test_padding_of_the_vocabulary_is_neither_trained_nor_counted() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(label_smoothing=0.1), Spec(vocabulary=65, context=32))
    assert isinstance(net, Language)
    tokens, targets = torch.randint(0, 65, (2, 4, 32))
    logs = net.predict(tokens).log_softmax(-1)
    own, mean = logs.gather(-1, targets.unsqueeze(-1)).mean(), logs.mean()
    loss, _ = net(tokens, targets)
    torch.testing.assert_close(loss, -(0.9 * own + 0.1 * mean))
    loss.backward()
    gradient = net.head.weight.grad
    assert gradient is not None
    assert not gradient[65:].any()
    nats, count = net.eval()(tokens, targets)[1]["loss"]
    torch.testing.assert_close(nats / count, -own)


def test_forecast_metrics_have_their_definitions() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(width=8), SERIES)
    torch.nn.init.normal_(net.head.weight, std=0.1)
    rows, targets = torch.randn(6, 20, 2), torch.randn(6, 5, 2)
    loss, metrics = net(rows, targets)
    found = {name: float(total) / float(count) for name, (total, count) in metrics.items()}
    forecast, last = net.predict(rows).detach(), rows[:, -1:].expand(6, 5, 2)
    errors = [sum((prediction - targets).square().flatten().tolist()) for prediction in (forecast, last)]
    assert found["skill"] == pytest.approx(1 - errors[0] / errors[1], abs=1e-5)
    assert found["loss"] == pytest.approx(errors[0] / 60) == pytest.approx(loss.item())
    assert found["mae"] == pytest.approx(((forecast - targets).abs() * torch.tensor([1.0, 5.0])).mean().item())


def test_recipe_forecasts_the_built_in_series(tmp_path: Path, world: World) -> None:
    """With the options in configs/default.yaml; the best linear forecast from the last value has a skill of 0.54."""
    short = ["--train.steps=400", "--train.eval_every=200", "--optim.lr=3e-3"]
    options = ["--data.kind=series", "--model.width=64", *short, *FP32_ON_CPU]
    recipe = [f"--config={ROOT}/configs/default.yaml", *options]
    cfg = parse("test", "", [*recipe, f"--run.dir={tmp_path}", "--run.name=series"])
    samples = data.load(cfg.data)
    (rows,) = samples.val.__getitems__(list(range(len(samples.val))))
    inputs, targets = data.Prepare(samples.spec, cfg.data)((rows,), False, torch.Generator())
    last = torch.stack([inputs[:, -1, 0], torch.ones(len(inputs))], dim=1)
    error = (targets[..., 0] - last @ torch.linalg.lstsq(last, targets[..., 0]).solution).square().sum()
    linear_skill = 1 - error / (inputs[:, -1:] - targets).square().sum()
    assert 0.5 < linear_skill < 0.56
    assert train(cfg, world)["skill"] > 0.68


@pytest.mark.parametrize(("values", "key"), [({"width": 12}, "width"), ({"dropout": 1.0}, "dropout")])
def test_invalid_sizes_are_an_error(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)
