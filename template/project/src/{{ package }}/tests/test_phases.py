"""A model with phases, a small GAN, and with metrics that are no means: in one process and on two ranks."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .. import checkpoint, data, loaders
from ..config import Config
from ..distributed import World
from ..errors import UserError
from ..loaders import EvalOrder
from ..train import train
from .conftest import evaluate_run, read_losses, read_rows, read_weights, run_ranks_in_turn, unsupported
from .phased import Gan, auroc, install, weighted

OPTIONS = ["--train.steps=12", "--train.eval_every=4", "--log.every=1", "--train.monitor=auroc"]
OPTIONS += ["--train.monitor_mode=max", "--optim.name=adamw", "--optim.weight_decay=0.1"]


@pytest.fixture
def gan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs have the GAN."""
    install(monkeypatch.setattr)


@pytest.mark.usefixtures("gan", "short_validation")
def test_each_step_trains_its_phase_and_a_resumed_run_is_equal(
    config: Callable[..., Config], world: World, tmp_path: Path
) -> None:
    results = train(config("--run.name=whole", "--train.accumulate=2", *OPTIONS), world)
    train(config("--run.name=cut", "--train.accumulate=2", *OPTIONS), world)
    (tmp_path / "cut/checkpoints/step-00000012/manifest.json").unlink()  # as if the run had been killed before
    with pytest.warns(UserWarning, match="skipping"):
        train(config("--run.name=cut", "--train.accumulate=2", "--run.resume=auto", *OPTIONS), world)
    rows = read_rows(tmp_path / "whole", "train")
    assert [row["step"] for row in rows if "g_loss" in row] == [3, 6, 9, 12]
    for split in ("train", "val"):
        assert read_rows(tmp_path / "cut", split) == read_rows(tmp_path / "whole", split)
    ours, theirs = read_weights(tmp_path / "cut", 12), read_weights(tmp_path / "whole", 12)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    state = checkpoint.read_state(tmp_path / "whole/checkpoints/step-00000012")
    names = [name for name, _ in Gan().named_parameters()]
    updates = sorted(int(moments["step"]) for moments in state["optimizer"]["state"].values())
    assert updates == [4] * 4 + [8] * 4, "Adam counts the steps of each part"
    first = read_weights(tmp_path / "whole", 8)
    moved = {name.partition(".")[0] for name in names if not torch.equal(first[name], theirs[name])}
    assert moved == {"generator", "critic"}

    assert results.keys() >= {"auroc", "by_column", "weighted", "most", "count"}
    found = evaluate_run(tmp_path / "whole")
    assert {name: found[name] for name in results} == pytest.approx(results, rel=1e-6)
    cfg = config(*OPTIONS)
    samples = data.load(cfg.data)
    prepare = data.Prepare(samples.spec, cfg.data)
    count = int(results["count"])
    real = prepare(samples.val.__getitems__([*range(count)]), False, torch.Generator())[0].flatten(1)[:, :4].float()
    assert results["weighted"] == pytest.approx(float(weighted(real[:, 0])), rel=1e-6)
    net = Gan().eval()
    net.load_state_dict(theirs)
    with torch.no_grad():
        scores = torch.cat([net.critic(real), net.critic(net.generator(real[:, :2]))])[:, 0]
    assert results["auroc"] == pytest.approx(float(auroc(scores, (torch.arange(2 * count) < count).long())), abs=1e-6)


@pytest.mark.usefixtures("gan", "short_validation")
def test_phases_and_metrics_that_do_not_fit_are_refused(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option, why in {
        "--optim.set_to_none=false": "optim.set_to_none is false: gradients of zero",
        "--train.spike_factor=3": "train.spike_factor is 3.0: each of",
        "--train.monitor=auroch": "train.monitor is auroch: use one of",
    }.items():
        with pytest.raises(UserError, match=why):
            train(config("--run.name=a", *OPTIONS, option), world)
    for phases, why in {
        ("critic",): "leave out generator.0.weight",
        ("critic", "generater"): "has 'generater', in which nothing is trained: its parts are generator, critic",
        (): "phases of the model is empty",
        "critic": "phases of the model is 'critic': give names",
    }.items():
        monkeypatch.setattr(Gan, "phases", phases)
        with pytest.raises(UserError, match=why):
            train(config("--run.name=a", *OPTIONS), world)
    monkeypatch.setattr(Gan, "phases", ("critic", "generator"))
    with monkeypatch.context() as patch:
        patch.setitem(Gan.forward.__globals__, "weighted", lambda values: values[None].item())
        with pytest.raises(UserError, match=r"the metric weighted fails: RuntimeError: .* \(test_phases.py:\d+\)"):
            train(config("--run.name=a", *OPTIONS), world)
    monkeypatch.setitem(Gan.forward.__globals__, "weighted", lambda values: "high")
    with pytest.raises(UserError, match="the metric weighted is of type str: its function must return a number"):
        train(config("--run.name=b", *OPTIONS), world)


def test_two_ranks_have_the_same_metrics_and_losses(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validation has nine samples, in micro-batches of four: the second rank repeats one."""
    options = [*OPTIONS, "--train.micro_batch=4", "--train.steps=6", "--train.eval_every=3"]
    half = ["--speed.precision=fp16"]
    half = [] if unsupported(half) else half
    run_ranks_in_turn(
        2,
        [
            [*options, "--run.name=two"],
            [*options, "--train.accumulate=2", *half, "--run.name=twice"],
            [*options, "--dist.strategy=fsdp", "--run.name=sharded"],
        ],
        tmp_path,
        "phased",
        "nine_samples",
    )
    install(monkeypatch.setattr)
    train(config("--run.name=one", "--train.accumulate=2", *options), world)
    assert read_losses(tmp_path / "two") == pytest.approx(read_losses(tmp_path / "one"), rel=1e-5)
    assert len(read_losses(tmp_path / "twice")) == 6
    assert "FSDP2 cannot train the `phases`" in (tmp_path / "sharded-refused-0").read_text()
    monkeypatch.setattr(loaders, "EvalOrder", lambda samples, *place: EvalOrder(9, *place))
    once = evaluate_run(tmp_path / "two")
    two = read_rows(tmp_path / "two", "val")[-1]
    assert once["count"] == 9
    assert {name: two[name] for name in once} == pytest.approx(once, rel=1e-6)
