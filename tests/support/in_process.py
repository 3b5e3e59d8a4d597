"""The program's commands in this process, where a rendering is made once."""

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

from fastproj.__main__ import main
from fastproj.shared import rendering

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command, and return what a process of its own would have returned."""
    status = 0
    stdout = io.StringIO()
    stderr = io.StringIO()
    with _restored_signals(), contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment, clear=True))
        stack.enter_context(mock.patch.object(sys, "argv", ["fastproj", *arguments]))
        stack.enter_context(mock.patch.object(sys, "stdin", io.StringIO()))
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(contextlib.redirect_stdout(stdout))
        stack.enter_context(contextlib.redirect_stderr(stderr))
        try:
            main()
        except SystemExit as error:
            status = int(error.code or 0)
    return subprocess.CompletedProcess(["fastproj", *arguments], status, stdout.getvalue(), stderr.getvalue())


@contextlib.contextmanager
def _restored_signals() -> Iterator[None]:
    """Take back what the program does with signals for the rest of its process."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


Render = Callable[[Path, Path, str, rendering.Answers, rendering.Answers], list[str]]


def render_once(render: Render, folder: Path) -> Render:
    """Return a `render` that copies what it has rendered before from the same template, with the same answers."""
    known: dict[str, list[str]] = {}

    def copy(template: Path, stage: Path, location: str, *answers: rendering.Answers) -> list[str]:
        key = _digest(template, stage, answers)
        if key in known:
            shutil.copytree(folder / key, stage, symlinks=True, dirs_exist_ok=True)
        else:
            known[key] = render(template, stage, location, *answers)
            shutil.copytree(stage, folder / key, symlinks=True)
        return known[key]

    return copy


def _digest(template: Path, stage: Path, answers: tuple[Any, ...]) -> str:
    """Return a digest of all that a rendering depends on."""
    found = hashlib.sha256(repr((template.name, answers)).encode())
    for folder in (template, stage):
        for file in sorted(folder.rglob("*")):
            content = file.read_bytes() if file.is_file() else b""
            link = os.readlink(file) if file.is_symlink() else ""
            about = (str(file.relative_to(folder)), file.lstat().st_mode, link, content)
            found.update(repr(about).encode(errors="surrogateescape"))
    return found.hexdigest()
