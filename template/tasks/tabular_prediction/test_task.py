"""A trained model of tables in use: what evaluate adds, rows in and predictions out, and its export."""

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
from ..tools.trained_model import Trained, open_trained
from ..train import train

CPU = torch.device("cpu")
WITH_GAPS = 7


def write(file: Path, rows: int = 90) -> Path:
    """A table with numbers, gaps and categories, from which two targets can be told."""
    noise = np.random.default_rng(0)
    size, kind = noise.normal(5, 2, rows), noise.integers(0, 3, rows)
    frame = pl.DataFrame(
        {
            "note": [f"row {row}" for row in range(rows)],
            "size": [None if row % WITH_GAPS == 0 else value for row, value in enumerate(size)],
            "kind": [("red", "green", "blue")[place] for place in kind],
            "label": [("small", "middle", "large")[int(value > 4) + int(value > 6)] for value in size],
            "price": 100 + 10 * size + 5 * kind,
        }
    )
    frame.write_csv(file)
    return file


@pytest.fixture
def run(config: Callable[..., Config], world: World, tmp_path: Path) -> Callable[[str], Path]:
    """Train a few steps to predict one of the table's columns, and return the run's folder."""

    def make(target: str) -> Path:
        file = write(tmp_path / "train.csv")
        other = "price" if target == "label" else "label"
        options = [f"--data.path={file}", f"--data.target={target}", f"--data.ignore=[note,{other}]"]
        cfg = config(*options, f"--data.cache_dir={tmp_path / 'cache'}", "--run.name=tables", "--train.steps=30")
        train(cfg, world)
        return tmp_path / "tables"

    return make


def outputs(trained: Trained) -> tuple[torch.Tensor, torch.Tensor]:
    """The targets of the held-out rows, and what the model says of them."""
    samples = data.load(trained.cfg.data)
    numbers, codes, targets = samples.val.__getitems__(list(range(len(samples.val))))
    with torch.no_grad():
        return targets, task.Rowwise(trained.net, trained.prepare)(numbers, codes)


def evaluated(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """What evaluate writes, and what it prints."""
    capsys.readouterr()
    evaluate.main([str(run), "--device=cpu"])
    trained = open_trained(run, CPU)
    assert (trained.checkpoint / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((trained.checkpoint / "evaluation.json").read_text()), capsys.readouterr().out


def test_evaluate_counts_as_scikit_learn_does(run: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = run("label")
    found, printed = evaluated(folder, capsys)
    trained = open_trained(folder, CPU)
    targets, shares = outputs(trained)
    chosen = shares.argmax(1)
    assert found["confusion"] == confusion_matrix(targets, chosen, labels=[0, 1, 2]).tolist()
    precision, recall, _, _ = precision_recall_fscore_support(targets, chosen, labels=[0, 1, 2], zero_division=0)
    assert found["precision"] == pytest.approx(precision.tolist())
    assert found["recall"] == pytest.approx(recall.tolist())
    wanted = log_loss(targets, shares.double() / shares.double().sum(1, keepdim=True), labels=[0, 1, 2])
    assert found["log_loss"] == pytest.approx(wanted, rel=1e-4)
    assert found["accuracy"] == pytest.approx((chosen == targets).double().mean().item())
    assert found["samples"] == len(targets)
    for name in trained.spec.classes:
        assert name in printed


def test_evaluate_measures_numbers_as_scikit_learn_does(
    run: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run("price")
    found, printed = evaluated(folder, capsys)
    targets, said = outputs(open_trained(folder, CPU))
    assert found["r2"] == pytest.approx(r2_score(targets, said), rel=1e-4)
    assert found["rmse"] == pytest.approx(mean_squared_error(targets, said) ** 0.5, rel=1e-4)
    assert found["mae"] == pytest.approx(mean_absolute_error(targets, said), rel=1e-4)
    assert "rmse" in printed


def test_the_metric_r2_is_that_of_scikit_learn(world: World, run: Callable[[str], Path]) -> None:
    folder = run("price")
    metrics = evaluate.measure(open_trained(folder, CPU), world).metrics
    targets, said = outputs(open_trained(folder, CPU))
    assert metrics["r2"] == pytest.approx(r2_score(targets, said), rel=1e-4)


def test_predict_adds_columns_to_the_rows(run: Callable[[str], Path], tmp_path: Path) -> None:
    folder = run("label")
    rows = pl.read_csv(tmp_path / "train.csv").drop("label", "price")
    rows.write_parquet(tmp_path / "new.parquet")
    (tmp_path / "train.csv").unlink()  # nothing but the checkpoint is needed
    names = [f"probability {name}" for name in ("large", "middle", "small")]
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        ".csv": pl.read_csv,
        ".parquet": pl.read_parquet,
        ".json": pl.read_json,
    }
    for suffix, reader in readers.items():
        target = tmp_path / f"said{suffix}"
        predict.main([str(folder), str(tmp_path / "new.parquet"), "--device=cpu", f"--output={target}"])
        said = reader(target)
        assert said.select(rows.columns).equals(rows)
        assert said.columns == [*rows.columns, "prediction", *names]
        shares = said.select(names).to_numpy()
        assert shares.sum(1) == pytest.approx(np.ones(len(rows)), abs=1e-5)
        assert said["prediction"].to_list() == [("large", "middle", "small")[place] for place in shares.argmax(1)]
    assert not list(tmp_path.glob(".partial*"))


def test_predict_prints_numbers_in_their_own_unit(
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


def test_predict_is_the_same_in_any_batch(
    run: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run("price")
    found = []
    for rows in (8192, 7):
        monkeypatch.setattr(task, "AT_ONCE", rows)
        options = ["--device=cpu", f"--output={tmp_path / 'said.parquet'}"]
        predict.main([str(folder), str(write(tmp_path / "new.csv")), *options])
        found.append(pl.read_parquet(tmp_path / "said.parquet")["prediction"].to_numpy())
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0].min() > 20


def test_predict_refuses_in_one_line(run: Callable[[str], Path], tmp_path: Path) -> None:
    good: dict[str, Any] = {"size": [1.0], "kind": ["red"]}
    cases: list[tuple[dict[str, Any] | None, str, str]] = [
        (None, "said.csv", "new.csv does not exist"),
        ({"size": [1.0]}, "said.csv", "new.csv has no column kind"),
        ({**good, "size": ["big"]}, "said.csv", "column size of .*new.csv holds 'big' in row 1"),
        ({**good, "prediction": [1]}, "said.csv", "has a column prediction already"),
        (good, "said.xls", "has no known format"),
        (good, "nowhere/said.csv", "cannot write"),
    ]
    folder, file = run("label"), tmp_path / "new.csv"
    for rows, output, message in cases:
        if rows is not None:
            pl.DataFrame(rows).write_csv(file)
        with pytest.raises(SystemExit, match=message):
            predict.main([str(folder), str(file), "--device=cpu", f"--output={tmp_path / output}"])
        assert not (tmp_path / output).exists()


@pytest.mark.parametrize(("target", "kind"), [("label", "torch"), ("label", "onnx"), ("price", "onnx")])
def test_export_agrees_with_the_model(
    run: Callable[[str], Path], capsys: pytest.CaptureFixture[str], target: str, kind: str
) -> None:
    export.main([str(run(target)), f"--format={kind}"])
    assert "its outputs differ from the model's by" in capsys.readouterr().out


def test_export_without_a_category_or_a_gap(
    config: Callable[..., Config], world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config("--run.name=plain"), world)
    export.main([str(tmp_path / "plain"), "--format=onnx"])
    assert "its outputs differ from the model's by" in capsys.readouterr().out


def test_an_export_takes_gaps_as_nan(run: Callable[[str], Path]) -> None:
    trained = open_trained(run("label"), CPU)
    module, (numbers, codes) = task.exported(trained)
    numbers[0, 0] = float("nan")
    with torch.no_grad():
        shares = module(numbers, codes)
    assert shares.isfinite().all()
    assert shares.sum(1).tolist() == pytest.approx([1, 1])
