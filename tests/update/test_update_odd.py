"""`fastproj update` where the repository or its place is not as one expects."""

import os
import shutil
from pathlib import Path

import pytest
from program import Fastproj
from updating import (
    MakeProject,
    commit,
    edit,
    git,
    project_state,
    read_files,
    unnamed_paths,
)

ENGINE = "src/proj/engine.py"


def test_parent_folder_is_not_the_project(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project()
    before = read_files(folder)
    result = fastproj("update", "..", cwd=folder, status=1)
    assert "there is no .copier-answers.yml" in result.stderr
    assert read_files(folder) == before


def test_status_through_a_symlink(
    make_project: MakeProject, fastproj: Fastproj, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(make_project("v0.3.0") / "src")
    fastproj("status", str(tmp_path / "link"))


def test_current_folder_is_removed_by_the_update(
    make_project: MakeProject, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = make_project("v0.2.0")
    edit(folder / "src/proj/engine.py", "return 20", "return 21")
    commit(folder)
    fastproj("update", "--components", "slurm", cwd=folder)
    commit(folder)
    result = fastproj("update", "--to", "v0.2.0", cwd=folder / "docs")
    assert not (folder / "docs").exists()
    assert f"git -C {folder} commit" in result.stdout


def test_answer_of_another_type_is_converted(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project()
    edit(folder / ".copier-answers.yml", "gpus: 0", "gpus: '0'")
    commit(folder)
    fastproj("update", cwd=folder)
    assert "gpus: 0\n" in (folder / ".copier-answers.yml").read_text()


def test_line_endings_of_the_answers_file_cause_no_conflict(
    make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project()
    file = folder / ".copier-answers.yml"
    edit(file, "_commit: v0.1.0\n", "_commit: 'v0.1.0'\n")
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    commit(folder)
    fastproj("update", cwd=folder)
    assert b"_commit: v0.3.0\r\n" in file.read_bytes()


def test_gitattributes_are_merged(
    make_project: MakeProject, fastproj: Fastproj, fork: Path
) -> None:
    """Also if the template adds or removes some."""
    folder = make_project()
    (fork / "project/.gitattributes").write_text("*.bin binary\n")
    commit(fork)
    git(fork, "tag", "v0.4.0")
    from_fork = ["--template", str(fork)]
    result = fastproj("update", *from_fork, cwd=folder)
    assert (folder / ".gitattributes").read_text() == "*.bin binary\n", result.stderr
    commit(folder)
    fastproj("update", "--to", "v0.3.0", cwd=folder)
    assert not (folder / ".gitattributes").exists()
    git(folder, "reset", "-q", "--hard", "HEAD~1")
    (folder / ".gitattributes").write_text("# mine\n*.py text\n")
    commit(folder)
    fastproj("update", *from_fork, cwd=folder, status=4)
    text = (folder / ".gitattributes").read_text()
    assert "# mine\n*.py text\n" in text
    assert "*.bin binary\n" in text


def test_filter_of_the_project_applies_to_what_is_rendered(
    make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project()
    git(folder, "config", "filter.upper.clean", "tr a-z A-Z")
    (folder / ".gitattributes").write_text("README.md filter=upper\n")
    git(folder, "add", "--renormalize", ".")
    commit(folder)
    fastproj("update", cwd=folder)
    assert "RELEASE 3." in git(folder, "show", ":README.md")


def test_conflict_in_skip_worktree_file_is_refused(
    make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project()
    edit(folder / ENGINE, '"""Of release', '"""Mine, of release')
    commit(folder)
    git(folder, "update-index", "--skip-worktree", str(ENGINE))
    before = project_state(folder)
    assert "--no-skip-worktree" in fastproj("update", cwd=folder, status=1).stderr
    assert project_state(folder) == before


def test_untracked_folder_with_a_link_is_refused(
    make_project: MakeProject, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = make_project()
    (folder / "docs/new.md").mkdir(parents=True)
    (folder / "docs/new.md/data").symlink_to(tmp_path)
    before = read_files(folder)
    refused = fastproj("update", cwd=folder, status=1)
    assert "untracked files are in the way" in refused.stderr
    assert read_files(folder) == before


def test_update_does_not_call_git_per_file(
    make_project: MakeProject, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = make_project()
    (folder / "mine").mkdir()
    for number in range(150):
        (folder / f"mine/{number}.txt").write_text(f"{number}\n")
    commit(folder)
    (tmp_path / "bin").mkdir()
    git_itself = shutil.which("git")
    (tmp_path / "bin/git").write_text(
        f'#!/bin/sh\necho >> {tmp_path}/calls\nexec {git_itself} "$@"\n'
    )
    (tmp_path / "bin/git").chmod(0o755)
    fastproj("update", cwd=folder, PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert (tmp_path / "calls").read_text().count("\n") < 150


NAMES = [
    "a\x1b[2Jb",
    "two\nlines",
    "bell\a",
    "right\u202eleft",
    os.fsdecode(b"\xff.py"),
    "ä",
]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_output_cannot_be_faked_and_needs_no_encoding(
    encoding: str, make_project: MakeProject, fastproj: Fastproj, fork: Path
) -> None:
    """Each name is in a line of its own, and the end of the output is printed."""
    folder = make_project("v0.3.0")
    for name in NAMES:
        (fork / "project" / name).write_text("of the template\n")
    workflow = fork / "project/.github/my.copier-answers.yml"
    workflow.parent.mkdir()
    workflow.write_text("on: push\n")
    commit(fork)
    git(fork, "tag", "v0.4.0")
    update = ["update", "--template", str(fork)]
    result = fastproj(*update, cwd=folder, PYTHONIOENCODING=encoding)
    assert result.stderr == ""
    named = result.stdout if encoding != "ascii" else result.stdout.replace("\\xe4", "ä")
    assert unnamed_paths(folder, named) == []
    assert all(line.isprintable() for line in result.stdout.splitlines())
    assert "read-tree -m -u" in result.stdout.splitlines()[-1]
