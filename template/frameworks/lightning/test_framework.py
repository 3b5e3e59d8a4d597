"""What users of Lightning expect of its Trainer."""

import importlib
import logging
from collections.abc import Callable
from csv import DictReader
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import DoublePrecision
from lightning.pytorch.tuner.tuning import Tuner

from .. import checkpoint
from ..config import Config
from ..datamodule import DataModule
from ..distributed import World
from ..errors import UserError
from ..loaders import Plan
from ..module import Module
from ..open_run import main, open_run
from ..run import Run
from ..tools import evaluate
from ..train import make_trainer
from ..trainer_config import LightningConfig
from .conftest import SMALL, read_rows

train: Any = importlib.import_module("..train", __package__)
STEPS = ["--train.steps=12", "--train.eval_every=4", "--log.every=2", "--train.micro_batch=8"]


@pytest.fixture
def with_extras(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what extras.py returns: each argument is called to make its value, once per run."""

    def set_extras(**makers: Callable[[], Any]) -> None:
        monkeypatch.setattr(train, "extras", lambda run: {name: make() for name, make in makers.items()})

    return set_extras


def fit(cfg: Config, world: World, kind: type[Module] = Module, **options: Any) -> tuple[Run, Any, Any]:
    """Train with the parts of train.py."""
    with open_run(cfg, world) as run:
        trainer, module = make_trainer(run), kind(run)
        trainer.fit(module, datamodule=DataModule(run), **options)
        run.finish()
    return run, trainer, module


def state_of(run: Path, step: int = 12) -> dict[str, Any]:
    """Return the state in a checkpoint of a run."""
    return checkpoint.read_state(run / "checkpoints" / checkpoint.step_name(step))


def assert_same(ours: Any, theirs: Any) -> None:
    """Compare nested states, to the bit."""
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict | list | tuple):
        assert len(ours) == len(theirs)
        pairs = ((ours[key], theirs[key]) for key in (ours if isinstance(ours, dict) else range(len(ours))))
        for one, other in pairs:
            assert_same(one, other)
    else:
        assert ours == theirs


class SavesWithinStep(lightning.Callback):
    """Saves when the first micro-batch of the 8th step has been prepared."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_start(self, trainer: Any, module: Any, *batch: Any) -> None:
        if trainer.global_step == 7 and module.run.micro_step == 1:
            trainer.save_checkpoint(self.folder / "step=7.ckpt")


@pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:saved within a step")
def test_fit_continues_from_a_checkpoint_of_lightning(
    config: Callable[..., Config],
    world: World,
    tmp_path: Path,
    with_extras: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Saved before a validation (4), at the end of an epoch (5), between two rows (6), and within a step (7)."""
    monkeypatch.setattr(Plan, "steps_per_epoch", 5)
    options = [*STEPS, "--log.every=4", "--train.accumulate=2", "--train.ema=0.9"]
    fit(config("--run.name=whole", *options), world)
    whole, kept = tmp_path / "whole", tmp_path / "kept"
    every_2 = partial(ModelCheckpoint, kept, "{step}", save_top_k=-1, every_n_train_steps=2)
    at_ends = partial(ModelCheckpoint, kept, "{step}", save_top_k=-1, save_on_train_epoch_end=True)
    with_extras(callbacks=lambda: [every_2(), at_ends(), SavesWithinStep(kept)])
    fit(config("--run.name=cut", *options), world)
    for name, step in (("cut", 4), ("from-4", 4), ("from-5", 5), ("from-6", 6), ("from-7", 7)):
        resume = ["--run.resume=auto"] if name == "cut" else []
        _, trainer, _ = fit(
            config(f"--run.name={name}", *resume, *options), world, ckpt_path=kept / f"step={step}.ckpt"
        )
        assert (trainer.global_step, trainer.current_epoch) == (12, 3)
        for split in ("train", "val"):
            first = 0 if resume else step + (split == "train")
            expected = [row for row in read_rows(whole, split) if row["step"] >= first]
            assert read_rows(tmp_path / name, split) == expected
        ours, theirs = state_of(tmp_path / name), state_of(whole)
        ours.pop("lightning")
        assert_same(ours, theirs)
    evaluate.main([str(kept / "step=12.ckpt"), "--device=cpu"])
    evaluate.main([str(whole), "--device=cpu"])
    evaluated = [folder / "evaluation.json" for folder in (kept / "step=12", whole / "checkpoints" / "step-00000012")]
    assert evaluated[0].read_text() == evaluated[1].read_text()


def test_checkpoint_of_another_run_is_refused(config: Callable[..., Config], world: World, tmp_path: Path) -> None:
    _, trainer, _ = fit(config("--run.name=a", "--train.steps=2"), world)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(UserError, match=r"is of another model or run \(run.seed is 0 there and 1 here\)"):
        fit(config("--run.name=b", "--run.seed=1", "--train.steps=2"), world, ckpt_path=tmp_path / "a.ckpt")
    (tmp_path / "b.ckpt").write_text("nothing")
    for file, message in (("b.ckpt", "is not a checkpoint"), ("c.ckpt", "cannot read .*: No such file")):
        with pytest.raises(SystemExit, match=message):
            evaluate.main([str(tmp_path / file)])


def test_validate_test_and_predict_have_no_effect_on_the_run(
    config: Callable[..., Config], world: World, tmp_path: Path
) -> None:
    run, trainer, module = fit(config("--run.name=a", "--train.steps=4", "--train.ema=0.9"), world)
    before = sorted((tmp_path / "a").rglob("*")), (tmp_path / "a" / "metrics.jsonl").read_text()
    loss, data = run.results["loss"], DataModule(run)
    assert trainer.validate(module, data, verbose=False)[0]["val_loss"] == pytest.approx(loss, rel=1e-6)
    assert trainer.test(module, data, verbose=False)[0]["test_loss"] == pytest.approx(loss, rel=1e-6)
    predicted = trainer.predict(module, data)
    assert (sorted((tmp_path / "a").rglob("*")), (tmp_path / "a" / "metrics.jsonl").read_text()) == before
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    loaded = Module.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    alone = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    assert_same(alone.predict(loaded, data.predict_dataloader()), predicted)
    assert loaded.hparams["config"]["train"]["steps"] == 4


class LogsItself(Module):
    """A module of a user, who logs values."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("step_number", float(self.global_step))
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.log("epoch_number", 1.0)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.log("val_batches", 1.0, reduce_fx="sum")


def test_rows_of_metrics_reach_the_loggers(
    config: Callable[..., Config], world: World, tmp_path: Path, with_extras: Callable[..., None]
) -> None:
    """And what a module logs is in the row of its split; callbacks see the learning rate of the coming step."""
    with_extras(logger=lambda: CSVLogger(tmp_path, "csv"), callbacks=lambda: [LearningRateMonitor("step")])
    fit(config("--run.name=a", *STEPS), world, LogsItself)
    train_rows, val_rows = (read_rows(tmp_path / "a", split) for split in ("train", "val"))
    assert [row["step_number"] for row in train_rows] == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
    assert {row["val_batches"] > 1 for row in val_rows} == {True}
    assert not {"val_batches", "step_number"} & (set(train_rows[-1]) & set(val_rows[-1]))
    with (tmp_path / "csv/version_0/metrics.csv").open() as file:
        logged = list(DictReader(file))
    for split, rows in (("train", train_rows), ("val", val_rows)):
        found = [(int(row["step"]), float(row[f"{split}/loss"])) for row in logged if row[f"{split}/loss"]]
        assert found == [(row["step"], row["loss"]) for row in rows]
    name = next(name for name in logged[0] if name.startswith("lr-"))
    rates = {int(row["step"]): float(row[name]) for row in logged if row[name]}
    assert rates == {row["step"] - 1: pytest.approx(row["lr"]) for row in train_rows}


class AddsToCheckpoints(lightning.Callback):
    """Has a state that cannot be loaded without executing something, and adds to checkpoints what can."""

    added = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": Path()}

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["added"] = module.run.progress.step

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        self.added = checkpoint["added"]


@pytest.mark.filterwarnings("ignore:checkpoints of the run leave out the state of AddsToCheckpoints")
def test_states_of_callbacks_are_kept_when_a_run_resumes(
    config: Callable[..., Config], world: World, tmp_path: Path, with_extras: Callable[..., None]
) -> None:
    """And the averaged weights."""
    adds = AddsToCheckpoints()
    with_extras(callbacks=lambda: [WeightAveraging(), EarlyStopping("val_loss", patience=9), adds])
    for name in ("whole", "cut"):
        fit(config(f"--run.name={name}", *STEPS), world)
    at = tmp_path / "cut/checkpoints"
    (at / "step-00000008").rename(at / "abandoned-step-00000008")
    fit(config(*STEPS, f"--run.resume={at}/abandoned-step-00000008"), world)
    assert adds.added == 8
    assert read_rows(tmp_path / "cut", "val") == read_rows(tmp_path / "whole", "val")
    assert_same(state_of(tmp_path / "cut"), state_of(tmp_path / "whole"))
    evaluate.main([str(tmp_path / "cut"), "--device=cpu"])


def test_layers_of_fp8_are_validated_without_inference_mode(config: Callable[..., Config], world: World) -> None:
    class Float8Linear(torch.nn.Linear):  # as torchao's is named
        pass

    with open_run(config("--run.name=a", *STEPS), world) as run:
        assert make_trainer(run).validate_loop.inference_mode
        run.parts.model.add_module("fp8", Float8Linear(1, 1))
        assert not make_trainer(run).validate_loop.inference_mode


def test_tuner_has_no_effect_on_the_run(
    config: Callable[..., Config], world: World, tmp_path: Path, with_extras: Callable[..., None]
) -> None:
    fit(config("--run.name=plain", *STEPS), world)
    with open_run(config("--run.name=tuned", *STEPS), world) as run:
        trainer, module, data = make_trainer(run), Module(run), DataModule(run)
        found = Tuner(trainer).lr_find(module, datamodule=data, num_training=12, update_attr=False)
        assert found is not None
        assert len(found.results["loss"]) == 12
        assert found.results["lr"][-1] > 100 * found.results["lr"][0]
        size = Tuner(trainer).scale_batch_size(module, datamodule=data, steps_per_trial=1, max_trials=2, init_val=4)
        assert size == 8
        assert read_rows(tmp_path / "tuned", "train") == []
        trainer.fit(module, datamodule=data)
    assert read_rows(tmp_path / "tuned", "train") == read_rows(tmp_path / "plain", "train")
    assert_same(state_of(tmp_path / "tuned"), state_of(tmp_path / "plain"))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("gradient_clip_val=1", "trainer.gradient_clip_val is 1: the config decides it; use optim.clip"),
        ("accumulate_grad_batches=2", "trainer.accumulate_grad_batches is 2: .* use train.accumulate"),
        ("devices=2", "trainer.devices is 2: .* use run.processes"),
        ("profilr=simple", "trainer.profilr is simple: Lightning's .* no such argument; did you mean profiler?"),
        ("profiler=fast", "Lightning's Trainer refuses its arguments: .*profiler"),
        ("callbacks=[a]", "trainer.callbacks is .*: set it in extras.py"),
        ("ckpt_path=none.ckpt", "trainer.ckpt_path is none.ckpt: No such file"),
        ("logger=csv", "trainer.logger is csv: it must be bool; set objects in extras.py"),
        ("limit_val_batches=1.5", "Lightning's Trainer refuses its arguments: .*limit_val_batches"),
    ],
)
def test_argument_that_the_config_decides_is_refused(tmp_path: Path, argument: str, message: str) -> None:
    options = [*SMALL, f"--run.dir={tmp_path}", "--train.steps=1"]
    with pytest.raises(SystemExit, match=message):
        main(train.train, [*options, f"--trainer.{argument}"], LightningConfig)
    assert list(tmp_path.iterdir()) == []


def test_trainer_and_callbacks_that_the_config_decides_are_refused(
    config: Callable[..., Config], world: World, with_extras: Callable[..., None]
) -> None:
    with_extras(plugins=lambda: [DoublePrecision()])
    with pytest.raises(UserError, match="extras.py sets the plugin DoublePrecision: use speed.precision"):
        fit(config("--run.name=a", "--train.steps=1"), world)
    with_extras(callbacks=lambda: StochasticWeightAveraging(0.1))
    with pytest.raises(UserError, match="StochasticWeightAveraging is not supported: it sets the learning rate"):
        fit(config("--run.name=a", "--train.steps=1"), world)


def test_options_of_the_trainer(
    config: Callable[..., Config], world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The profiler can report, validation is limited, and an epoch is one whatever `eval_every` is."""
    log = logging.getLogger("lightning.pytorch")
    log.setLevel(logging.INFO)
    options = [*SMALL, f"--run.dir={tmp_path}", "--train.steps=4", "--run.name=a"]
    options += ["--trainer.profiler=simple", "--trainer.limit_val_batches=1", "--trainer.enable_progress_bar=true"]
    main(train.train, options, LightningConfig)
    assert log.level == logging.INFO
    printed = capsys.readouterr()
    assert "Epoch 0" in printed.err + printed.out
    main(train.train, [*options[:-4], "--run.name=b"], LightningConfig)
    assert log.level == logging.WARNING
