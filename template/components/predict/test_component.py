"""What a trained model predicts, in the form that fits it: a table, masks, images or text."""

import csv
from pathlib import Path

import pytest

from ..components import predict
from .support import few_samples, train_here


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    train_here(folder)
    return folder / "first"


def start(*arguments: object) -> None:
    with few_samples():
        predict.main([*map(str, arguments), "--device=cpu"])


def test_validation_set_or_samples_are_predicted(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--count=4", "--prompt=def ", "--tokens=12"]
    start(run, *options)
    said = capsys.readouterr().out
    folder = run / "predictions"
    if (folder / "predictions.csv").exists():
        text = (folder / "predictions.csv").read_text(encoding="utf-8")
        table = list(csv.DictReader(text.splitlines()))
        names = {row["sample"] for row in table}
        assert len(names) == 11
        assert table[0]["sample"] == "00000"
        for row in table:
            if "mask" in row:
                assert (folder / row["mask"]).exists()
    else:
        image = folder / "samples.png"
        is_text = said.startswith("def ")
        assert is_text or image.read_bytes().startswith(b"\x89PNG")


def test_file_that_cannot_be_read_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.csv"
    file.write_text("nothing\n1\n")
    with pytest.raises(SystemExit):
        start(run, file)
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
