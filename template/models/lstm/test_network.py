"""The LSTM: its sizes, its first weights, what it sees of text, and a series that it learns to forecast."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from .. import data
from ..config import parse
from ..data import Spec
from ..distributed import World
from ..errors import UserError
from ..model import Forecaster, Language, ModelConfig, build
from ..train import train
from .conftest import FP32_ON_CPU, ROOT

TEXT = Spec(vocabulary=256, context=32)
SERIES = Spec(vocabulary=0, context=20, horizon=5, columns=("a", "b"), mean=(0.0, 0.0), std=(1.0, 1.0))


@pytest.mark.parametrize(("size", "depth", "width"), [("small", 2, 96), ("base", 3, 640)])
def test_sizes_have_the_counts_of_their_layers(size: Literal["small", "base"], depth: int, width: int) -> None:
    with torch.device("meta"):
        net = build(ModelConfig(size=size), Spec(vocabulary=50257, context=256))
    layer = 4 * width * (2 * width + 2) + 2 * width  # four gates with two matrices and two biases; a norm
    assert sum(parameter.numel() for parameter in net.parameters()) == 50304 * width + depth * layer + 2 * width
    assert net.predict(torch.zeros(1, 16, dtype=torch.int64, device="meta")).shape == (1, 16, 50257)


def test_forget_gates_begin_open_and_recurrent_weights_orthogonal() -> None:
    block: Any = build(ModelConfig(width=32), TEXT).blocks[0]
    biases = block.lstm.bias_ih_l0 + block.lstm.bias_hh_l0
    assert biases.view(4, 32).unique(dim=1).flatten().tolist() == [0, 1, 0, 0]
    for gate in block.lstm.weight_hh_l0.split(32):
        torch.testing.assert_close(gate @ gate.T, torch.eye(32))


def test_a_place_sees_nothing_that_comes_after() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(depth=2), TEXT).eval()
    tokens = torch.randint(0, 256, (2, 32))
    changed = tokens.clone()
    changed[:, 20:] = torch.randint(0, 256, (2, 12))
    with torch.no_grad():
        ours, theirs = net.predict(tokens), net.predict(changed)
    torch.testing.assert_close(ours[:, :20], theirs[:, :20])
    assert not torch.allclose(ours[:, 20:], theirs[:, 20:])
    with torch.no_grad():
        later = net.predict(torch.cat([changed[:, :1], tokens[:, 1:]], dim=1))
    changed[:, 0] = (tokens[:, 0] + 1) % 256
    with torch.no_grad():
        other = net.predict(torch.cat([changed[:, :1], tokens[:, 1:]], dim=1))
    assert not torch.equal(later[:, -1], other[:, -1])  # and all of what came before


def test_the_untrained_text_model_guesses_and_the_forecaster_repeats_the_last_row() -> None:
    torch.manual_seed(0)
    text, series = build(ModelConfig(), TEXT), build(ModelConfig(), SERIES)
    assert isinstance(text, Language)
    assert isinstance(series, Forecaster)
    tokens = torch.randint(0, 256, (8, 33))
    total, count = text(tokens[:, :-1], tokens[:, 1:])[1]["bits_per_byte"]
    assert float(total) / count == pytest.approx(8, abs=0.5)
    rows = torch.randn(3, 20, 2)
    assert torch.equal(series.predict(rows), rows[:, -1:].expand(3, 5, 2))
    gained, naive = series(rows, torch.randn(3, 5, 2))[1]["skill"]
    assert float(gained) == 0
    assert float(naive) > 0


def test_the_forecasters_metrics_are_what_they_are_called() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(width=8), SERIES)
    torch.nn.init.normal_(net.head.weight, std=0.1)
    rows, targets = torch.randn(6, 20, 2), torch.randn(6, 5, 2)
    loss, metrics = net(rows, targets)
    found = {name: float(total) / float(count) for name, (total, count) in metrics.items()}
    forecast, last = net.predict(rows).detach(), rows[:, -1:].expand(6, 5, 2)
    errors = [sum((guess - targets).square().flatten().tolist()) for guess in (forecast, last)]
    assert found["skill"] == pytest.approx(1 - errors[0] / errors[1], abs=1e-5)
    assert found["loss"] == pytest.approx(errors[0] / 60) == pytest.approx(loss.item())
    assert found["mae"] == pytest.approx((forecast - targets).abs().mean().item())


def test_it_learns_when_a_nerve_cell_fires(tmp_path: Path, world: World) -> None:
    """By the options that configs/default.yaml gives; what the last value alone can tell has a skill of 0.54."""
    short = ["--train.steps=400", "--train.eval_every=200", "--optim.lr=3e-3"]
    options = ["--data.kind=series", "--model.width=64", *short, *FP32_ON_CPU]
    recipe = [f"--config={ROOT}/configs/default.yaml", *options]
    cfg = parse("test", "", [*recipe, f"--run.dir={tmp_path}", "--run.name=series", "--log.tensorboard=false"])
    samples = data.load(cfg.data)
    (rows,) = samples.val.__getitems__(list(range(len(samples.val))))
    seen, coming = data.Prepare(samples.spec, cfg.data)((rows,), False, torch.Generator())
    last = torch.stack([seen[:, -1, 0], torch.ones(len(seen))], dim=1)
    missed = (coming[..., 0] - last @ torch.linalg.lstsq(last, coming[..., 0]).solution).square().sum()
    by_last = 1 - missed / (seen[:, -1:] - coming).square().sum()
    assert 0.5 < by_last < 0.56
    assert train(cfg, world)["skill"] > 0.68


@pytest.mark.parametrize(("values", "key"), [({"width": 12}, "width"), ({"dropout": 1.0}, "dropout")])
def test_sizes_that_cannot_be(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)
