"""Sequence modeling tools: evaluate, predict and export.

Delete this file together with the example's tools/task.py: nothing else needs it.
"""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error, mean_squared_error
from torch import Tensor

from .. import data
from ..config import Config
from ..distributed import World
from ..tools import evaluate, export, predict, task
from ..tools.trained_model import TrainedModel, open_trained
from ..train import train

CPU = torch.device("cpu")


@pytest.fixture
def run(config: Callable[..., Config], world: World, tmp_path: Path) -> Callable[..., Path]:
    """Train a few steps on a short text or series, and return the folder of the run."""

    def make(kind: str, *options: str) -> Path:
        text, series = tmp_path / "own.txt", write(tmp_path / "own.csv", 300)
        text.write_text("the quick brown fox jumps over the lazy dog\n" * 100)
        own = [f"--data.path={text}", "--data.context=32", "--data.val_fraction=0.2"]
        if kind == "series":
            own = [f"--data.path={series}", "--data.columns=[tide,moon]", "--data.window=24", "--data.horizon=6"]
        own += [f"--data.kind={kind}", f"--data.cache_dir={tmp_path}/cache", "--run.name=a", *options]
        train(config(*own), world)
        return tmp_path / "a"

    return make


def write(file: Path, rows: int) -> Path:
    """Write two predictable columns of different scales, and one that is not used."""
    when = np.arange(rows)
    columns = {"moon": 1000 + 50 * np.sin(when / 9), "note": ["x"] * rows, "tide": 5 + np.sin(when / 3)}
    pl.DataFrame(columns).write_csv(file)
    return file


def predictions(trained: TrainedModel) -> tuple[Tensor, Tensor, Tensor]:
    """The validation inputs and targets, and the predictions."""
    samples = data.load(trained.cfg.data)
    batch = samples.val.__getitems__(list(range(len(samples.val))))
    inputs, targets = trained.prepare(batch, False, torch.default_generator)
    with torch.no_grad():
        return inputs, targets, trained.net.predict(inputs)


def evaluated(folder: Path) -> tuple[dict[str, Any], TrainedModel]:
    """The results that evaluate writes, and the model."""
    evaluate.main([str(folder), "--device=cpu"])
    trained = open_trained(folder, CPU)
    assert (trained.checkpoint / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((trained.checkpoint / "evaluation.json").read_text()), trained


def test_text_metrics_equal_those_of_scikit_learn(run: Callable[..., Path]) -> None:
    found, trained = evaluated(run("text"))
    _, targets, logits = predictions(trained)
    logits = logits.double().flatten(0, 1)
    nats = log_loss(targets.flatten(), logits.softmax(1), labels=list(range(256)))
    assert found["perplexity"] == pytest.approx(math.exp(nats), rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2), rel=1e-4)
    assert found["accuracy"] == pytest.approx(accuracy_score(targets.flatten(), logits.argmax(1)))


def test_series_metrics_equal_those_of_scikit_learn(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found, trained = evaluated(run("series"))
    rows, targets, forecast = predictions(trained)
    naive = rows[:, -1:].expand_as(targets)
    squared = [mean_squared_error(targets[:, step], forecast[:, step]) for step in range(6)]
    repeated = [mean_squared_error(targets[:, step], naive[:, step]) for step in range(6)]
    errors = (targets - forecast).abs() * torch.tensor(trained.spec.std)  # in the units of the columns
    absolute = errors.mean((0, 2)).tolist()
    assert found["mse_by_step"] == pytest.approx(squared, rel=1e-4)
    assert found["mae_by_step"] == pytest.approx(absolute, rel=1e-4)
    skills = [1 - ours / theirs for ours, theirs in zip(squared, repeated, strict=True)]
    assert found["skill_by_step"] == pytest.approx(skills, abs=1e-4)
    assert found["skill"] == pytest.approx(1 - sum(squared) / sum(repeated), abs=1e-4)
    assert found["loss"] == pytest.approx(np.mean(squared), rel=1e-4)
    assert found["mae"] == pytest.approx(np.mean(absolute), rel=1e-4)
    std = pl.read_csv(trained.cfg.data.path or "")[:240]["moon"].to_numpy().std()
    rmse = std * mean_squared_error(targets[:, :, 1].flatten(), forecast[:, :, 1].flatten()) ** 0.5
    assert found["rmse_by_column"]["moon"] == pytest.approx(rmse, rel=1e-4)
    mae = std * mean_absolute_error(targets[:, :, 1].flatten(), forecast[:, :, 1].flatten())
    assert found["mae_by_column"]["moon"] == pytest.approx(mae, rel=1e-4)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2].split() == ["mae", "of", "moon", f"{found['mae_by_column']['moon']:.6g}"]
    with pytest.raises(SystemExit, match="--stride is for text"):
        evaluate.main([str(trained.checkpoint), "--device=cpu", "--stride=8"])


def test_predict_continues_a_prompt(run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = run("text")
    capsys.readouterr()
    predict.main([str(folder), "--device=cpu", "--prompt=the quick", "--tokens=50", "--temperature=0"])
    first = capsys.readouterr().out
    assert first.startswith("the quick")
    assert len(first.encode()) >= len("the quick") + 50
    predict.main([str(folder), "--device=cpu", "--prompt=the quick", "--tokens=50", "--top-k=1", "--seed=5"])
    assert capsys.readouterr().out == first


def test_predict_forecasts_the_following_rows(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = run("series")
    inputs = write(tmp_path / "inputs.csv", 500)
    outputs = {suffix: tmp_path / f"out{suffix}" for suffix in (".csv", ".json", ".png")}
    for output in outputs.values():
        predict.main([str(folder), str(inputs), "--device=cpu", f"--output={output}"])
    capsys.readouterr()
    predict.main([str(folder), str(inputs), "--device=cpu"])
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    trained = open_trained(folder, CPU)
    rows = pl.read_csv(inputs)[["tide", "moon"]].to_numpy()[-24:]
    mean, std = np.array(trained.spec.mean), np.array(trained.spec.std)
    with torch.no_grad():
        expected = (
            trained.net.predict(torch.from_numpy((rows - mean) / std).float().unsqueeze(0))[0].numpy() * std + mean
        )
    assert expected[0] == pytest.approx(rows[-1], rel=0.1)
    head, *written = csv.reader(outputs[".csv"].read_text().splitlines())
    assert head == ["tide", "moon"]
    assert np.array(written, float) == pytest.approx(expected, rel=1e-4)
    assert json.loads(outputs[".json"].read_text())["columns"] == head
    assert np.array(json.loads(outputs[".json"].read_text())["forecast"]) == pytest.approx(expected, rel=1e-4)
    assert outputs[".png"].read_bytes().startswith(b"\x89PNG")
    assert printed[0] == ["step", "tide", "moon"]
    assert np.array(printed[1:], float)[:, 1:] == pytest.approx(expected, rel=1e-4)
    assert not list(tmp_path.glob(".partial*"))


def test_predict_rejects_invalid_input(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = run("series", "--train.steps=1", "--train.eval_every=1")
    monkeypatch.chdir(tmp_path)
    write(Path("short.csv"), 23)
    Path("other.csv").write_text("a,b\n1,2\n")
    cases = [
        ([], "give one CSV or Parquet file, and no --prompt"),
        (["own.csv", "--prompt=a"], "give one CSV or Parquet file, and no --prompt"),
        (["own.csv", "--output=a.txt"], "must end with .csv, .json or .png"),
        (["own.csv", "--output=nowhere/a.csv"], "cannot write nowhere/a.csv"),
        (["nowhere.csv"], "nowhere.csv does not exist"),
        (["short.csv"], "short.csv has 23 rows, but the model needs 24"),
        (["other.csv"], "has no column tide, moon"),
    ]
    for options, message in cases:
        with pytest.raises(SystemExit, match=message):
            predict.main([str(folder), *options, "--device=cpu"])


@pytest.mark.parametrize("kind", ["text", "series"])
@pytest.mark.parametrize("format_", ["torch", "onnx"])
def test_exported_model_equals_the_original(run: Callable[..., Path], kind: str, format_: str, tmp_path: Path) -> None:
    short = ["--data.context=8", "--data.window=12"]  # each step of the LSTM is exported
    folder = run(kind, "--train.steps=3", "--train.eval_every=3", *short)
    export.main([str(folder), f"--format={format_}", f"--output={tmp_path}/exported"])
    trained = open_trained(folder, CPU, "fp32")
    module, (inputs,) = task.export_module(trained)
    more = torch.cat([inputs, inputs, inputs])
    expected = module(more).detach()
    if kind == "series":
        assert expected.mean((0, 1)).numpy() == pytest.approx(trained.spec.mean, rel=0.2)
    torch.testing.assert_close(loaded(format_, tmp_path / "exported")(more), expected, rtol=1e-3, atol=1e-3)


def loaded(format_: str, file: Path) -> Callable[..., Tensor]:
    """Load an exported model."""
    if format_ == "torch":
        program: Any = torch.export.load(file).module()
        return lambda inputs: program(inputs).detach()
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (name,) = [entry.name for entry in session.get_inputs()]
    return lambda inputs: torch.from_numpy(session.run(None, {name: inputs.numpy()})[0])
