"""Tests here start no Python and need no torch: the program's commands run in this process."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import in_process
import pytest
from fastproj.shared import embedded, rendering
from program import Fastproj
from updating import git


@pytest.fixture(scope="session")
def fastproj(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fastproj]:
    """Run commands in this process, and each rendering once."""
    elsewhere = tmp_path_factory.mktemp("cwd")
    once = in_process.render_once(rendering._render, tmp_path_factory.mktemp("renderings"))

    def run(*arguments: str, cwd: Path = elsewhere, **changes: str) -> subprocess.CompletedProcess[str]:
        return in_process.run(arguments, cwd, environment | changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendering, "_render", once)
        yield run


@pytest.fixture
def small_template(bundles: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the template that comes with the program be the small one."""
    monkeypatch.setattr(embedded, "_PACKED", bundles[-1])


@pytest.fixture
def fork(bundles: list[Path], tmp_path: Path) -> Path:
    """A clone of the small template's newest release, which the test may change."""
    git(tmp_path, "clone", "-q", str(bundles[-1]), "fork")
    return tmp_path / "fork"


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """The program's folder, with its copy of the template."""
    return tmp_path / "copies"


@pytest.fixture
def refresh(packed: dict[str, Path], copies: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Refreshes the copy with the program of a release, and returns the tag that a project is rendered from."""
    monkeypatch.setenv("FASTPROJ_HOME", str(copies))

    def run(program: str) -> str:
        monkeypatch.setattr(embedded, "_PACKED", packed[program])
        return embedded.refresh_copy()[1]

    return run
