"""Exported files: loaded without the model's code, they compute what the model computes."""

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
def test_exported_program_computes_what_the_model_computes(run: Path) -> None:
    file = run / "model.pt2"
    try:
        assert export.export(run, "torch-export", file) < 1e-4
    except UserError as error:
        if "is no input of `forward`" not in str(error):
            raise
        pytest.skip(f"needs another model: {error}")
    assert file.exists()


@few_samples()
def test_file_that_differs_is_not_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = torch.full((), 1e9)
    monkeypatch.setattr(export, "_write_program", lambda program, file: lambda inputs: other)
    with pytest.raises(UserError, match=r"differs by up to 1e\+09|is no input of `forward`"):
        export.export(run, "torch-export", tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_folder_without_a_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        export.main([str(tmp_path)])
    assert "is not the folder of a run" in capsys.readouterr().err
