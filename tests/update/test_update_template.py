"""`fastproj update` with a fork, a damaged or hostile template, or a git that is too old."""

import os
import shutil
from pathlib import Path

import pytest
from program import Fastproj
from updating import MakeProject, commit, edit, git, read_answers, read_files


def test_fork_is_recorded_and_used_by_later_updates(
    make_project: MakeProject, bundles: list[Path], fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = make_project()
    fork = tmp_path / "fork.git"
    git(tmp_path, "clone", "-q", str(bundles[-1]), "work")
    for version in (1, 2, 3):
        git(tmp_path / "work", "checkout", "-q", f"v0.{version}.0")
    (tmp_path / "work/project/team.txt").write_text("of the team\n")
    commit(tmp_path / "work")
    git(tmp_path / "work", "tag", "v0.3.1")
    git(tmp_path, "clone", "-q", "--bare", "work", str(fork))
    fastproj("update", "--template", f"file://{fork}", cwd=folder)
    assert (folder / "team.txt").read_text() == "of the team\n"
    assert (read_answers(folder)["_src_path"], read_answers(folder)["_commit"]) == (
        f"file://{fork}",
        "v0.3.1",
    )
    commit(folder)
    assert "up to date: v0.3.1" in fastproj("update", cwd=folder).stdout


def test_edited_file_that_the_template_moves_and_rewrites_is_kept(
    make_project: MakeProject, fork: Path, fastproj: Fastproj
) -> None:
    folder = make_project()
    engine = folder / "src/proj/engine.py"
    edit(engine, "return 20\n", "return 20 + 1  # mine\n")
    commit(folder)
    mine = engine.read_text()
    package = fork / "project/src/{{ package }}"
    (package / "engine.py").unlink()
    (package / "core").mkdir()
    (package / "core/motor.py").write_text(
        "".join(f"class Part{number}: ...\n" for number in range(40))
    )
    commit(fork)
    git(fork, "tag", "v0.4.0")
    result = fastproj("update", "--template", str(fork), cwd=folder)
    assert (
        "yours     src/proj/engine.py: kept with your changes; it is no longer rendered"
        in result.stdout
    )
    assert engine.read_text() == mine
    assert "class Part0" in (folder / "src/proj/core/motor.py").read_text()


@pytest.mark.parametrize("how", ["truncated", "empty", "folder"])
def test_broken_bundle_is_a_one_line_error(
    how: str, render_release: MakeProject, bundles: list[Path], fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = shutil.copytree(render_release("v0.1.0"), tmp_path / "proj")
    bundle = tmp_path / "team.bundle"
    edit(
        folder / ".copier-answers.yml",
        str(read_answers(folder)["_src_path"]),
        str(bundle),
    )
    commit(folder)
    if how == "truncated":
        bundle.write_bytes(bundles[-1].read_bytes()[:1500])
    elif how == "empty":
        bundle.touch()
    else:
        bundle.mkdir()
    before = read_files(folder)
    result = fastproj("update", cwd=folder, status=1)
    assert "template" in result.stderr
    assert read_files(folder) == before


@pytest.mark.parametrize(
    ("said", "message"), [("git version 2.37.9", "install git 2.38 or newer"), ("hi", "repair")]
)
def test_old_or_missing_git_is_a_one_line_error(
    said: str, message: str, make_project: MakeProject, fastproj: Fastproj, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text(f"#!/bin/sh\necho {said}\n")
    (tmp_path / "bin/git").chmod(0o755)
    result = fastproj(
        "update", cwd=make_project(), PATH=f"{tmp_path}/bin:{os.environ['PATH']}", status=1
    )
    assert message in result.stderr
    result = fastproj(
        "update",
        cwd=tmp_path / "proj",
        status=1,
        PATH=str(tmp_path),
    )
    assert "install git" in result.stderr


def test_template_with_tasks_or_migrations_is_refused(
    make_project: MakeProject, fastproj: Fastproj, fork: Path, tmp_path: Path
) -> None:
    folder = make_project("v0.1.0")
    before = read_files(folder)
    for number, key in enumerate(("_migrations", "_tasks")):
        questions = fork / "copier.yml"
        questions.write_text(f"{key}:\n  - touch {tmp_path}/ran\n" + questions.read_text())
        commit(fork)
        git(fork, "tag", f"v1.{number}.0")
        result = fastproj(
            "update",
            "--template",
            str(fork),
            cwd=folder,
            status=1,
        )
        assert key.removeprefix("_") in result.stderr
        git(fork, "reset", "-q", "--hard", "HEAD~1")
    assert read_files(folder) == before
    assert not (tmp_path / "ran").exists()
