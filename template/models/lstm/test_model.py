"""The LSTM: causality, the first predictions, and metrics of forecasts."""

import pytest
import torch

from ..data import Spec
from ..model import Forecaster, ModelConfig, build

TEXT = Spec(vocabulary=256, context=32)
SERIES = Spec(
    vocabulary=0,
    context=20,
    horizon=5,
    columns=("a", "b"),
    mean=(0.0, 0.0),
    std=(1.0, 5.0),
)


@pytest.fixture
def forecaster() -> Forecaster:
    torch.manual_seed(0)
    net = build(ModelConfig(), SERIES)
    assert isinstance(net, Forecaster)
    return net


def test_predictions_do_not_depend_on_later_tokens() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), TEXT)
    tokens = torch.randint(0, 256, (2, 32))
    changed = tokens.clone()
    changed[:, 20] = 255 - tokens[:, 20]
    logits = net.predict(tokens)
    others = net.predict(changed)
    torch.testing.assert_close(
        logits[:, :20],
        others[:, :20],
    )
    assert not torch.equal(logits[:, -1], others[:, -1])


def test_untrained_loss_is_that_of_a_uniform_prediction() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), TEXT)
    tokens = torch.randint(0, 256, (8, 33))
    _, metrics = net(
        tokens[:, :-1],
        tokens[:, 1:],
    )
    total, count = metrics["bits_per_byte"]
    assert total.item() / count == pytest.approx(8, abs=0.5)


def test_untrained_forecast_repeats_the_last_row(forecaster: Forecaster) -> None:
    rows = torch.randn(3, 20, 2)
    last = rows[:, -1:].expand(3, 5, 2)
    assert torch.equal(forecaster.predict(rows), last)


def test_mean_error_has_the_columns_units(forecaster: Forecaster) -> None:
    rows = torch.randn(6, 20, 2)
    targets = forecaster.predict(rows).detach() + 2
    _, metrics = forecaster(rows, targets)
    total, count = metrics["mae"]
    mean_std = (1 + 5) / 2
    assert total.item() / count == pytest.approx(2 * mean_std)
