"""`fastproj update` where the repository, its place or the terminal is not as one expects."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest
from program import Fastproj
from updating import Made, build, commit, edit, files_of, git, state_of, stop_update

ENGINE = "src/proj/engine.py"


def test_a_folder_whose_name_is_no_text(made: Made, fastproj: Fastproj, tmp_path: Path) -> None:
    folder = made().rename(tmp_path / os.fsdecode(b"\xff"))
    assert "version   v0.1.0; v0.3.0 is there" in fastproj("status", cwd=folder).stdout
    assert fastproj("update", "--yes", "--dry-run", cwd=folder).returncode == 0


def test_the_folder_above_is_no_part_of_the_project(made: Made, fastproj: Fastproj) -> None:
    folder = made()
    before = files_of(folder)
    done = fastproj("update", "--yes", "..", cwd=folder)
    assert (done.returncode, "there is no .copier-answers.yml" in done.stderr) == (1, True)
    assert files_of(folder) == before


def test_a_link_to_a_folder_of_the_project(made: Made, fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(made("v0.3.0") / "src")
    assert fastproj("status", str(tmp_path / "link")).returncode == 0


def test_the_current_folder_is_one_that_goes(made: Made, fastproj: Fastproj, tmp_path: Path) -> None:
    folder = made("v0.2.0")
    edit(folder / "src/proj/engine.py", "return 20", "return 21")
    commit(folder)
    assert fastproj("update", "--yes", "--launchers", "slurm", cwd=folder).returncode == 0
    commit(folder)
    done = fastproj("update", "--yes", "--to", "v0.2.0", "--downgrade", cwd=folder / "docs")
    assert not (folder / "docs").exists()
    assert done.returncode == 0, done.stderr
    assert f"git -C {folder} commit" in done.stdout


def test_a_version_with_a_null_byte_is_one_line(made: Made, fastproj: Fastproj) -> None:
    folder = made()
    edit(folder / ".copier-answers.yml", "_commit: v0.1.0", '_commit: "v0\\0"')
    commit(folder)
    done = fastproj("update", "--yes", cwd=folder)
    assert (done.returncode, done.stderr.count("\n"), "fastproj adopt" in done.stderr) == (1, 1, True)


def test_answers_of_another_kind_are_the_same_answers(made: Made, fastproj: Fastproj) -> None:
    folder = made()
    edit(folder / ".copier-answers.yml", "gpus: 0", "gpus: '0'")
    commit(folder)
    done = fastproj("update", "--yes", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "gpus: 0\n" in (folder / ".copier-answers.yml").read_text()


def test_the_answers_file_with_other_line_ends_is_no_conflict(made: Made, fastproj: Fastproj) -> None:
    folder = made()
    file = folder / ".copier-answers.yml"
    edit(file, "_commit: v0.1.0\n", "_commit: 'v0.1.0'\n")
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    commit(folder)
    done = fastproj("update", "--yes", cwd=folder)
    assert done.returncode == 0, done.stdout
    assert b"_commit: v0.3.0\r\n" in file.read_bytes()


def test_the_users_attributes_are_merged_and_not_replaced(made: Made, fastproj: Fastproj, tmp_path: Path) -> None:
    """Also where the template comes to have some: and those go again with it."""
    folder = made()
    git(tmp_path, "clone", "-q", str(build(tmp_path)), "fork")
    (tmp_path / "fork/project/.gitattributes").write_text("*.bin binary\n")
    commit(tmp_path / "fork")
    git(tmp_path / "fork", "tag", "v0.4.0")
    fork = ["--template", str(tmp_path / "fork")]
    done = fastproj("update", "--yes", *fork, cwd=folder)
    assert (folder / ".gitattributes").read_text() == "*.bin binary\n", done.stderr
    commit(folder)
    assert fastproj("update", "--yes", "--to", "v0.3.0", "--downgrade", cwd=folder).returncode == 0
    assert not (folder / ".gitattributes").exists()
    git(folder, "reset", "-q", "--hard", "HEAD~1")
    (folder / ".gitattributes").write_text("# mine\n*.py text\n")
    commit(folder)
    assert fastproj("update", "--yes", *fork, cwd=folder).returncode == 1
    text = (folder / ".gitattributes").read_text()
    assert "# mine\n*.py text\n" in text
    assert "*.bin binary\n" in text


def test_modes_that_git_is_not_to_see_stay(made: Made, fastproj: Fastproj) -> None:
    folder = made()
    git(folder, "config", "core.fileMode", "false")
    (folder / ENGINE).chmod(0o755)
    (folder / "README.md").chmod(0o400)
    done = fastproj("update", "--yes", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Of release 3" in (folder / ENGINE).read_text()
    assert (folder / ENGINE).stat().st_mode & 0o777 == 0o755


def test_a_conflict_in_a_file_that_git_is_not_to_check_out(made: Made, fastproj: Fastproj) -> None:
    folder = made()
    edit(folder / "src/proj/old.py", "OLD_3 = 3", "OLD_3 = 'mine'")
    commit(folder)
    git(folder, "update-index", "--skip-worktree", "src/proj/old.py")
    before = state_of(folder)
    done = fastproj("update", "--yes", cwd=folder)
    assert (done.returncode, "--no-skip-worktree" in done.stderr) == (1, True)
    assert state_of(folder) == before


def test_a_folder_with_only_a_link_is_in_the_way(made: Made, fastproj: Fastproj, tmp_path: Path) -> None:
    folder = made()
    (folder / "docs/new.md").mkdir(parents=True)
    (folder / "docs/new.md/data").symlink_to(tmp_path)
    before = files_of(folder)
    done = fastproj("update", "--yes", cwd=folder)
    assert (done.returncode, "untracked files lie" in done.stderr) == (1, True)
    assert files_of(folder) == before


def test_many_files_of_ones_own_take_no_call_of_git_each(made: Made, fastproj: Fastproj, tmp_path: Path) -> None:
    folder = made()
    (folder / "mine").mkdir()
    for number in range(150):
        (folder / f"mine/{number}.txt").write_text(f"{number}\n")
    commit(folder)
    (tmp_path / "bin").mkdir()
    git_itself = shutil.which("git")
    (tmp_path / "bin/git").write_text(f'#!/bin/sh\necho >> {tmp_path}/calls\nexec {git_itself} "$@"\n')
    (tmp_path / "bin/git").chmod(0o755)
    done = fastproj("update", "--yes", cwd=folder, PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text().count("\n") < 150


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_terminal_whose_output_is_closed(made: Made, environment: dict[str, str]) -> None:
    command = ["-c", f"{sys.executable} -m fastproj update >&-"]
    done = pexpect.spawn("sh", command, cwd=str(made()), env=environment, encoding="utf-8", timeout=60)
    done.expect(pexpect.EOF)
    done.close()
    assert (done.exitstatus, "Traceback" in (done.before or "")) == (0, False)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_after_the_last_step_does_not_say_that_nothing_changed(
    number: str, made: Made, environment: dict[str, str]
) -> None:
    folder = made()
    done = stop_update(environment, folder, "apply", "1", number)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Updated" in done.stdout


def test_a_look_with_git_after_the_kill_changes_nothing(
    made: Made, fastproj: Fastproj, environment: dict[str, str]
) -> None:
    """`git status` writes the index anew, with the same entries."""
    folder = made()
    assert stop_update(environment, folder, "_write", "1", "SIGKILL").returncode == -signal.SIGKILL
    os.utime(folder / "README.md", (1, 1))
    before = (folder / ".git/index").read_bytes()
    git(folder, "status")
    assert (folder / ".git/index").read_bytes() != before
    assert "Finished an interrupted update" in fastproj("update", "--yes", cwd=folder).stdout
    unstaged = [line for line in git(folder, "status", "--porcelain").splitlines() if line[1] != " "]
    assert unstaged == []


def test_who_is_killed_while_rendering_holds_no_lock_on(environment: dict[str, str]) -> None:
    """The second rendering is made in a process of its own, which ends with its parent."""
    program = """
import os, signal, time
from fastproj.updating.beside import beside
def task():
    print(os.getpid(), flush=True)
    time.sleep(60)
with beside(task):
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=False, timeout=50)
    assert time.monotonic() - start < 50, "the child would hold the output open for a minute"
