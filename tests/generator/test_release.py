"""`make release`: every check stops it with one line and nothing changed.

A release is two commits and a tag.
"""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fastproj.template.embedded import entries
from history import Repository
from matrix import ROOT
from program import LIMIT_S
from release_repository import CHANGELOG, releasable, state
from template_bundle import build, releases


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return releasable(tmp_path)


def release(repository: Repository, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--silent", "release", *arguments],
        cwd=repository.folder,
        env={
            key: value
            for key, value in repository.environment.items()
            if key not in ("MAKEFLAGS", "ARGS")
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_release_is_two_commits_and_a_tag(repository: Repository, tmp_path: Path) -> None:
    result = release(repository, "VERSION=0.1.0", "ARGS=-k nothing")
    assert result.returncode == 0, result.stderr
    assert (
        result.stdout
        == "release: 0.1.0 is ready; publish it with: git push --atomic origin main v0.1.0\n"
    )
    assert (tmp_path / "tested").read_text() == "tested \n", "once, and all tests"
    log = repository.git("log", "--format=%s").splitlines()
    assert log == ["Start the version after 0.1.0", "Release 0.1.0", "The template"]
    assert repository.git("cat-file", "-t", "v0.1.0") == "tag"
    assert 'version = "0.1.0"\n' in repository.git("show", "v0.1.0:pyproject.toml") + "\n"
    assert re.search(
        r"^## 0\.1\.0 \(20\d\d-\d\d-\d\d\)$",
        repository.git("show", "v0.1.0:CHANGELOG.md"),
        re.MULTILINE,
    )
    assert 'version = "0.1.1.dev0"\n' in (repository.folder / "pyproject.toml").read_text()
    assert repository.git("status", "--porcelain") == ""
    assert list(releases(repository.folder)) == ["0.1.0"]

    repository.write(
        {"CHANGELOG.md": CHANGELOG.format("0.2.0"), "template/project/more.txt": "more\n"}
    )
    repository.commit("More")
    result = release(repository, "VERSION=0.2.0")
    assert result.returncode == 0, result.stderr
    build(repository.folder, tmp_path / "template.bundle")
    assert list(entries(tmp_path / "template.bundle")) == ["0.1.0", "0.2.0", "0.2.1.dev0"]


def test_refusal_is_one_line_and_no_part_of_a_version_is_executed(
    repository: Repository, tmp_path: Path
) -> None:
    before = state(repository)
    result = release(repository, 'VERSION=$$(touch x)"; touch y')
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("release: VERSION is ")
    assert lines[0].endswith(": pass three numbers, as in make release VERSION=1.2.3")
    assert state(repository) == before
    assert not (tmp_path / "tested").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_release_rolls_back(
    number: signal.Signals, repository: Repository, tmp_path: Path
) -> None:
    hook = repository.folder / ".git/hooks/post-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        f"#!/bin/sh\ntouch {tmp_path}/committed\n"
        f"until [ -e {tmp_path}/signalled ]; do sleep 0.01; done\n"
    )
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
    message = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "\nrelease " in message
