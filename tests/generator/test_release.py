"""`make release`: two commits and a tag; what stops it is one line, and nothing is changed then."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fastproj.template.embedded import entries
from history import FIRST, Repository
from matrix import ROOT
from template_bundle import build, releases

CHANGELOG = "# Changelog\n\n## {} (not released)\n\n- It is better.\n"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository whose tests fail if there is a file `red`."""
    made = Repository(tmp_path / "repository")
    made.start()
    files = {"CHANGELOG.md": CHANGELOG.format("0.1.0"), ".gitignore": "/red\n"}
    made.write(FIRST | files | {"Makefile": "test-all:\n\t@test ! -e red\n"})
    made.commit("The template", "0.1.0.dev0")
    return made


def release(repository: Repository, version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "generator/release.py", version],
        cwd=repository.folder,
        env=repository.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_release_is_two_commits_and_a_tag(repository: Repository, tmp_path: Path) -> None:
    result = release(repository, "0.1.0")
    assert result.returncode == 0, result.stderr
    assert (
        result.stdout
        == "release: 0.1.0 is ready; publish it with: git push --atomic origin main v0.1.0\n"
    )
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
    result = release(repository, "0.2.0")
    assert result.returncode == 0, result.stderr
    build(repository.folder, tmp_path / "template.bundle")
    assert list(entries(tmp_path / "template.bundle")) == ["0.1.0", "0.2.0", "0.2.1.dev0"]


@pytest.mark.parametrize(
    ("version", "changed", "message"),
    [
        ("0.1.0rc1", "", "pass three numbers"),
        ("0.1.0", "template/project/new.txt", "uncommitted changes"),
        ("0.1.1", "", "no line '## 0.1.1 (not released)'"),
        ("0.1.0", "red", "make test-all fails"),
        ("0.1.0", "tag", "the tag v0.1.0 exists already"),
    ],
)
def test_failed_check_changes_nothing(
    version: str, changed: str, message: str, repository: Repository
) -> None:
    if changed == "tag":
        repository.git("tag", "v0.1.0")
    elif changed:
        repository.write({changed: ""})
    tags = repository.git("tag")
    result = release(repository, version)
    assert result.returncode == 1
    assert message in result.stderr
    assert repository.git("log", "--format=%s") == "The template"
    assert repository.git("tag") == tags
    assert repository.git("diff") == ""
