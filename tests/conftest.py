"""Fixtures: the real program with its own home folder, and projects that are rendered once."""

import functools
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
import template_bundle
from history import Repository
from matrix import EVERY, ROOT, answers
from program import PROGRAMS, Done, Fastproj, Project, checked, render_once, run_fastproj
from updating import VERSIONS, MakeProject, build, commit, git
from warm import RUNNING

# Sums depend on the number of threads, so this process and those that tests start have the same
# number. torch reads it when it is imported, which the conftest.py of a folder does.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# else each process compiles what it imports
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
for variable in ("ARGS", "MAKEFLAGS", "MAKELEVEL"):  # of `make test ARGS=...`, not for a project's
    os.environ.pop(variable, None)


def pytest_configure() -> None:
    """Build the template that the program renders, once for all workers.

    Signals reach the programs under test, also where a shell or `nohup` started pytest, ignoring
    them.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        template_bundle.build(ROOT, ROOT / template_bundle.PLACE)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make test-all` runs.

    Without a GPU, skip its tests, which fail with REQUIRE_GPU=1.

    Each worker of pytest-xdist starts with an equal part of the list, so each part starts with long
    tests, and with those of tests/template, which are the longest.
    """
    if not EVERY:
        left_out = [item for item in items if item.get_closest_marker("test_all")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    slow = [item for item in reversed(items) if item.get_closest_marker("slow")]
    others = [item for item in items if item not in slow]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    length = math.ceil(len(others) / workers)
    items[:] = chain.from_iterable(
        [*slow[place::workers], *others[place * length : (place + 1) * length]]
        for place in range(workers)
    )
    if os.environ.get("REQUIRE_GPU") == "1":
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device: make gpu"))


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """End what a test that failed or hung has left running."""
    yield
    for run in [*RUNNING]:
        run.kill()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with a git identity and nothing else."""
    folder = tmp_path_factory.mktemp("home")
    (folder / ".gitconfig").write_text("[user]\nname = Ada Lovelace\nemail = ada@example.org\n")
    return folder


@pytest.fixture(scope="session")
def environment(home: Path) -> dict[str, str]:
    """Environment of the program: that home, no GPU settings."""
    others = ("GIT_", "FASTPROJ_", "CUDA_VISIBLE", "XDG_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    return kept | {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "COLUMNS": "100",
    }


@pytest.fixture(scope="session")
def fastproj(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Fastproj:
    """Run the real program without a terminal, as a script does."""
    elsewhere = tmp_path_factory.mktemp("cwd")

    def run(
        *arguments: str,
        cwd: Path = elsewhere,
        status: int | None = 0,
        **changes: str,
    ) -> Done:
        return checked(run_fastproj(arguments, cwd, environment | changes), status)

    return run


@pytest.fixture(scope="session")
def uv() -> str:
    """The program uv, which `make test` installs."""
    found = shutil.which(
        "uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    return found or pytest.skip("needs uv: make test installs it")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what is made once for all workers."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def project(fastproj: Fastproj, shared_folder: Path) -> Project:
    """Render a combination, once for all workers; a test that changes it must copy it first."""

    def render(framework: str, model: str, hardware: str = "cpu") -> Path:
        place = shared_folder / f"{framework}-{model}-{hardware}"
        options = ["--model", model, *answers(framework, hardware)]
        return render_once(fastproj, place, "proj", *options)

    return render


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The template's bundle at each release."""
    return [build(tmp_path_factory.mktemp(f"bundle{number}"), number) for number in (1, 2, 3)]


@pytest.fixture(scope="session")
def render_release(
    bundles: list[Path], fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory
) -> MakeProject:
    """A project of each release, rendered by the real program.

    Its template's bundle is then replaced by the newest.
    """
    make_project: dict[str, Path] = {}

    def make(version: str = "v0.1.0") -> Path:
        if version not in make_project:
            folder = tmp_path_factory.mktemp("rendered")
            shutil.copy(bundles[VERSIONS.index(version)], folder / "team.bundle")
            fastproj(
                "new",
                "proj",
                "--yes",
                "--template",
                str(folder / "team.bundle"),
                cwd=folder,
            )
            shutil.copy(bundles[-1], folder / "team.bundle")
            make_project[version] = folder / "proj"
        return make_project[version]

    return make


@pytest.fixture
def make_project(render_release: MakeProject, tmp_path: Path) -> MakeProject:
    """A copy of a project of a release, which the test may change."""

    def copy(version: str = "v0.1.0") -> Path:
        return shutil.copytree(render_release(version), tmp_path / "proj", symlinks=True)

    return copy


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles of three releases, of a development version, and of an archive without history."""
    folder = tmp_path_factory.mktemp("packed")
    checkout = Repository(folder / "checkout")
    commits = checkout.three_releases()
    found = {}
    for version, place in [*commits.items(), ("development", "main")]:
        checkout.git("checkout", "--quiet", place)
        found[version] = folder / f"{version}.bundle"
        template_bundle.build(checkout.folder, found[version])
    archive = Repository(folder / "archive")
    archive.version("0.4.0")
    for name in ("copier.yml", "template"):
        source = checkout.folder / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, archive.folder / name)
    found["archive"] = folder / "archive.bundle"
    template_bundle.build(archive.folder, found["archive"])
    return found


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, dict[str, str]]:
    """A repository with three releases, each with its own commit.

    Tests that change it clone it first.
    """
    repository = Repository(tmp_path_factory.mktemp("origin"))
    return repository, repository.three_releases()


@pytest.fixture(scope="session")
def released(
    fastproj: Fastproj,
    environment: dict[str, str],
    home: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, str], Path]:
    """Return a copy of a model's project at a release, as the fastproj of that time rendered it."""

    @functools.cache
    def render(version: str, model: str) -> Path:
        fastproj("new", "x", "--yes", cwd=tmp_path_factory.mktemp("home"))
        folder = tmp_path_factory.mktemp("released") / "proj"
        command = [
            sys.executable,
            str(PROGRAMS / "render_release.py"),
            str(folder),
            version,
            model,
        ]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        git(folder, "init", "-q")
        commit(folder)
        return folder

    return lambda version, model: shutil.copytree(
        render(version, model), tmp_path_factory.mktemp("copy") / "proj", symlinks=True
    )
