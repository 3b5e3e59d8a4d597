"""Someone edits, commits or switches branches while an update is applied, or after it was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fastproj.shared.errors import FastprojError
from fastproj.shared.lock import locked
from fastproj.updating import moving
from fastproj.updating.moving import Step, fingerprint
from matrix import EVERY
from program import Fastproj
from updating import MakeProject, commit, edit, git, journal, project_state, stop_update


@pytest.fixture
def step(tmp_path: Path) -> Step:
    """A step that replaces `work/file` by `new/file`."""
    for folder, text in (("work", "committed\n"), ("new", "from the template\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text(text)
    return Step("file", fingerprint(tmp_path / "work/file"), fingerprint(tmp_path / "new/file"))


@pytest.mark.parametrize("how", ["in place", "by renaming"])
def test_file_saved_at_the_same_time_is_put_back(
    how: str, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, rename = tmp_path / "work/file", os.rename

    def save_first(source: Path, target: Path) -> None:
        if source == file and how == "in place":
            file.write_text("just saved\n")
        elif source == file:
            (tmp_path / "saved").write_text("just saved\n")
            rename(tmp_path / "saved", file)
        rename(source, target)

    monkeypatch.setattr(os, "rename", save_first)
    with pytest.raises(FastprojError, match="file was changed meanwhile"):
        moving.replace(tmp_path / "work", step, tmp_path / "new", tmp_path / "kept")
    assert file.read_text() == "just saved\n"
    assert (tmp_path / "new/file").read_text() == "from the template\n"


def test_file_created_at_the_same_time_is_kept(step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "work/file", os.link

    def create_first(source: Path, target: Path, **options: bool) -> None:
        if target == file:
            file.write_text("just saved\n")
        link(source, target, **options)

    monkeypatch.setattr(os, "link", create_first)
    with pytest.raises(FastprojError, match="file was changed meanwhile"):
        moving.replace(tmp_path / "work", step, tmp_path / "new", tmp_path / "kept")
    moving.undo(tmp_path / "work", step, tmp_path / "new", tmp_path / "kept")
    assert file.read_text() == "just saved\n"


def test_undo_moves_the_old_file_back(step: Step, tmp_path: Path) -> None:
    folders = tmp_path / "new", tmp_path / "kept"
    moving.replace(tmp_path / "work", step, *folders)
    assert (tmp_path / "work/file").read_text() == "from the template\n"
    moving.undo(tmp_path / "work", step, *folders)
    assert (tmp_path / "work/file").read_text() == "committed\n"
    assert (tmp_path / "new/file").read_text() == "from the template\n"


@pytest.mark.parametrize("move", ["commit", "branch", "staged"])
def test_killed_update_is_dropped_when_head_moved(
    move: str, make_project: MakeProject, fastproj: Fastproj, environment: dict[str, str]
) -> None:
    folder = make_project()
    assert stop_update(environment, folder, "record", "1", "SIGKILL").returncode == -signal.SIGKILL
    if move == "branch":
        git(folder, "checkout", "-q", "-b", "other")
    else:
        edit(folder / "README.md", "About", "Mine")
        git(folder, "add", "README.md")
        if move == "commit":
            commit(folder)
    before = project_state(folder)
    result = fastproj("update", "--yes", cwd=folder)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "the interrupted update to v0.3.0 was dropped" in result.stderr
    assert not journal(folder)
    assert project_state(folder) == before
    git(folder, "reset", "-q", "--hard")
    assert fastproj("update", "--yes", cwd=folder).returncode == 0


@pytest.mark.parametrize("option", ["--continue", "--abort", "--yes"])
@pytest.mark.parametrize("step", ["1", "5", "12"] if EVERY else ["5"])
def test_killed_update_then_git_reset_and_commit(
    step: str, option: str, make_project: MakeProject, fastproj: Fastproj, environment: dict[str, str]
) -> None:
    """What people do after a crash: remove git's lock, reset, clean, and work on."""
    folder = make_project()
    assert stop_update(environment, folder, "replace", step, "SIGKILL").returncode == -signal.SIGKILL
    (folder / ".git/index.lock").unlink(missing_ok=True)
    git(folder, "reset", "-q", "--hard")
    git(folder, "clean", "-qfdx")
    edit(folder / "README.md", "About", "Mine")
    commit(folder)
    before = project_state(folder)
    assert "version   v0.1.0; v0.3.0 is available" in fastproj("status", cwd=folder).stdout
    assert project_state(folder) == before
    result = fastproj("update", option, cwd=folder)
    assert (result.returncode, "was dropped" in result.stderr) == (1, True)
    assert project_state(folder) == before
    result = fastproj("update", "--yes", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "Mine" in (folder / "README.md").read_text()
    assert not (folder / ".git/fastproj").exists()


def test_journal_of_another_version_is_a_one_line_error(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project()
    git(folder, "update-ref", "refs/worktree/fastproj/update", "HEAD")
    for command in (["status"], ["update", "--yes"], ["update", "--continue"], ["update", "--abort"]):
        result = fastproj(*command, cwd=folder)
        assert (result.returncode, result.stderr.count("\n")) == (1, 1)
        assert "git update-ref -d refs/worktree/fastproj/update" in result.stderr
    assert journal(folder)


@pytest.mark.parametrize("option", ["--continue", "--abort"])
def test_nothing_to_continue_or_abort(option: str, make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project()
    before = project_state(folder)
    result = fastproj("update", option, cwd=folder)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "there is nothing to continue or abort" in result.stderr
    assert "take no other option" in fastproj("update", option, "--to", "v0.2.0", cwd=folder).stderr
    assert project_state(folder) == before


def test_killed_update_leaves_other_work_trees_alone(
    make_project: MakeProject, fastproj: Fastproj, environment: dict[str, str], tmp_path: Path
) -> None:
    folder = make_project()
    git(folder, "worktree", "add", "-q", str(tmp_path / "linked"))
    assert stop_update(environment, folder, "replace", "3", "SIGKILL").returncode == -signal.SIGKILL
    assert fastproj("update", "--yes", cwd=tmp_path / "linked").returncode == 0
    result = fastproj("update", "--continue", cwd=folder)
    assert "Finished the interrupted update" in result.stdout, result.stderr


def test_private_mode_is_kept(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project()
    (folder / "README.md").chmod(0o600)
    assert fastproj("update", "--yes", cwd=folder).returncode == 0
    assert (folder / "README.md").stat().st_mode & 0o777 == 0o600


def test_killed_update_leaves_no_lock_while_it_renders(environment: dict[str, str], tmp_path: Path) -> None:
    """The old version is rendered in a process of its own, which may outlive the program for a moment."""
    program = """
import os, signal, sys, time
from pathlib import Path
from fastproj.shared.lock import locked
from fastproj.shared.child import in_child
with locked(Path(sys.argv[1]), "busy"), in_child(lambda: time.sleep(5)):
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, check=False)
    with locked(tmp_path, "still locked") as held:
        assert held
