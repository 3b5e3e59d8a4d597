"""Render a template with copier, and turn its errors into one line each."""

import io
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from . import git
from .errors import FastprojError
from .source import Source


@cache
def preload() -> Thread:
    """Start importing copier in the background, which takes 0.3 s that can be spent waiting for git."""
    loader = Thread(target=_import_copier, daemon=True)
    loader.start()
    return loader


def finish_preload() -> None:
    """Wait for the import, as only one thread may import modules that import each other."""
    preload().join()


def _import_copier() -> None:
    with suppress(Exception):  # `copy` imports it again, and reports why it fails
        import_module("copier")


def copy(
    scratch: Path, stage: Path, source: Source, answers: dict[str, Any], defaults: dict[str, Any], ask: bool
) -> Any:
    """Render into `stage`, with temporary files in `scratch`, and return copier's worker.

    An answers file in `stage` provides the answers that are not in `answers`.

    Raises:
        FastprojError: the template cannot be read or is broken; an answer is missing or not allowed.
    """
    with _environment(scratch / "tmp", source):
        checkout = _checkout(source, scratch / "tmp")
        finish_preload()
        from copier.errors import CopierError, InteractiveSessionError
        from plumbum import ProcessExecutionError, local

        from .worker import run_copy

        options = {"data": answers, "user_defaults": defaults, "vcs_ref": source.revision, "defaults": not ask}
        try:
            with local.env():  # plumbum copied the environment when it was imported
                local.env.clear()
                local.env.update(os.environ)
                return run_copy(source.location, stage, checkout, quiet=True, **options)
        except InteractiveSessionError as error:
            raise FastprojError(
                "the input ended before all questions were answered: answer them, or pass --yes"
            ) from error
        except ProcessExecutionError as error:
            raise FastprojError(
                f"git could not read the template {source.location}: {git.last_line(error.stderr)}"
            ) from error
        except KeyboardInterrupt:  # copier's own subclass of it is an Exception too
            raise
        except Exception as error:
            message = " ".join(str(error).split()) or type(error).__name__
            if type(error).__module__.partition(".")[0] in ("jinja2", "yaml", "pydantic", "pydantic_core"):
                raise FastprojError(f"the template {source.location} is broken: {message}") from error
            if required := re.fullmatch(r'Question "(\w+)" is required', message):
                option = required[1].replace("_", "-")
                message = f"{required[1]} has no default: answer it with --{option} or --data {required[1]}="
            if isinstance(error, CopierError | ValueError | TypeError | KeyError | RuntimeError):
                message = message.removeprefix("Validation error for question ").removeprefix("Invalid choice for ")
                raise FastprojError(f"{message} (fastproj new --help lists what is allowed)") from error
            raise


@contextmanager
def _environment(temporary: Path, source: Source) -> Iterator[None]:
    """Give copier a temporary folder that is always removed, hide its warnings, and set git's environment."""
    before = tempfile.tempdir
    tempfile.tempdir = str(temporary)
    try:
        with git.reading_templates(source.own), redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for example, that uncommitted changes of a template are included
            yield
    finally:
        tempfile.tempdir = before


def _checkout(source: Source, folder: Path) -> Path | None:
    """Check out a version of our own template; None if copier has to, as for addresses that only it interprets."""
    if not source.own or source.revision is None:
        return None
    target = Path(tempfile.mkdtemp(prefix="template-", dir=folder))
    place = os.path.expanduser(source.location)
    done = git.run(folder, "clone", "--quiet", "--branch", source.revision, "--", place, str(target))
    return target if done.ok else None
