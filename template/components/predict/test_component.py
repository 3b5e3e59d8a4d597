"""What a trained model predicts, in the form that fits it: a table, masks, images or text."""

import csv
from pathlib import Path

import pytest

from ..components import predict
from .support import few_samples, train_here


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    train_here(folder, "--train.steps=4")
    return folder / "first"


def start(*arguments: object) -> None:
    with few_samples():
        predict.main(
            [
                *map(
                    str,
                    arguments,
                ),
                "--device=cpu",
            ]
        )


def test_validation_set_or_samples_are_predicted(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(run, "--count=4", "--prompt=def ", "--tokens=12")
    said = capsys.readouterr().out
    folder = run / "predictions"
    if (folder / "predictions.csv").exists():
        text = (folder / "predictions.csv").read_text(encoding="utf-8")
        table = list(csv.DictReader(text.splitlines()))
        assert len({row["sample"] for row in table}) == 11
        assert table[0]["sample"] == "00000"
        masks = [row["mask"] for row in table if "mask" in row]
        assert all((folder / mask).exists() for mask in masks)
    else:
        image = folder / "samples.png"
        assert said.startswith("def ") or image.read_bytes().startswith(b"\x89PNG")


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
    assert message.startswith("error: ")
    assert message.count("\n") == 1
