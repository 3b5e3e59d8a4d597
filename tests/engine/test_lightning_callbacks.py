"""Callbacks, loggers and a tuner with Lightning; the commands of LightningCLI, and its messages."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import yaml
from engine import equal
from lightning.pytorch.tuner.tuning import Tuner
from lightning_runs import IGNORED, LightningProject, Project, rows, saved
from matrix import ROOT

pytestmark = [pytest.mark.filterwarnings(message) for message in IGNORED]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Undo what Lightning sets for the whole process."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def p(lightning: LightningProject) -> Project:
    return lightning("mlp")


def test_early_stopping_ends_the_run(p: Project, tmp_path: Path) -> None:
    options = [
        "--trainer.callbacks+=EarlyStopping",
        "--trainer.callbacks.monitor=val/loss",
        "--trainer.callbacks.min_delta=10",
        "--trainer.callbacks.patience=2",
    ]
    cli = p.run(tmp_path, *options, "--trainer.max_steps=1000")
    assert cli.trainer.global_step == 9, "the third validation"


def test_average_of_the_weights_is_validated_and_saved(p: Project, tmp_path: Path) -> None:
    average = ["--trainer.callbacks+=EMAWeightAveraging", "--trainer.callbacks.decay=0.5"]
    p.run(tmp_path / "plain", "--trainer.max_steps=12")
    p.run(tmp_path / "mean", "--trainer.max_steps=12", *average)
    assert rows(tmp_path / "mean") == rows(tmp_path / "plain"), "it does not change the training"
    assert rows(tmp_path / "mean", "val") != rows(tmp_path / "plain", "val")
    weights = saved(tmp_path / "mean")["state_dict"]
    assert not equal(weights, saved(tmp_path / "plain")["state_dict"])


def test_tuner_in_python(p: Project, tmp_path: Path) -> None:
    """The lines of the documentation."""
    options = ["--trainer.max_epochs=2", "--trainer.max_steps=-1"]
    config = p.arguments(tmp_path, *options)[1:]
    with mock.patch("sys.argv", ["python"]):
        cli = p.train.CLI(p.module.Model, p.datamodule.Data, run=False, args=config)
    tuner = Tuner(cli.trainer)
    assert tuner.scale_batch_size(cli.model, datamodule=cli.datamodule, max_trials=4) == 16
    assert cli.datamodule.batch_size == 16
    finder = tuner.lr_find(cli.model, datamodule=cli.datamodule, num_training=20)
    assert finder is not None
    assert cli.model.lr == finder.suggestion()


def test_every_logger_has_metrics_jsonl_in_its_folder(p: Project, tmp_path: Path) -> None:
    logger = [
        "--trainer.logger=TensorBoardLogger",
        f"--trainer.logger.save_dir={tmp_path}",
        "--trainer.logger.name=",
        "--trainer.logger.version=a",
    ]
    p.run(tmp_path, *logger)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows(tmp_path, "val")] == [3, 6]
    assert len(list((tmp_path / "a").glob("events.out.tfevents.*"))) == 1


def test_commands_on_a_run(p: Project, tmp_path: Path) -> None:
    """With the run's own config: the metrics are those of the run, whose record stays."""
    p.run(tmp_path, "--data.source.test_fraction=0.2")
    last = rows(tmp_path, "val")[-1]
    record = (tmp_path / "a/metrics.jsonl").read_text()
    (tmp_path / "a/config.yaml").rename(tmp_path / "saved.yaml")
    options = [
        f"--config={tmp_path}/saved.yaml",
        f"--ckpt_path={tmp_path}/a/checkpoints/last.ckpt",
        "--trainer.logger=false",
    ]
    metrics = p.run(tmp_path, *options, command="validate").trainer.callback_metrics
    for name in ("loss", "accuracy"):
        assert metrics[f"val/{name}"].item() == pytest.approx(last[name])

    cli = p.run(tmp_path, *options, command="test")
    batch = load_all(p, cli, cli.datamodule.test_dataloader().dataset)
    loss, _ = cli.model.net.eval()(*batch)
    assert cli.trainer.callback_metrics["test/loss"].item() == pytest.approx(loss.item(), rel=1e-4)

    predictions = list[torch.Tensor]()
    predict_step = p.module.Model.predict_step

    def observe(*given: Any) -> torch.Tensor:
        predictions.append(predict_step(*given))
        return predictions[-1]

    with mock.patch.object(p.module.Model, "predict_step", observe):
        cli = p.run(tmp_path, *options, command="predict")
    inputs = load_all(p, cli, cli.datamodule.splits[1])[:-1]
    expected = cli.model.net.eval().predict(*inputs)
    assert torch.allclose(torch.cat(predictions), expected, atol=1e-5), "in their order"
    assert (tmp_path / "a/metrics.jsonl").read_text() == record


def load_all(p: Project, cli: Any, dataset: Any) -> Any:
    """Return the whole dataset as one prepared batch."""
    batch = p.loader.load_batch(dataset, list(range(len(dataset))))
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

    readme = (p.root / "README.md").read_text()
    page = (ROOT / "docs/frameworks/lightning.md").read_text()
    named = set(re.findall(r"--((?:trainer|model|data)\.[a-z_]+)", readme + page))
    unknown = {name for name in named if not re.search(rf"--{re.escape(name)}[+. ]", shown)}
    assert unknown == set()
    assert len(named) > 20


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--trainer.presicion=bf16-mixed"], 2, "--trainer.presicion"),
        (["--model.lr=fast"], 2, 'Parser key "model.lr"'),
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
