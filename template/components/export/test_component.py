"""Exported files: loaded without the model's code, they compute what the model computes."""

import re
from pathlib import Path

import pytest
import torch

from ..components import export
from ..errors import UserError
from .support import few_samples, train_here


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    train_here(folder)
    return folder / "first"


@few_samples()
def start(*arguments: object) -> None:
    export.main([*map(str, arguments)])


def test_exported_program_computes_what_the_model_computes(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    try:
        start(run)
    except SystemExit:
        message = capsys.readouterr().err
        assert re.fullmatch(
            r"error: `predict` of \w+ takes \w+, which is no input of `forward`: .*\n", message
        )
        assert not (run / "model.pt2").exists()
        return
    said = capsys.readouterr().out
    assert said.startswith(f"{run}/model.pt2: the largest difference from the model is ")
    assert float(said.split()[-1]) < 1e-4
    assert torch.export.load(run / "model.pt2").module() is not None


def test_file_that_differs_is_not_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        export, "_write_program", lambda program, file: lambda inputs: torch.zeros(()) + 1e9
    )
    with (
        few_samples(),
        pytest.raises(UserError, match=r"differs by up to 1e\+09|is no input of `forward`"),
    ):
        export.export(run, "torch-export", tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_folder_without_a_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        start(tmp_path)
    assert "is not the folder of a run" in capsys.readouterr().err
