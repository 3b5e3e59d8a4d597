"""Callbacks and loggers by flag, tuners, the commands of LightningCLI, and its messages."""

import csv
import json
import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import yaml
from engine import equal
from lightning_runs import IGNORED, LightningProject, Project, column, rows, saved
from matrix import ROOT, tiers

pytestmark = [pytest.mark.filterwarnings(found) for found in IGNORED]
ADD, OF = "--trainer.callbacks+", "--trainer.callbacks"
LONG = ["--trainer.max_steps=12"]


@pytest.fixture(autouse=True)
def as_before() -> Any:
    """Undo what Lightning sets for the whole process."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def p(lightning: LightningProject) -> Project:
    return lightning("mlp")


def logged(folder: Path) -> dict[str, list[float]]:
    """Return the values of each column of metrics.csv."""
    found = list(csv.DictReader((folder / "a/metrics.csv").read_text().splitlines()))
    return {key: [float(row[key]) for row in found if row[key]] for key in found[0]}


def test_early_stopping_ends_the_run(p: Project, tmp_path: Path) -> None:
    options = [
        f"{ADD}=EarlyStopping",
        f"{OF}.monitor=val/loss",
        f"{OF}.min_delta=10",
        f"{OF}.patience=2",
    ]
    cli = p.run(tmp_path, *options, "--trainer.max_steps=1000")
    assert cli.trainer.global_step == 9, "the third validation"


def test_average_of_the_weights_is_validated_and_saved(p: Project, tmp_path: Path) -> None:
    p.run(tmp_path / "plain", *LONG)
    p.run(tmp_path / "mean", *LONG, f"{ADD}=EMAWeightAveraging", f"{OF}.decay=0.5")
    found, current = saved(tmp_path / "mean"), saved(tmp_path / "plain")
    assert rows(tmp_path / "mean") == rows(tmp_path / "plain"), "it does not change the training"
    assert rows(tmp_path / "mean", "val") != rows(tmp_path / "plain", "val")
    assert not equal(found["state_dict"], current["state_dict"])
    checkpoint = torch.load(tmp_path / "mean/a/checkpoints/last-steps.ckpt", weights_only=True)
    names = [name for name in current["state_dict"] if name.endswith("weight")]
    trained = checkpoint["current_model_state"]
    assert all(torch.equal(trained[name], current["state_dict"][name]) for name in names)


@pytest.mark.test_all
def test_uniform_average_of_the_weights(p: Project, tmp_path: Path) -> None:
    """WeightAveraging averages all steps equally."""
    seen = list[torch.Tensor]()
    step = torch.optim.AdamW.step

    def observe(optimizer: Any, *given: Any, **named: Any) -> Any:
        found = step(optimizer, *given, **named)
        seen.append(optimizer.param_groups[0]["params"][0].detach().clone())
        return found

    with mock.patch.object(torch.optim.AdamW, "step", observe):
        p.run(tmp_path, f"{ADD}=WeightAveraging")
    mean = saved(tmp_path)["state_dict"]["net.stem.weight"]
    assert torch.allclose(mean, torch.stack(seen).mean(0), atol=1e-6)


@pytest.mark.test_all
def test_monitors_write_columns_of_metrics_csv(p: Project, tmp_path: Path) -> None:
    p.run(
        tmp_path,
        f"{ADD}=DeviceStatsMonitor",
        f"{OF}.cpu_stats=true",
        f"{ADD}=ModelSummary",
        f"{OF}.max_depth=2",
    )
    found = logged(tmp_path)
    assert found["lr-AdamW/pg1"] == pytest.approx(column(tmp_path, "lr"), rel=1e-6), (
        "LearningRateMonitor"
    )
    assert len(found["DeviceStatsMonitor.on_train_batch_end/cpu_percent"]) == 6


@pytest.mark.test_all
def test_accumulation_may_change_with_the_epoch(p: Project, tmp_path: Path) -> None:
    schedule = [f"{ADD}=GradientAccumulationScheduler", f"{OF}.scheduling={{0: 1, 1: 2}}"]
    cli = p.run(tmp_path, *schedule, "--data.batch_size=100", "--trainer.max_steps=8")
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, 9))
    assert [row["step"] for row in rows(tmp_path, "val")] == [3, 5, 6, 8], (
        "after every 3 of 4 batches per epoch"
    )
    assert cli.trainer.accumulate_grad_batches == 2


@pytest.mark.test_all
@pytest.mark.filterwarnings(
    "ignore:.*fit.ckpt_path="
)  # OnExceptionCheckpoint resumes from the newest checkpoint
def test_timer_and_checkpoint_on_exception(p: Project, tmp_path: Path) -> None:
    timer = [f"{ADD}=Timer", f"{OF}.duration=00:00:00:01", f"{OF}.interval=step"]
    cli = p.run(tmp_path / "timer", *timer, "--trainer.max_steps=100000")
    assert 0 < cli.trainer.global_step < 100000
    prepare, calls = p.data.Prepare.forward, list[int]()

    def fail(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise KeyError("planted")
        return prepare(*given)

    option = [f"{ADD}=OnExceptionCheckpoint", f"{OF}.dirpath={tmp_path}/crash"]
    with (
        mock.patch.object(p.data.Prepare, "forward", fail),
        pytest.raises(KeyError, match="planted"),
    ):
        p.run(
            tmp_path / "crash",
            *option,
            "--trainer.num_sanity_val_steps=0",
            "--trainer.val_check_interval=6",
        )
    found = torch.load(tmp_path / "crash/on_exception.ckpt", weights_only=True)
    assert found["global_step"] == 4


@pytest.mark.test_all
def test_finder_prints_a_rate_and_a_batch_size(
    p: Project, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """1cycle keeps its length and peak, so that another run has to use them."""
    p.run(tmp_path / "rate", f"{ADD}=LearningRateFinder", f"{OF}.num_training_steps=20")
    assert "Learning rate set to 0.0" in caplog.text
    assert column(tmp_path / "rate", "lr")[1:] == pytest.approx(one_cycle()[1:])
    p.run(
        tmp_path / "size", f"{ADD}=BatchSizeFinder", f"{OF}.max_trials=3", f"{OF}.steps_per_trial=1"
    )
    assert "will continue with full run using batch size 8" in caplog.text


def one_cycle() -> list[float]:
    optimizer = torch.optim.AdamW([torch.zeros(1)], lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=6, div_factor=10)
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(rates) < 6:
            schedule.step()
    return rates


def test_tuner_in_python(p: Project, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The lines of the README."""
    from lightning.pytorch.tuner.tuning import Tuner

    config = p.arguments(tmp_path, "--trainer.max_epochs=2", "--trainer.max_steps=-1")[1:]
    with mock.patch("sys.argv", ["python"]):
        cli = p.train.CLI(p.module.Model, p.datamodule.Data, run=False, args=config)
    tuner = Tuner(cli.trainer)
    assert tuner.scale_batch_size(cli.model, datamodule=cli.datamodule, max_trials=4) == 16
    assert cli.datamodule.batch_size == 16
    finder = tuner.lr_find(cli.model, datamodule=cli.datamodule, num_training=20)
    assert finder is not None
    assert 1e-8 < cli.model.lr < 1
    assert cli.model.lr == finder.suggestion()
    assert len(finder.results["loss"]) == 20


@pytest.mark.parametrize("logger", tiers(["CSVLogger"], ["TensorBoardLogger"]))
def test_every_logger_has_metrics_jsonl_in_its_folder(
    p: Project, tmp_path: Path, logger: str
) -> None:
    options = [f".save_dir={tmp_path}", ".name=", ".version=b"]
    p.run(
        tmp_path, f"--trainer.logger={logger}", *(f"--trainer.logger{option}" for option in options)
    )
    lines = (tmp_path / "b/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 3, 4, 5, 6, 6]
    pattern = {"TensorBoardLogger": "events.out.tfevents.*", "CSVLogger": "metrics.csv"}[logger]
    assert len(list((tmp_path / "b").glob(pattern))) == 1


def test_commands_on_a_run(p: Project, tmp_path: Path) -> None:
    """With the run's own config: the metrics are those of the run, whose record stays."""
    p.run(tmp_path, "--data.source.test_fraction=0.2")
    last, record = rows(tmp_path, "val")[-1], (tmp_path / "a/metrics.jsonl").read_text()
    (tmp_path / "a/config.yaml").rename(tmp_path / "saved.yaml")
    options = [f"--config={tmp_path}/saved.yaml", f"--ckpt_path={tmp_path}/a/checkpoints/last.ckpt"]
    options += ["--trainer.logger=false"]
    names = ("loss", "accuracy")
    found = p.run(tmp_path, *options, command="validate").trainer.callback_metrics
    assert [found[f"val/{name}"].item() for name in names] == pytest.approx(
        [last[name] for name in names]
    )
    cli = p.run(tmp_path, *options, command="test")
    test_set = cli.datamodule.test_dataloader().dataset
    batch = cli.model.prepare(p.loader.load_batch(test_set, [*range(len(test_set))]), False, None)
    loss, _ = cli.model.net.eval()(*batch)
    assert cli.trainer.callback_metrics["test/loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    predicted, predict_step = list[torch.Tensor](), p.module.Model.predict_step

    def observe(*given: Any) -> torch.Tensor:
        predicted.append(predict_step(*given))
        return predicted[-1]

    with mock.patch.object(p.module.Model, "predict_step", observe):
        cli = p.run(tmp_path, *options, command="predict")
    net, (_, val_set, _) = cli.model.net.eval(), cli.datamodule.splits
    batch = cli.model.prepare(p.loader.load_batch(val_set, list(range(len(val_set)))), False, None)
    assert torch.allclose(torch.cat(predicted), net.predict(*batch[: len(batch) - 1]), atol=1e-5), (
        "in their order"
    )
    assert (tmp_path / "a/metrics.jsonl").read_text() == record


def test_printed_config_and_help(
    p: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        p.run(tmp_path, "--print_config", "--model.lr=0.5")
    assert yaml.safe_load(capsys.readouterr().out)["model"]["lr"] == 0.5
    with pytest.raises(SystemExit):
        p.run(tmp_path, "--help")
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("Peak learning rate.", "Samples per forward pass and rank."):
        assert text in shown
    texts = [
        (p.root / "README.md").read_text(),
        (ROOT / "docs/frameworks/lightning.md").read_text(),
    ]
    named = set(re.findall(r"--((?:trainer|model|data)\.[a-z_]+)", " ".join(texts)))
    groups = {"model.net", "data.source"}
    assert {
        name for name in named - groups if f"--{name} " not in shown and f"--{name}+" not in shown
    } == set()
    assert len(named) > 25


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--trainer.presicion=bf16-mixed"], 2, "--trainer.presicion"),
        (["--model.lr=fast"], 2, 'Parser key "model.lr"'),
        (
            ["--data.batch_size=200", "--trainer.accumulate_grad_batches=3"],
            1,
            "global batch of 600 samples is larger",
        ),
    ],
)
def test_wrong_option_is_named(
    p: Project,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    status: int,
    message: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        p.run(tmp_path, *options)
    assert ended.value.code == status
    assert message in capsys.readouterr().err
