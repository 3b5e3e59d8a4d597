"""A release is refused in one line, and nothing is changed then."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import release
from history import Repository
from in_process import restored_signals
from release_repository import releasable, state


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository, as the work folder."""
    return releasable(tmp_path)


def refusal(
    repository: Repository,
    version: str,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Return the message with which the release is refused."""
    monkeypatch.chdir(repository.folder)
    monkeypatch.setattr(sys, "argv", ["release.py", version])
    environment = mock.patch.dict(
        os.environ,
        repository.environment,
        clear=True,
    )
    with restored_signals(), environment, pytest.raises(SystemExit) as ended:
        release.main()
    return str(ended.value.code)


def dirty(repository: Repository) -> None:
    repository.write({"template/project/old.txt": "changed\n"})


def untracked(repository: Repository) -> None:
    repository.write({"template/project/x.txt": "new\n"})


def elsewhere(repository: Repository) -> None:
    repository.git("switch", "--quiet", "--create", "side")


def tagged(repository: Repository) -> None:
    repository.git("tag", "v0.1.0")


def red(repository: Repository) -> None:
    repository.write({"red": ""})


def changelog(text: str) -> Callable[[Repository], None]:
    def change(repository: Repository) -> None:
        repository.write({"CHANGELOG.md": text})
        repository.commit("Another changelog")

    return change


def at(*versions: str) -> Callable[[Repository], None]:
    def change(repository: Repository) -> None:
        for version in versions:
            repository.commit(f"To {version}", version)

    return change


def a_hook_that_refuses(repository: Repository) -> None:
    hook = repository.folder / ".git/hooks/commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text('#!/bin/sh\necho "hook says no" >&2\n! grep -q "Start" "$1"\n')
    hook.chmod(0o755)


def nothing(repository: Repository) -> None:
    """Leave all as it is."""


REFUSED = [
    ("0.1", nothing, "pass three numbers"),
    ("0.1.0rc1", nothing, "pass three numbers"),
    ("0.1.0.dev1", nothing, "pass three numbers"),
    ("v0.1.0", nothing, "pass three numbers"),
    ("01.1.0", nothing, "pass three numbers"),
    ("0.1.0\n", nothing, "pass three numbers"),
    ('$(touch x)"; touch y', nothing, "pass three numbers"),
    ("0.1.0", dirty, "uncommitted changes"),
    ("0.1.0", untracked, "uncommitted changes"),
    ("0.1.0", elsewhere, "git switch main"),
    ("0.1.0", tagged, "the tag v0.1.0 exists already"),
    ("0.1.0", at("0.1.0", "0.1.1.dev0"), "not newer than the last release, 0.1.0"),
    ("0.1.0", at("0.9.0", "0.9.1.dev0"), "not newer than the last release, 0.9.0"),
    ("0.1.0", changelog("# Changelog\n"), "no line '## 0.1.0 (not released)'"),
    ("0.1.0", changelog("## 10.1.0 (not released)\n- x\n"), "no line '## 0.1.0 (not released)'"),
    ("0.1.0", red, "make test-all fails"),
    ("0.1.0", a_hook_that_refuses, "hook says no"),
]


@pytest.mark.parametrize(
    ("version", "change", "message"),
    REFUSED,
    ids=lambda it: ascii(
        getattr(
            it,
            "__name__",
            it,
        )
    ),
)
def test_failed_check_changes_nothing(
    version: str,
    change: Callable[[Repository], None],
    message: str,
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change(repository)
    before = state(repository)
    said = refusal(repository, version, monkeypatch)
    assert said.startswith("release: ")
    assert message in said
    assert "\n" not in said
    assert state(repository) == before
    assert (tmp_path / "tested").exists() == (change in (red, a_hook_that_refuses)), (
        "the tests come last"
    )


def test_change_during_the_tests_stops_the_release(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    makefile = (repository.folder / "Makefile").read_text()
    repository.write({"Makefile": f"{makefile}\t@echo changed > template/project/old.txt\n"})
    repository.commit("Tests that change a file")
    head = repository.git("rev-parse", "HEAD")
    assert "files changed during the tests" in refusal(repository, "0.1.0", monkeypatch)
    assert repository.git("rev-parse", "HEAD") == head
    assert (repository.folder / "template/project/old.txt").read_text() == "changed\n", (
        "nor is it thrown away"
    )
