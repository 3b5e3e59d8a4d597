"""`fastproj update` with other answers: new questions, another model, an older release, another machine."""

import shutil
import sys
from pathlib import Path

import pexpect
import pytest
from edits import PACKAGE, edited_far, own_model
from program import Fastproj
from updating import Made, commit, files_of, git, lost, read_answers


def test_another_answer_is_an_update_too(made: Made, fastproj: Fastproj) -> None:
    folder = made("v0.2.0")
    edited_far(folder)
    commit(folder)
    done = fastproj("update", "--yes", "--to", "v0.2.0", "--gpus", "8", "--launchers", "slurm", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "gpus: 0 -> 8" in done.stdout
    assert (folder / "job.sbatch").is_file()
    assert "8 GPUs" in (folder / "README.md").read_text()
    recorded = read_answers(folder)
    assert (recorded["gpus"], recorded["tensor_cores"], recorded["launchers"]) == (8, "bf16", ["slurm"])
    assert recorded["_commit"] == "v0.2.0"
    commit(folder)
    done = fastproj("update", "--yes", "--to", "v0.2.0", "--gpus", "0", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "tensor_cores: bf16 -> (not asked)" in done.stdout
    assert "tensor_cores" not in read_answers(folder)
    commit(folder)
    done = fastproj("update", "--yes", "--to", "v0.2.0", "--gpus", "0", cwd=folder)
    assert "is up to date" in done.stdout
    assert git(folder, "status", "--porcelain") == ""


def test_the_users_own_file_is_left_alone_unless_an_answer_exchanges_it(made: Made, fastproj: Fastproj) -> None:
    folder = made("v0.1.0")
    model = folder / PACKAGE / "model.py"
    own_model(folder)
    commit(folder)
    done = fastproj("update", "--yes", "--gpus", "2", cwd=folder)
    assert done.returncode == 0, done.stdout
    assert "yours     src/proj/model.py" in done.stdout
    assert model.read_text() == "# a network of my own\nSIZE = 99\n"
    git(folder, "reset", "-q", "--hard")
    done = fastproj("update", "--yes", "--model", "two", cwd=folder)
    assert done.returncode == 1, done.stdout
    assert "CONFLICT  src/proj/model.py" in done.stdout
    text = model.read_text()
    for line in ("<<<<<<< yours", "# a network of my own", "SIZE = 99", "# the network two", ">>>>>>> template v0.3.0"):
        assert line in text


def test_downgrade_only_when_asked(made: Made, fastproj: Fastproj) -> None:
    folder = made("v0.2.0")
    rendered = files_of(folder)
    edited_far(folder)
    commit(folder)
    before = files_of(folder)
    done = fastproj("update", "--yes", "--to", "0.1.0", cwd=folder)
    assert done.returncode == 1
    assert "add --downgrade" in done.stderr
    assert files_of(folder) == before
    done = fastproj("update", "--yes", "--to", "0.1.0", "--downgrade", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert read_answers(folder)["_commit"] == "v0.1.0"
    assert lost(folder, before, rendered) == []


def test_answers_of_one_machine_update_on_another(fastproj: Fastproj, tmp_path: Path, home: Path) -> None:
    """The own template: its place is the same text everywhere, and FASTPROJ_HOME moves it for one machine alone."""
    done = fastproj("new", "proj", "--yes", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "proj"
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(home / ".gitconfig", other / ".gitconfig")
    done = fastproj("update", "--yes", "--gpus", "2", cwd=folder, HOME=str(other))
    assert done.returncode == 0, done.stderr
    assert read_answers(folder)["_src_path"] == "~/.fastproj/template.bundle"
    assert read_answers(folder)["gpus"] == 2
    git(folder, "reset", "-q", "--hard")
    (tmp_path / "file").touch()
    done = fastproj("update", "--yes", "--gpus", "2", cwd=folder, HOME=str(tmp_path / "file"))
    assert done.returncode == 1
    assert "FASTPROJ_HOME" in done.stderr
    moved = {"HOME": str(tmp_path / "file"), "FASTPROJ_HOME": str(tmp_path / "moved")}
    done = fastproj("update", "--yes", "--gpus", "2", cwd=folder, **moved)
    assert done.returncode == 0, done.stderr
    assert read_answers(folder)["_src_path"] == "~/.fastproj/template.bundle"
    assert str(tmp_path) not in git(folder, "diff", "--staged")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_new_question_is_asked_on_a_terminal(made: Made, environment: dict[str, str]) -> None:
    folder = made("v0.2.0")
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
