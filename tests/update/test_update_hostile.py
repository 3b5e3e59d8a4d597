"""Settings of git and templates that execute code: nothing is executed, lost or left behind."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import edits
import git_settings
import pytest
from edits import PACKAGE, State
from fastproj.errors import CONFLICTS
from git_settings import CONVERTED, WORKING
from hostile_settings import fsmonitor_and_hooks, hostile_environment
from hostile_templates import HOOK_TEMPLATE, TEMPLATES, Change, link_then_file, publish
from matrix import tiers
from program import Fastproj
from updating import (
    MakeProject,
    commit,
    git,
    lost_edits,
    project_state,
    read_files,
    run_undo,
    unnamed_paths,
)

USUAL = [fsmonitor_and_hooks, hostile_environment, git_settings.sha256]
OUR_GIT = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "commit.gpgSign": "false",
    "log.showSignature": "false",
    "safe.bareRepository": "all",
    "protocol.allow": "always",
}
"""Settings with which a test's own git executes nothing of a project."""


def name_of(value: object) -> str | None:
    return getattr(value, "__name__", None)


@pytest.fixture
def folder(
    make_project: MakeProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A project beside its user's home and temporary files."""
    for name in ("home", "tmp", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "home/.gitconfig").write_text("[user]\nname = u\nemail = u@example.org\n")
    monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(OUR_GIT)))
    for number, (key, value) in enumerate(OUR_GIT.items()):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    yield make_project()
    shutil.rmtree(git_settings.on_other_file_system(tmp_path), ignore_errors=True)


def run(fastproj: Fastproj, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command with the settings of that home, and look for what it must not do."""
    place = folder.parent
    home = place / "home"
    changes = {
        "HOME": str(home),
        "XDG_CONFIG_HOME": f"{home}/.config",
        "TMPDIR": str(place / "tmp"),
    }
    variables = home / "environment"
    if variables.exists():
        changes |= dict(line.split("=", 1) for line in variables.read_text().splitlines())
    result = fastproj(*arguments, cwd=folder, status=None, **changes)
    assert not (place / "hacked").exists(), "code was executed"
    assert not [*place.glob("outside*.txt"), *place.glob("outside/*"), *home.glob("outside*")]
    assert not os.listdir(place / "tmp")
    assert result.returncode in (0, CONFLICTS) or result.stderr.count("\n") == 1, result.stderr
    return result


@pytest.mark.parametrize(
    "state", tiers(USUAL, [it for it in WORKING if it not in USUAL]), ids=name_of
)
def test_update_with_settings_of_git(state: State, folder: Path, fastproj: Fastproj) -> None:
    rendered = read_files(folder)
    state(folder)
    if git(folder, "status", "--porcelain", "--ignored=no"):
        commit(folder)
    before = read_files(folder)
    result = run(fastproj, folder, "update")
    conflicts = bool(git(folder, "ls-files", "-u"))
    assert result.returncode == (CONFLICTS if conflicts else 0), result.stderr
    if state.__name__ not in CONVERTED:
        assert lost_edits(folder, before, rendered) == []
    assert unnamed_paths(folder, result.stdout) == []
    undo = result.stdout.strip().splitlines()[-1]
    run_undo(folder, undo)
    assert read_files(folder) == before


# what copier leaves open after an error
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "change",
    tiers([HOOK_TEMPLATE, link_then_file], [it for it in TEMPLATES if it is not link_then_file]),
    ids=name_of,
)
def test_template_is_harmless(
    change: Change, folder: Path, fork: Path, fastproj: Fastproj, tmp_path: Path
) -> None:
    """It is refused, or its project can be used with git, whose settings protect from nothing."""
    publish(change, fork)
    options = [
        "--yes",
        "--template",
        str(fork),
        "--output",
        str(tmp_path / "out"),
    ]
    made = run(fastproj, folder, "new", "made", *options)
    assert made.returncode == 0 or not os.listdir(tmp_path / "out")
    edits.edited_another_function(folder)
    commit(folder)
    before = project_state(folder)
    for command in (["update", "--dry-run"], ["update"]):
        updated = run(fastproj, folder, *command, "--template", str(fork))
        assert not updated.stderr or project_state(folder) == before
    assert "mine" in (folder / PACKAGE / "engine.py").read_text()
    alone = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    for project in (tmp_path / "out/made", folder):
        for words in ("status", "diff HEAD", "add -A", "commit -qm x", "checkout -qb y"):
            if project.exists():
                subprocess.run(
                    ["git", *words.split()],
                    cwd=project,
                    env=alone,
                    check=False,
                )
    assert not (tmp_path / "hacked").exists()


def folder_becomes_file(template: Path) -> None:
    shutil.rmtree(template / "project/launch")
    (template / "project/launch").write_text("a file now\n")


def file_becomes_folder(template: Path) -> None:
    engine = template / "project/src/{{ package }}/engine.py"
    engine.unlink()
    engine.mkdir()
    (engine / "part.py").write_text("a file now\n")


@pytest.mark.parametrize(
    ("change", "state", "path"),
    [
        (folder_becomes_file, edits.edited_another_function, "launch"),
        (file_becomes_folder, edits.unedited, "src/proj/engine.py/part.py"),
        (file_becomes_folder, edits.deleted, "src/proj/engine.py/part.py"),
        (file_becomes_folder, edits.renamed, "src/proj/engine.py/part.py"),
    ],
    ids=name_of,
)
def test_folder_that_becomes_a_file_arrives(
    change: Change, state: State, path: str, folder: Path, fork: Path, fastproj: Fastproj
) -> None:
    publish(change, fork)
    state(folder)
    if state is not edits.unedited:
        commit(folder)
    assert run(fastproj, folder, "update", "--template", str(fork)).stderr == ""
    assert (folder / path).read_text() == "a file now\n"
