"""Tabular prediction tools: evaluate, predict and export.

Delete this file together with the example's tools/task.py: nothing else needs it.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import (
    confusion_matrix,
    log_loss,
    mean_absolute_error,
    mean_squared_error,
    precision_recall_fscore_support,
    r2_score,
)

from .. import data
from ..config import Config
from ..distributed import World
from ..tools import evaluate, export, predict, task
from ..tools.trained_model import TrainedModel, open_trained
from ..train import train
from .conftest import small

CPU = torch.device("cpu")
MISSING_EVERY = 7


def write(file: Path, rows: int = 90) -> Path:
    """Write a table with numbers, missing values and categories, and two targets that depend on them."""
    rng = np.random.default_rng(0)
    size, kind = rng.normal(5, 2, rows), rng.integers(0, 3, rows)
    frame = pl.DataFrame(
        {
            "note": [f"row {row}" for row in range(rows)],
            "size": [None if row % MISSING_EVERY == 0 else value for row, value in enumerate(size)],
            "kind": [("red", "green", "blue")[index] for index in kind],
            "label": [("small", "middle", "large")[int(value > 4) + int(value > 6)] for value in size],
            "price": 100 + 10 * size + 5 * kind,
        }
    )
    frame.write_csv(file)
    return file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Train a few steps to predict one of the columns, once for each, and return the folder of the run."""

    @functools.cache
    def make(target: str) -> Path:
        folder = tmp_path_factory.mktemp(target)
        other = "price" if target == "label" else "label"
        options = [f"--data.path={write(folder / 'train.csv')}", f"--data.target={target}"]
        options += [f"--data.ignore=[note,{other}]", f"--data.cache_dir={folder / 'cache'}", f"--run.dir={folder}"]
        train(small(*options, "--run.name=tables", "--train.steps=30"), World(0, 1, CPU))
        return folder / "tables"

    return make


def outputs(trained: TrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """The targets of the validation rows, and the predictions."""
    samples = data.load(trained.cfg.data)
    numbers, codes, targets = samples.val.__getitems__(list(range(len(samples.val))))
    with torch.no_grad():
        return targets, task.RowPredictor(trained.net, trained.prepare)(numbers, codes)


def evaluated(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """What evaluate writes and prints."""
    capsys.readouterr()
    evaluate.main([str(run), "--device=cpu"])
    trained = open_trained(run, CPU)
    assert (trained.checkpoint / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((trained.checkpoint / "evaluation.json").read_text()), capsys.readouterr().out


def test_classification_metrics_equal_those_of_scikit_learn(
    run: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run("label")
    found, printed = evaluated(folder, capsys)
    trained = open_trained(folder, CPU)
    targets, probabilities = outputs(trained)
    chosen = probabilities.argmax(1)
    assert found["confusion"] == confusion_matrix(targets, chosen, labels=[0, 1, 2]).tolist()
    precision, recall, _, _ = precision_recall_fscore_support(targets, chosen, labels=[0, 1, 2], zero_division=0)
    assert found["precision"] == pytest.approx(precision.tolist())
    assert found["recall"] == pytest.approx(recall.tolist())
    normalized = probabilities.double() / probabilities.double().sum(1, keepdim=True)
    expected = log_loss(targets, normalized, labels=[0, 1, 2])
    assert found["log_loss"] == pytest.approx(expected, rel=1e-4)
    assert found["accuracy"] == pytest.approx((chosen == targets).double().mean().item())
    assert found["samples"] == len(targets)
    for name in trained.spec.classes:
        assert name in printed


def test_regression_metrics_equal_those_of_scikit_learn(
    run: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run("price")
    found, printed = evaluated(folder, capsys)
    targets, predicted = outputs(open_trained(folder, CPU))
    assert found["r2"] == pytest.approx(r2_score(targets, predicted), rel=1e-4)
    assert found["rmse"] == pytest.approx(mean_squared_error(targets, predicted) ** 0.5, rel=1e-4)
    assert found["mae"] == pytest.approx(mean_absolute_error(targets, predicted), rel=1e-4)
    assert "rmse" in printed


def test_validation_r2_equals_that_of_scikit_learn(world: World, run: Callable[[str], Path]) -> None:
    folder = run("price")
    metrics = evaluate.measure(open_trained(folder, CPU), world).metrics
    targets, predicted = outputs(open_trained(folder, CPU))
    assert metrics["r2"] == pytest.approx(r2_score(targets, predicted), rel=1e-4)


def test_predict_adds_columns(run: Callable[[str], Path], tmp_path: Path) -> None:
    folder = run("label")
    (folder.parent / "train.csv").rename(tmp_path / "train.csv")  # only the checkpoint is needed
    rows = pl.read_csv(tmp_path / "train.csv").drop("label", "price")
    rows.write_parquet(tmp_path / "new.parquet")
    names = [f"probability {name}" for name in ("large", "middle", "small")]
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        ".csv": pl.read_csv,
        ".parquet": pl.read_parquet,
        ".json": pl.read_json,
    }
    for suffix, reader in readers.items():
        target = tmp_path / f"predicted{suffix}"
        predict.main([str(folder), str(tmp_path / "new.parquet"), "--device=cpu", f"--output={target}"])
        predicted = reader(target)
        assert predicted.select(rows.columns).equals(rows)
        assert predicted.columns == [*rows.columns, "prediction", *names]
        probabilities = predicted.select(names).to_numpy()
        assert probabilities.sum(1) == pytest.approx(np.ones(len(rows)), abs=1e-5)
        assert predicted["prediction"].to_list() == [
            ("large", "middle", "small")[index] for index in probabilities.argmax(1)
        ]
    (tmp_path / "train.csv").rename(folder.parent / "train.csv")
    assert not list(tmp_path.glob(".partial*"))


def test_predict_prints_numbers_in_the_original_unit(
    run: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run("price")
    capsys.readouterr()
    (tmp_path / "more").mkdir()
    rows = {"size": [3.0, None], "kind": ["red", "violet"], "extra": [1, 2]}
    for name in ("a.csv", "b.csv"):
        pl.DataFrame(rows).write_csv(tmp_path / "more" / name)
    predict.main([str(folder), str(tmp_path / "more"), "--device=cpu"])
    printed = capsys.readouterr()
    assert "prediction" in printed.out
    assert printed.out.count("violet") == 2
    assert "column kind: 1 of 2 values count as unknown ('violet')" in printed.err


def test_predictions_do_not_depend_on_the_batch_size(
    run: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run("price")
    found = []
    for rows in (8192, 7):
        monkeypatch.setattr(task, "BATCH", rows)
        options = ["--device=cpu", f"--output={tmp_path / 'predicted.parquet'}"]
        predict.main([str(folder), str(write(tmp_path / "new.csv")), *options])
        found.append(pl.read_parquet(tmp_path / "predicted.parquet")["prediction"].to_numpy())
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0].min() > 20


def test_predict_rejects_invalid_input(run: Callable[[str], Path], tmp_path: Path) -> None:
    good: dict[str, Any] = {"size": [1.0], "kind": ["red"]}
    cases: list[tuple[dict[str, Any] | None, str, str]] = [
        (None, "predicted.csv", "new.csv does not exist"),
        ({"size": [1.0]}, "predicted.csv", "new.csv has no column kind"),
        ({**good, "size": ["big"]}, "predicted.csv", "column size of .*new.csv contains 'big' in row 1"),
        ({**good, "prediction": [1]}, "predicted.csv", "already has a column prediction"),
        (good, "predicted.xls", "has an unknown format"),
        (good, "nowhere/predicted.csv", "cannot write"),
    ]
    folder, file = run("label"), tmp_path / "new.csv"
    for rows, output, message in cases:
        if rows is not None:
            pl.DataFrame(rows).write_csv(file)
        with pytest.raises(SystemExit, match=message):
            predict.main([str(folder), str(file), "--device=cpu", f"--output={tmp_path / output}"])
        assert not (tmp_path / output).exists()


@pytest.mark.parametrize(("target", "kind"), [("label", "torch"), ("label", "onnx"), ("price", "onnx")])
def test_exported_model_equals_the_original(
    run: Callable[[str], Path], capsys: pytest.CaptureFixture[str], target: str, kind: str
) -> None:
    export.main([str(run(target)), f"--format={kind}"])
    assert "maximum difference" in capsys.readouterr().out


def test_model_without_categories_is_exported(
    config: Callable[..., Config], world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config("--run.name=plain"), world)
    export.main([str(tmp_path / "plain"), "--format=onnx"])
    assert "maximum difference" in capsys.readouterr().out


def test_exported_module_accepts_missing_values_as_nan(run: Callable[[str], Path]) -> None:
    trained = open_trained(run("label"), CPU)
    module, (numbers, codes) = task.export_module(trained)
    numbers[0, 0] = float("nan")
    with torch.no_grad():
        probabilities = module(numbers, codes)
    assert probabilities.isfinite().all()
    assert probabilities.sum(1).tolist() == pytest.approx([1, 1])
