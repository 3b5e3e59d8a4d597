"""`make release`: every check stops it with one line and nothing changed; a release is two commits and a tag."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fastproj.shared.embedded import entries
from history import FIRST, Repository
from matrix import ROOT
from program import LIMIT_S
from template_bundle import build, releases

MAKEFILE = """\
release:
\t@{python} {program} "$$VERSION"
test-all:
\t@echo "tested $(ARGS)" >> {log}
\t@test ! -e red
"""
CHANGELOG = "# Changelog\n\n## {} (not released)\n\n- It is better.\n"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository with a Makefile whose tests fail if there is a file `red`."""
    made = Repository(tmp_path / "repository")
    made.start()
    made.write({**FIRST, "CHANGELOG.md": CHANGELOG.format("0.1.0"), ".gitignore": "/red\n"})
    program = ROOT / "generator/release.py"
    made.write({"Makefile": MAKEFILE.format(python=sys.executable, program=program, log=tmp_path / "tested")})
    made.commit("The template", "0.1.0.dev0")
    return made


def release(repository: Repository, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--silent", "release", *arguments],
        cwd=repository.folder,
        env={key: value for key, value in repository.environment.items() if key not in ("MAKEFLAGS", "ARGS")},
        capture_output=True,
        text=True,
        check=False,
    )


def state(repository: Repository) -> tuple[str, ...]:
    return (
        repository.git("rev-parse", "HEAD"),
        repository.git("tag"),
        repository.git("status", "--porcelain"),
        repository.git("diff"),
    )


def test_release_is_two_commits_and_a_tag(repository: Repository, tmp_path: Path) -> None:
    result = release(repository, "VERSION=0.1.0", "ARGS=-k nothing")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "release: 0.1.0 is ready; publish it with: git push --atomic origin main v0.1.0\n"
    assert (tmp_path / "tested").read_text() == "tested \n", "once, and all tests"
    log = repository.git("log", "--format=%s").splitlines()
    assert log == ["Start the version after 0.1.0", "Release 0.1.0", "The template"]
    assert repository.git("cat-file", "-t", "v0.1.0") == "tag"
    assert 'version = "0.1.0"\n' in repository.git("show", "v0.1.0:pyproject.toml") + "\n"
    assert re.search(r"^## 0\.1\.0 \(20\d\d-\d\d-\d\d\)$", repository.git("show", "v0.1.0:CHANGELOG.md"), re.MULTILINE)
    assert 'version = "0.1.1.dev0"\n' in (repository.folder / "pyproject.toml").read_text()
    assert repository.git("status", "--porcelain") == ""
    assert list(releases(repository.folder)) == ["0.1.0"]

    repository.write({"CHANGELOG.md": CHANGELOG.format("0.2.0"), "template/project/more.txt": "more\n"})
    repository.commit("More")
    result = release(repository, "VERSION=0.2.0")
    assert result.returncode == 0, result.stderr
    build(repository.folder, tmp_path / "template.bundle")
    assert list(entries(tmp_path / "template.bundle")) == ["0.1.0", "0.2.0", "0.2.1.dev0"]


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


def two_versions(repository: Repository) -> None:
    text = (repository.folder / "pyproject.toml").read_text()
    repository.write({"pyproject.toml": f'{text}[tool.x]\nversion = "1"\n'})
    repository.commit("A second version")


def no_changelog(repository: Repository) -> None:
    repository.write({"CHANGELOG.md": None})
    repository.commit("No changelog")


def a_hook_that_refuses(repository: Repository) -> None:
    hook = repository.folder / ".git/hooks/commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text('#!/bin/sh\necho "hook says no" >&2\n! grep -q "Start" "$1"\n')
    hook.chmod(0o755)


def nothing(repository: Repository) -> None:
    """Leave all as it is."""


REFUSED = [
    ("", nothing, "pass three numbers"),
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
    ("0.1.0", at("0.2.0.dev0"), "pyproject.toml is at 0.2.0.dev0"),
    ("0.1.0", at("0.0.9"), "pyproject.toml is at 0.0.9"),
    ("0.1.0", changelog("# Changelog\n"), "no line '## 0.1.0 (not released)'"),
    ("0.1.0", changelog("## 10.1.0 (not released)\n- x\n"), "no line '## 0.1.0 (not released)'"),
    ("0.1.0", changelog("## 0.1.0 (not released)\n\n## 0.0.1\n- x\n"), "entry for 0.1.0 is empty"),
    ("0.1.0", no_changelog, "CHANGELOG.md: No such file"),
    ("0.1.0", two_versions, "has 2 lines"),
    ("0.1.0", red, "make test-all fails"),
    ("0.1.0", a_hook_that_refuses, "hook says no"),
]


@pytest.mark.parametrize(("version", "change", "message"), REFUSED, ids=lambda it: ascii(getattr(it, "__name__", it)))
def test_failed_check_changes_nothing(
    version: str, change: Callable[[Repository], None], message: str, repository: Repository, tmp_path: Path
) -> None:
    change(repository)
    before = state(repository)
    result = release(repository, f"VERSION={version.replace('$', '$$')}")
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("release: ")
    assert message in lines[0]
    assert state(repository) == before
    assert (tmp_path / "tested").exists() == (change in (red, a_hook_that_refuses)), "the tests come last"
    assert not (repository.folder / "x").exists()
    assert not (repository.folder / "y").exists()


def test_change_during_the_tests_stops_the_release(repository: Repository) -> None:
    makefile = (repository.folder / "Makefile").read_text()
    repository.write({"Makefile": f"{makefile}\t@echo changed > template/project/old.txt\n"})
    repository.commit("Tests that change a file")
    head = repository.git("rev-parse", "HEAD")
    result = release(repository, "VERSION=0.1.0")
    assert "files changed during the tests" in result.stderr
    assert repository.git("rev-parse", "HEAD") == head
    assert (repository.folder / "template/project/old.txt").read_text() == "changed\n", "nor is it thrown away"


def test_shallow_clone_is_refused(repository: Repository, tmp_path: Path) -> None:
    repository.commit("Another")
    repository.git("clone", "--quiet", "--no-local", "--depth=1", str(repository.folder), str(tmp_path / "shallow"))
    result = release(Repository(tmp_path / "shallow"), "VERSION=0.1.0")
    assert "not the root of a full clone" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_release_rolls_back(number: signal.Signals, repository: Repository, tmp_path: Path) -> None:
    hook = repository.folder / ".git/hooks/post-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/committed\nuntil [ -e {tmp_path}/signalled ]; do sleep 0.01; done\n")
    hook.chmod(0o755)
    before = state(repository)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "generator/release.py"), "0.1.0"],
        cwd=repository.folder,
        env=repository.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "committed").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    (tmp_path / "signalled").touch()
    _, message = process.communicate(timeout=LIMIT_S)
    assert message == "release: interrupted; nothing was changed\n"
    assert process.returncode == 1
    assert state(repository) == before


def test_release_program_is_not_in_the_package() -> None:
    assert not (ROOT / "generator/fastproj/release.py").exists()
    message = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "\nrelease " in message
