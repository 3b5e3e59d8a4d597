"""`fastproj update` with other answers: new questions, another model, an older release, another machine."""

import shutil
import sys
from pathlib import Path

import pexpect
import pytest
from edits import PACKAGE, edited_another_function, own_model
from program import Fastproj
from updating import MakeProject, commit, git, lost_edits, read_answers, read_files


def test_update_changes_answers(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.2.0")
    edited_another_function(folder)
    commit(folder)
    result = fastproj("update", "--yes", "--to", "v0.2.0", "--gpus", "8", "--launchers", "slurm", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "gpus: 0 -> 8" in result.stdout
    assert (folder / "job.sbatch").is_file()
    assert "8 GPUs" in (folder / "README.md").read_text()
    recorded = read_answers(folder)
    assert (recorded["gpus"], recorded["tensor_cores"], recorded["launchers"]) == (8, "bf16", ["slurm"])
    assert recorded["_commit"] == "v0.2.0"
    commit(folder)
    result = fastproj("update", "--yes", "--to", "v0.2.0", "--gpus", "0", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "tensor_cores: bf16 -> (not asked)" in result.stdout
    assert "tensor_cores" not in read_answers(folder)
    commit(folder)
    result = fastproj("update", "--yes", "--to", "v0.2.0", "--gpus", "0", cwd=folder)
    assert "is up to date" in result.stdout
    assert git(folder, "status", "--porcelain") == ""


def test_model_file_is_kept_unless_the_model_answer_changes(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.1.0")
    model = folder / PACKAGE / "model.py"
    own_model(folder)
    commit(folder)
    result = fastproj("update", "--yes", "--gpus", "2", cwd=folder)
    assert result.returncode == 0, result.stdout
    assert "yours     src/proj/model.py" in result.stdout
    assert model.read_text() == "# a network of my own\nSIZE = 99\n"
    git(folder, "reset", "-q", "--hard")
    result = fastproj("update", "--yes", "--model", "two", cwd=folder)
    assert result.returncode == 1, result.stdout
    assert "CONFLICT  src/proj/model.py" in result.stdout
    text = model.read_text()
    for line in ("<<<<<<< yours", "# a network of my own", "SIZE = 99", "# the network two", ">>>>>>> template-v0.3.0"):
        assert line in text


def test_downgrade_requires_the_option(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.2.0")
    rendered = read_files(folder)
    edited_another_function(folder)
    commit(folder)
    before = read_files(folder)
    result = fastproj("update", "--yes", "--to", "0.1.0", cwd=folder)
    assert result.returncode == 1
    assert "add --downgrade" in result.stderr
    assert read_files(folder) == before
    result = fastproj("update", "--yes", "--to", "0.1.0", "--downgrade", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert read_answers(folder)["_commit"] == "v0.1.0"
    assert lost_edits(folder, before, rendered) == []


def test_update_on_another_machine(fastproj: Fastproj, tmp_path: Path, home: Path) -> None:
    """The recorded location of the own template is the same on every machine, also with FASTPROJ_HOME."""
    result = fastproj("new", "proj", "--yes", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "proj"
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(home / ".gitconfig", other / ".gitconfig")
    result = fastproj("update", "--yes", "--gpus", "2", cwd=folder, HOME=str(other))
    assert result.returncode == 0, result.stderr
    assert read_answers(folder)["_src_path"] == "~/.fastproj/template.bundle"
    assert read_answers(folder)["gpus"] == 2
    git(folder, "reset", "-q", "--hard")
    (tmp_path / "file").touch()
    result = fastproj("update", "--yes", "--gpus", "2", cwd=folder, HOME=str(tmp_path / "file"))
    assert result.returncode == 1
    assert "FASTPROJ_HOME" in result.stderr
    moved = {"HOME": str(tmp_path / "file"), "FASTPROJ_HOME": str(tmp_path / "moved")}
    result = fastproj("update", "--yes", "--gpus", "2", cwd=folder, **moved)
    assert result.returncode == 0, result.stderr
    assert read_answers(folder)["_src_path"] == "~/.fastproj/template.bundle"
    assert str(tmp_path) not in git(folder, "diff", "--staged")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_new_question_is_asked_on_a_terminal(make_project: MakeProject, environment: dict[str, str]) -> None:
    folder = make_project("v0.2.0")
    variables = environment | {"TERM": "xterm-256color"}
    command = ["-m", "fastproj", "update"]
    terminal = pexpect.spawn(
        sys.executable, command, cwd=str(folder), env=variables, encoding="utf-8", dimensions=(40, 120), timeout=60
    )
    terminal.expect("tracker")
    terminal.send("\x7f" * 4 + "mlflow\r")
    terminal.expect(r"tracker: \(not asked\) -> mlflow")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    assert read_answers(folder)["tracker"] == "mlflow"
