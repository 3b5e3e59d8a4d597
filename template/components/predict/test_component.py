"""What a trained model predicts, in the form that fits it: a table, masks, images or text."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from .. import data
from ..components import predict
from ..data import DataConfig
from ..model import ModelConfig, build
from .support import few_samples, train_here


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    train_here(folder)
    return folder / "first"


def start(*arguments: object) -> None:
    with few_samples():
        predict.main([*map(str, arguments), "--device=cpu"])


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "predictions.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def kind() -> str:
    spec: Any = data.load(DataConfig())[2]
    if hasattr(build(ModelConfig(), spec), "sample"):
        return "images"
    return "table" if hasattr(spec, "classes") or not getattr(spec, "vocabulary", 0) else "text"


def test_each_validation_sample_has_a_prediction(run: Path) -> None:
    if kind() != "table":
        pytest.skip("needs a model that writes a table")
    start(run, "--batch=4")  # the run's batches, as the last digits depend on their size
    found = table(run / "predictions")
    assert len({row["sample"] for row in found}) == 11
    assert found[0]["sample"] == "00000"
    for row in found:
        shares = [float(value) for name, value in row.items() if name.startswith("p(")]
        assert not shares or sum(shares) == pytest.approx(1, abs=1e-4)
        assert "mask" not in row or (run / "predictions" / row["mask"]).exists()
    if "label" in found[0]:
        hits = sum(row["predicted"] == row["label"] for row in found)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        best = min(
            (row for row in rows if row["split"] == "val"), key=lambda row: float(row["loss"])
        )
        assert hits / 11 == pytest.approx(best["accuracy"])


def test_samples_are_images_or_text_and_follow_the_seed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for seed in (0, 0, 1):
        start(
            run, "--seed", seed, "--count=4", "--prompt=def ", "--tokens=12", "--output", tmp_path
        )
        file = tmp_path / "samples.png"
        found.append((file.read_bytes() if file.exists() else b"", capsys.readouterr().out))
    assert found[0] == found[1]
    assert (found[0] == found[2]) == (kind() == "table")
    assert kind() != "text" or found[0][1].startswith("def ")
    assert kind() != "images" or found[0][0].startswith(b"\x89PNG")


def test_folder_without_a_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        start(tmp_path)
    assert "is not the folder of a run" in capsys.readouterr().err


def test_file_that_cannot_be_read_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.csv").write_text("nothing\n1\n")
    with pytest.raises(SystemExit):
        start(run, tmp_path / "new.csv")
    message = capsys.readouterr().err
    assert message.startswith("error: cannot read" if kind() == "table" else "error: ")
    assert message.count("\n") == 1
    assert torch.is_grad_enabled()
