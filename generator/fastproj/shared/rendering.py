"""Call copier in a private folder that is gone afterwards, whatever happens."""

import fcntl
import io
import os
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any

from . import git
from .errors import FastprojError
from .source import Source, last_line


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Give a folder `.<name>.fastproj-*` in `parent` with an empty `tmp` in it, and remove it at the end.

    Those that killed programs left there are removed first.

    Raises:
        OSError: it cannot be made.
    """
    _sweep(parent, name)
    work = Path(tempfile.mkdtemp(prefix=f".{name}.fastproj-", dir=parent))
    try:
        with _locked(work):
            (work / "tmp").mkdir()
            yield work
    finally:
        with uninterrupted():
            _remove(work)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, by which others see that it is in use; where locks are not to be had, do without."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sweep(parent: Path, name: str) -> None:
    """Remove what killed programs left: folders of that name that nobody holds a lock on any more."""
    for left in parent.glob(f".{name}.fastproj-*"):
        with suppress(OSError):  # another user's, or gone meanwhile
            if time.time() - left.stat().st_mtime < 2:
                continue  # its owner may not have come to lock it yet
            descriptor = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(left)
            finally:
                os.close(descriptor)


@contextmanager
def _temporary_files(folder: Path) -> Iterator[None]:
    """Give copier a temporary folder of our own, as it leaves its clone behind when it is stopped."""
    before = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextmanager
def uninterrupted(for_good: bool = False) -> Iterator[None]:
    """Let no second signal stop the cleaning up after the first; `for_good` also what follows, unless it fails."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    done = False
    try:
        yield
        done = True
    finally:
        for number, handler in before.items() if not (done and for_good) else ():
            signal.signal(number, handler)


def _remove(folder: Path) -> None:
    """Remove a folder, again where a git that outlives its stopped parent still writes into it."""
    for _ in range(40):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)


def copy(work: Path, stage: Path, source: Source, answers: dict[str, Any], defaults: dict[str, Any], ask: bool) -> Any:
    """Render into `stage`, with a workshop for temporary files, and return copier's worker.

    An answers file that lies in `stage` already gives the answers to what is not in `answers`. Copier fails in many
    ways, which become one line each.

    Raises:
        FastprojError: the template cannot be had or is broken; an answer is not allowed, or was not given.
    """
    import copier  # a quarter of a second, so only here
    from copier.errors import CopierError, InteractiveSessionError
    from plumbum import CommandNotFound, ProcessExecutionError, local

    try:
        with (
            _temporary_files(work / "tmp"),
            git.reading_templates(source.own),
            local.env(),  # plumbum's copy of the environment is as old as its import
            redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            local.env.clear()
            local.env.update(os.environ)
            warnings.simplefilter("ignore")  # such as: uncommitted changes of a template folder are taken in
            return copier.run_copy(
                source.location,
                stage,
                data=answers,
                user_defaults=defaults,
                vcs_ref=source.revision,
                defaults=not ask,
                quiet=True,
                settings=copier.Settings(),  # a user's own defaults would make the shown command render something else
            )
    except InteractiveSessionError as error:
        raise FastprojError("the input ended before all questions were answered: answer them, or pass --yes") from error
    except ProcessExecutionError as error:
        raise FastprojError(f"git could not read the template {source.location}: {last_line(error.stderr)}") from error
    except CommandNotFound as error:
        raise FastprojError(f"{error.program} is not on the PATH, and copier needs it: install it") from error
    except KeyboardInterrupt:  # copier's own kind of it is an ordinary exception as well
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("jinja2", "yaml", "pydantic", "pydantic_core"):
            raise FastprojError(f"the template {source.location} is broken: {_in_one_line(error)}") from error
        if isinstance(error, CopierError | ValueError | TypeError | KeyError | RuntimeError):
            raise FastprojError(_readable(error)) from error
        raise


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _readable(error: Exception) -> str:
    text = _in_one_line(error).removeprefix("Validation error for question ").removeprefix("Invalid choice for ")
    return f"{text} (fastproj new --help lists what is allowed)"
