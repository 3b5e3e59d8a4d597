"""Fixtures that run commands in this process, and make each rendering once."""

import contextlib
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fastproj.__main__ import main
from fastproj.template import embedded, rendering
from fastproj.template.answers import Answers
from program import Done, Fastproj, checked
from updating import git

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_command(
    arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command, and return what a process of its own would have returned."""
    status = 0
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    stdout = io.TextIOWrapper(io.BytesIO(), encoding, newline="")
    stderr = io.TextIOWrapper(
        io.BytesIO(),
        encoding,
        "backslashreplace",
        newline="",
    )
    with restored_signals(), contextlib.ExitStack() as stack:
        stack.enter_context(
            mock.patch.dict(
                os.environ,
                environment,
                clear=True,
            )
        )
        stack.enter_context(
            mock.patch.object(
                sys,
                "argv",
                ["fastproj", *arguments],
            )
        )
        stack.enter_context(
            mock.patch.object(
                sys,
                "stdin",
                io.StringIO(),
            )
        )
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(contextlib.redirect_stdout(stdout))
        stack.enter_context(contextlib.redirect_stderr(stderr))
        try:
            main()
        except SystemExit as error:
            status = int(error.code or 0)
    texts = []
    for stream in (stdout, stderr):
        stream.seek(0)
        texts.append(stream.read())
    return subprocess.CompletedProcess(["fastproj", *arguments], status, *texts)


@contextlib.contextmanager
def restored_signals() -> Iterator[None]:
    """Take back what the program does with signals for the rest of its process."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


Render = Callable[[Path, Path, str, Answers, Answers], list[str]]


def render_once(render: Render, folder: Path) -> Render:
    """Return a `render` that copies what it has rendered before with the same answers."""
    known: dict[str, list[str]] = {}

    def copy(
        template: Path,
        stage: Path,
        location: str,
        *answers: Answers,
    ) -> list[str]:
        key = _digest(template, stage, answers)
        if key in known:
            shutil.copytree(folder / key, stage, symlinks=True, dirs_exist_ok=True)
        else:
            known[key] = render(template, stage, location, *answers)
            shutil.copytree(stage, folder / key, symlinks=True)
        return known[key]

    return copy


def _digest(
    template: Path,
    stage: Path,
    answers: tuple[Any, ...],
) -> str:
    """Return a digest of all that a rendering depends on."""
    found = hashlib.sha256(repr((template.name, answers)).encode())
    for folder in (template, stage):
        for file in sorted(folder.rglob("*")):
            content = file.read_bytes() if file.is_file() else b""
            link = os.readlink(file) if file.is_symlink() else ""
            about = (str(file.relative_to(folder)), file.lstat().st_mode, link, content)
            found.update(repr(about).encode(errors="surrogateescape"))
    return found.hexdigest()


@pytest.fixture(scope="session")
def fastproj(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fastproj]:
    """Run commands in this process, and each rendering once."""
    elsewhere = tmp_path_factory.mktemp("cwd")
    once = render_once(rendering._render, tmp_path_factory.mktemp("renderings"))

    def run(
        *arguments: str,
        cwd: Path = elsewhere,
        status: int | None = 0,
        **changes: str,
    ) -> Done:
        return checked(run_command(arguments, cwd, environment | changes), status)

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
def refresh(
    packed: dict[str, Path], copies: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Refreshes the copy with the program of a release, and returns the tag that it renders."""
    monkeypatch.setenv("FASTPROJ_HOME", str(copies))

    def run(program: str) -> str:
        monkeypatch.setattr(embedded, "_PACKED", packed[program])
        return embedded.refresh_copy()[1]

    return run
