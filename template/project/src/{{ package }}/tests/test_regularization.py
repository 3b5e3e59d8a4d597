"""Label smoothing, EMA, early stopping, the best checkpoint and the learning-rate range test."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from .. import checkpoint, data, model, techniques
from ..config import Config
from ..distributed import World, seeded_generator
from ..errors import UserError
from ..progress import Best
from ..run import Run
from ..techniques import lr_range
from ..techniques.ema import Ema
from ..tools import evaluate
from ..train import train
from .conftest import HAS_SMOOTHING, evaluate_run, read_rows

pytestmark = pytest.mark.usefixtures("short_validation")


@pytest.mark.skipif(not HAS_SMOOTHING, reason="this model has no label smoothing")
def test_label_smoothing_equals_the_formula_in_training_only(config: Callable[..., Config]) -> None:
    share = 0.2
    samples = techniques.load(config().data)
    batch = data.Prepare(samples.spec, config().data)(
        samples.train.__getitems__(list(range(4))), False, seeded_generator(torch.device("cpu"), 0, 0, 0)
    )
    torch.manual_seed(0)
    net: Any = model.build(config(f"--model.label_smoothing={share}").model, samples.spec)
    *inputs, targets = batch
    with torch.no_grad():
        torch.manual_seed(1)  # the same dropout
        log_p = net.predict(*inputs).flatten(0, -2).log_softmax(-1)
        plain = -log_p.gather(1, targets.reshape(-1, 1)).mean()
        smooth = (1 - share) * plain - share * log_p.mean()  # Szegedy et al. 2015, section 7
        torch.manual_seed(1)
        torch.testing.assert_close(net(*batch)[0], smooth)
        net.eval()
        log_p = net.predict(*inputs).flatten(0, -2).log_softmax(-1)
        torch.testing.assert_close(net(*batch)[0], -log_p.gather(1, targets.reshape(-1, 1)).mean())


def test_ema_equals_a_reference() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    ema = Ema(net, 0.7, World(0, 1, torch.device("cpu")))
    expected = {name: value.clone().double() for name, value in net.state_dict().items() if value.is_floating_point()}
    for update in range(1, 8):
        for value in net.state_dict().values():
            value.add_(torch.randn(value.shape) if value.is_floating_point() else 1)
        ema.after_update(update)
        decay = min(0.7, (1 + update) / (10 + update))
        for name, value in expected.items():
            value.mul_(decay).add_(net.state_dict()[name].double(), alpha=1 - decay)
    live = {name: value.clone() for name, value in net.state_dict().items()}
    with ema.eval_weights():
        for name, value in expected.items():
            torch.testing.assert_close(net.state_dict()[name].double(), value, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in live.items())


def test_ema_of_a_model_that_was_moved_is_used_in_validation() -> None:
    """Lightning moves it to the host and back after training, which on a GPU replaces its tensors."""
    net = nn.Linear(3, 1)
    ema = Ema(net, 0.7, World(0, 1, torch.device("cpu")))
    ema.average["weight"].fill_(5)
    before = net.weight.detach().clone()
    net._apply(torch.clone)
    with ema.eval_weights():
        assert torch.equal(net.weight, torch.full((1, 3), 5.0))
    assert torch.equal(net.weight, before)


def test_resumed_ema_is_bit_identical(config: Callable[..., Config], world: World, tmp_path: Path) -> None:
    options = ["--train.ema=0.8", "--train.steps=8", "--train.eval_every=4"]
    for name in ("whole", "cut"):
        train(config(f"--run.name={name}", *options), world)
    (tmp_path / "cut/checkpoints/step-00000008/manifest.json").unlink()
    with pytest.warns(UserWarning, match="skipping"):
        train(config("--run.name=cut", "--run.resume=auto", *options), world)
    assert read_rows(tmp_path / "cut", "val") == read_rows(tmp_path / "whole", "val")
    averages = [
        checkpoint.read_state(tmp_path / name / "checkpoints/step-00000008")["ema"] for name in ("whole", "cut")
    ]
    assert all(torch.equal(value, averages[1][name]) for name, value in averages[0].items())
    assert evaluate_run(tmp_path / "whole")["loss"] == pytest.approx(
        read_rows(tmp_path / "whole", "val")[-1]["loss"], rel=1e-5
    )


def test_best_follows_its_metric() -> None:
    best = Best("loss", "min")
    seen = []
    for step, value in enumerate((3.0, 2.0, 2.0, float("nan"), 1.0)):
        best.add({"loss": value}, step)
        seen.append((best.value, best.step, best.stale))
    assert seen == [(3.0, 0, 0), (2.0, 1, 0), (2.0, 1, 1), (2.0, 1, 2), (1.0, 4, 0)]
    best = Best("accuracy", "max")
    for step, value in enumerate((0.5, 0.4, 0.6)):
        best.add({"accuracy": value}, step)
    assert (best.value, best.step) == (0.6, 2)
    with pytest.raises(UserError, match="train.monitor is f1: use one of the model's metrics, loss"):
        Best("f1", "min").check({"loss": 1.0})


def test_patience_stops_the_run_and_keeps_the_best(
    config: Callable[..., Config],
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = iter([3.0, 2.0, 2.5, float("nan"), 2.0, 1.0])
    take = Run.add_results
    monkeypatch.setattr(Run, "add_results", lambda run, results: take(run, {"loss": next(script)}))
    options = ["--train.steps=40", "--train.eval_every=1", "--train.patience=3", "--checkpoint.keep=1"]
    train(config("--run.name=a", *options), world)
    assert [row["step"] for row in read_rows(tmp_path / "a", "val")] == [1, 2, 3, 4, 5], (
        "it stops after three no better"
    )
    assert "stopped     early: no better loss for 3 validations\n" in capsys.readouterr().out
    folder = tmp_path / "a/checkpoints"
    assert (folder / "best").read_text() == "step-00000002\n"
    (folder / "step-00000005.old").mkdir()  # a copy of your own is left alone
    assert [path.name for path in checkpoint.all_checkpoints(folder)] == ["step-00000002", "step-00000005"]
    evaluate.main([str(folder / "best"), "--device=cpu"])
    assert (folder / "step-00000002/evaluation.json").exists()
    before = (tmp_path / "a/metrics.jsonl").read_text()
    train(config("--run.name=a", "--run.resume=auto", *options), world)
    assert (tmp_path / "a/metrics.jsonl").read_text() == before, "it has stopped for good"
    train(config("--run.name=b", *options, "--checkpoint.best=false", "--train.steps=1"), world)
    assert not (tmp_path / "b/checkpoints/best").exists()


def test_unknown_monitor_is_refused_before_training(
    config: Callable[..., Config], world: World, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="train.monitor is f1"):
        train(config("--run.name=a", "--train.monitor=f1", "--train.monitor_mode=max"), world)
    assert not (tmp_path / "a").exists()


def test_range_test_suggests_a_learning_rate(
    config: Callable[..., Config], world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--optim.schedule=range", "--train.steps=100", "--optim.range_low=1e-5", "--optim.range_high=100"]
    train(config("--run.name=a", *options, "--optim.clip=null"), world)
    logged = read_rows(tmp_path / "a", "train")
    assert [row["step"] for row in logged] == list(range(1, len(logged) + 1))
    assert all("smoothed_loss" in row for row in logged)
    assert logged[-1]["lr"] > logged[0]["lr"] * 10
    assert len(logged) < 100, "it ends when the loss diverges"
    found = json.loads((tmp_path / "a/lr_range.json").read_text())
    assert 1e-5 < found["peak"] < found["lowest"]
    assert f"--optim.lr {found['optim.lr']:.2g}" in capsys.readouterr().out
    assert (tmp_path / "a/lr_range.png").stat().st_size > 5000
    assert not (tmp_path / "a/checkpoints").exists()


def sweep(loss: Callable[[float], float]) -> lr_range.RangeTest:
    found = lr_range.RangeTest(batch_factor=2.0)
    for step in range(120):
        rate = 10 ** (-6 + 0.05 * step)
        if found.on_metrics({"lr": rate, "loss": loss(rate), "grad_norm": 1.0}):
            break
    return found


def test_suggestion_is_a_tenth_of_the_best_rate() -> None:
    found = sweep(lambda rate: 2.0 - rate / (rate + 1e-3) + (rate / 0.1) ** 2)
    assert len(found.rates) < 119, "it ends when the loss diverges"
    suggested = found.suggestion()
    assert suggested["peak"] == pytest.approx(suggested["lowest"] / 10)
    assert suggested["optim.lr"] == pytest.approx(suggested["peak"] / 2)
    assert 1e-3 < suggested["lowest"] < 1e-1
    assert 1e-4 < suggested["steepest"] < suggested["lowest"]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda rate: 1.0 + rate, "the loss never fell"),
        (lambda rate: 1.0 - 0.1 * math.log10(rate), "the loss was still falling at"),
        (lambda rate: math.nan if rate > 1e-5 else 1.0, "the loss diverged after 2. steps"),
    ],
)
def test_inconclusive_range_test_is_an_error(loss: Callable[[float], float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        sweep(loss).suggestion()


def test_range_test_ignores_skipped_steps() -> None:
    found = lr_range.RangeTest(1.0)
    for rate in (1.0, 1.0, 2.0):
        assert not found.on_metrics({"lr": rate, "loss": 1.0, "grad_norm": math.inf})
    assert found.rates == [1.0, 2.0]


def test_changed_monitor_resets_the_best(config: Callable[..., Config], world: World, tmp_path: Path) -> None:
    train(config("--run.name=a", "--train.steps=2"), world)
    changed = ["--train.monitor_mode=max", "--train.steps=4", "--train.eval_every=2", "--run.resume=auto"]
    train(config("--run.name=a", *changed), world)
    state = checkpoint.read_state(tmp_path / "a/checkpoints/step-00000004")
    assert state["best"][1:] == ["max", read_rows(tmp_path / "a", "val")[-1]["loss"], 4, 0]


def test_ema_can_start_at_a_resume(config: Callable[..., Config], world: World, tmp_path: Path) -> None:
    train(config("--run.name=a", "--train.steps=2"), world)
    train(config("--run.name=a", "--train.steps=4", "--run.resume=auto", "--train.ema=0.9"), world)
    assert "ema" in checkpoint.read_state(tmp_path / "a/checkpoints/step-00000004")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--optim.name=sgd", "optim.name is adamw there and sgd here"),
        ("--optim.schedule=range", "optim.schedule is range: a range test cannot resume"),
    ],
)
def test_resume_with_conflicting_options_is_refused(
    config: Callable[..., Config], world: World, tmp_path: Path, change: str, message: str
) -> None:
    train(config("--run.name=a", "--train.steps=2"), world)
    before = (tmp_path / "a/metrics.jsonl").read_text()
    with pytest.raises(UserError, match=message):
        train(config("--run.name=a", "--run.resume=auto", "--train.steps=40", change), world)
    assert (tmp_path / "a/metrics.jsonl").read_text() == before
