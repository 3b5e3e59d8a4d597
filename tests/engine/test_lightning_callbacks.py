"""Callbacks, loggers and a tuner with Lightning; the commands of LightningCLI, and its messages."""

import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import yaml
from engine import equal, summary
from lightning.pytorch.tuner.tuning import Tuner
from lightning_runs import IGNORED, LightningProject, Project, column, rows, saved
from matrix import ROOT

pytestmark = IGNORED


@pytest.fixture(scope="session")
def p(lightning: LightningProject) -> Project:
    return lightning("mlp")


def test_early_stopping_ends_the_run(
    p: Project,
    tmp_path: Path,
) -> None:
    options = [
        "--trainer.callbacks+=EarlyStopping",
        "--trainer.callbacks.monitor=val/loss",
        "--trainer.callbacks.min_delta=10",
        "--trainer.callbacks.patience=2",
    ]
    cli = p.run(tmp_path, *options, "--trainer.max_steps=1000")
    assert cli.trainer.global_step == 9, "the third validation"
    found = summary(tmp_path)
    assert (found["exit"], found["steps"]) == ("finished", 9)
    assert found["best"]["loss"] == min(row["loss"] for row in rows(tmp_path, "val"))
    assert found["last"]["step"] == 9
    assert found["samples_per_second"] > 0
    assert found["peak_memory_mb"] > 50
    p.run(tmp_path / "timed", "--trainer.max_steps=100000", "--trainer.max_time=00:00:00:01")
    assert summary(tmp_path / "timed")["exit"] == "stopped"


def test_average_of_the_weights_is_validated_and_saved(
    p: Project,
    tmp_path: Path,
) -> None:
    average = ["--trainer.callbacks+=EMAWeightAveraging", "--trainer.callbacks.decay=0.5"]
    plain = tmp_path / "plain"
    averaged = tmp_path / "averaged"
    p.run(plain, "--trainer.max_steps=12")
    p.run(averaged, "--trainer.max_steps=12", *average)
    assert rows(averaged) == rows(plain), "it does not change the training"
    assert rows(averaged, "val") != rows(plain, "val")
    weights = saved(averaged)["state_dict"]
    assert not equal(weights, saved(plain)["state_dict"])


def test_tuner_in_python(
    p: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lines of the documentation."""
    options = ["--trainer.max_epochs=2", "--trainer.max_steps=-1"]
    config = p.arguments(tmp_path, *options)[1:]
    monkeypatch.setattr("sys.argv", ["python"])
    cli = p.train.CLI(
        p.train.Model,
        p.train.Data,
        run=False,
        args=config,
    )
    tuner = Tuner(cli.trainer)
    data = cli.datamodule
    tuner.scale_batch_size(cli.model, datamodule=data, max_trials=4)
    assert data.batch_size == 16
    finder = tuner.lr_find(cli.model, datamodule=data, num_training=20)
    assert finder is not None
    assert cli.model.lr == finder.suggestion()


def test_every_logger_has_metrics_jsonl_in_its_folder(
    p: Project,
    tmp_path: Path,
) -> None:
    logger = [
        "--trainer.logger=TensorBoardLogger",
        f"--trainer.logger.save_dir={tmp_path}",
        "--trainer.logger.name=",
        "--trainer.logger.version=a",
    ]
    p.run(tmp_path, *logger)
    assert column(tmp_path, "step") == [1, 2, 3, 4, 5, 6]
    assert column(tmp_path, "step", "val") == [3, 6]
    assert list((tmp_path / "a").glob("events.out.tfevents.*"))


def test_commands_on_a_run(
    p: Project,
    tmp_path: Path,
) -> None:
    """With the run's own config: the metrics are those of the run, whose record stays."""
    p.run(tmp_path, "--data.test_fraction=0.2")
    last = rows(tmp_path, "val")[-1]
    record = (tmp_path / "a/metrics.jsonl").read_text()
    (tmp_path / "a/config.yaml").rename(tmp_path / "saved.yaml")
    options = [
        f"--config={tmp_path}/saved.yaml",
        f"--ckpt_path={tmp_path}/a/checkpoints/last.ckpt",
        "--trainer.logger=false",
    ]
    cli = p.run(tmp_path, *options, command="validate")
    metrics = cli.trainer.callback_metrics
    assert float(metrics["val/loss"]) == pytest.approx(last["loss"])
    assert float(metrics["val/accuracy"]) == pytest.approx(last["accuracy"])

    cli = p.run(tmp_path, *options, command="test")
    metrics = cli.trainer.callback_metrics
    test_loader = cli.datamodule.test_dataloader()
    batch = load_all(p, cli, test_loader.dataset)
    loss, _ = cli.model.net.eval()(*batch)
    assert float(metrics["test/loss"]) == pytest.approx(loss.item(), rel=1e-4)

    predictions = list[torch.Tensor]()
    predict_step = p.module.Model.predict_step

    def observe(*given: Any) -> torch.Tensor:
        predictions.append(predict_step(*given))
        return predictions[-1]

    with mock.patch.object(p.module.Model, "predict_step", observe):
        cli = p.run(tmp_path, *options, command="predict")
    inputs = load_all(p, cli, cli.datamodule.splits[1])[:-1]
    expected = cli.model.net.eval().predict(*inputs)
    assert torch.allclose(
        torch.cat(predictions),
        expected,
        atol=1e-5,
    ), "in their order"
    assert (tmp_path / "a/metrics.jsonl").read_text() == record


def load_all(
    p: Project,
    cli: Any,
    dataset: Any,
) -> Any:
    """Return the whole dataset as one prepared batch."""
    batch = p.contracts.load_batch(dataset, list(range(len(dataset))))
    return cli.model.prepare(batch, False, torch.default_generator)


def test_printed_config_and_help(
    p: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        p.run(tmp_path, "--print_config", "--model.lr=0.5")
    assert yaml.safe_load(capsys.readouterr().out)["model"]["lr"] == 0.5
    with pytest.raises(SystemExit):
        p.run(tmp_path, "--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Peak learning rate." in shown
    assert "Dropout probability" in shown, "the docstring of a field"

    readme = (p.root / "README.md").read_text()
    page = (ROOT / "docs/frameworks/lightning.md").read_text()
    named = set(re.findall(r"--((?:trainer|model|data)\.[a-z_]+)", readme + page))
    unknown = {name for name in named if not re.search(rf"--{re.escape(name)}[+. ]", shown)}
    assert unknown == set()
    assert len(named) > 20


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--trainer.presicion=bf16-mixed"], 1, "--trainer.presicion"),
        (["--model.lr=fast"], 1, "model.lr"),
        (["--data.batch_size=500"], 1, "global batch of 500 samples is larger"),
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
