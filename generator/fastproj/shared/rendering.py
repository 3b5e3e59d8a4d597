"""Render a template with copier, and turn its errors into one line each."""

import io
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from . import git
from .answers import option
from .child import in_child
from .errors import FastprojError, UsageError
from .imports import import_copier
from .inspection import check_rendered
from .source import Source

Answers = dict[str, Any]


_loaders: list[Thread] = []


def preload(ask: bool) -> Thread:
    """Start importing copier in the background, which takes 0.3 s that can be spent waiting for git.

    The first call decides whether it can ask.
    """
    if not _loaders:
        _loaders.append(Thread(target=import_copier, args=[ask], daemon=True))
        _loaders[0].start()
    return _loaders[0]


@dataclass(frozen=True)
class Asking:
    """How questions without an answer are asked."""

    confirmation: str
    """The last question, with all answers: whether to go on."""
    fixed: Collection[str]
    """Answers that cannot be changed there."""


@dataclass(frozen=True)
class Rendered:
    """What a template says about the files that it rendered."""

    renamed: dict[str, str]
    """Its table of renamed files and folders, the computed answer `renamed`."""
    own: list[str]
    """Files that belong to the user (`_skip_if_exists`)."""
    migrates: bool
    """Whether it has `_migrations`."""


def copy(
    scratch: Path, stage: Path, source: Source, answers: Answers, defaults: Answers, ask: Asking | None
) -> Rendered:
    """Render into `stage`, with temporary files in `scratch`.

    An answers file in `stage` provides the answers that are not in `answers`.

    Raises:
        FastprojError: the template cannot be read, is broken or hostile; an answer is missing or not allowed.
        OSError: a file cannot be written.
    """
    with rendering(scratch, stage, source, answers, defaults, ask) as finish:
        return finish()


@contextmanager
def rendering(
    scratch: Path, stage: Path, source: Source, answers: Answers, defaults: Answers, ask: Asking | None
) -> Iterator[Callable[[], Rendered]]:
    """Start what `copy` does in a process with limited resources, and yield a function that waits for the result."""
    checkout = source.checkout
    if checkout is None and source.own:
        with git.reading_templates(source.own):
            checkout = _clone(source, scratch / "template")
    # Only one thread may import modules that import each other, and only this one is forked.
    preload(ask is not None).join()
    options = {"data": answers, "user_defaults": defaults, "vcs_ref": source.revision, "defaults": ask is None}
    with in_child(lambda: _render(scratch / "tmp", stage, source, checkout, ask, options)) as result:

        def finish() -> Rendered:
            rendered = Rendered(**result())
            check_rendered(stage, source.location)
            return rendered

        yield finish


def _render(
    temporary: Path, stage: Path, source: Source, checkout: Path | None, ask: Asking | None, options: Answers
) -> Answers:
    """Run copier in this process, which is for nothing else, and return the fields of `Rendered`."""
    from copier.errors import CopierError, InteractiveSessionError
    from plumbum import ProcessExecutionError, local

    from .worker import run_copy

    tempfile.tempdir = str(temporary)
    warnings.simplefilter("ignore")  # for example, that uncommitted changes of a template are included
    try:
        with git.reading_templates(source.own), redirect_stderr(io.StringIO()):
            local.env.clear()  # plumbum copied the environment when it was imported
            local.env.update(os.environ)
            worker = run_copy(source.location, stage, checkout, _prompts(ask), quiet=True, **options)
    except (InteractiveSessionError, EOFError) as error:
        raise FastprojError("the input ended before all questions were answered: answer them, or pass --yes") from error
    except ProcessExecutionError as error:
        raise FastprojError(
            f"git could not read the template {source.location}: {git.last_line(error.stderr)}"
        ) from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        name = os.path.relpath(error.filename or stage, stage)
        raise FastprojError(
            f"the template {source.location} is broken: it renders {name!r} both as a file and as a folder"
        ) from error
    except (KeyboardInterrupt, MemoryError):  # copier's own subclass of the first is an Exception too
        raise
    except Exception as error:
        if isinstance(error, OSError) and not _is_of_a_library(error):  # Jinja's for a missing include is one
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, CopierError | ValueError | TypeError | KeyError) and not _is_of_a_library(error):
            if required := re.fullmatch(r'Question "(\w+)" is required', message):
                name = required[1]
                raise UsageError(f"{name} has no default: answer it with {option(name)}") from error
            refused = re.match(r"(?:Validation error for question|Invalid choice for) '(\w+)': ", message)
            if refused and refused[1] in options["data"]:
                raise UsageError(f"{option(refused[1])}: {message[refused.end() :]}") from error
            raise FastprojError(f"{message} (fastproj new --help lists what is allowed)") from error
        raise FastprojError(f"the template {source.location} is broken: {message}") from error
    renamed = worker.answers.combined.get("renamed")
    files = (Path(folder, name).relative_to(stage) for folder, _, names in os.walk(stage) for name in names)
    return {
        "renamed": {str(was): str(now) for was, now in renamed.items()} if isinstance(renamed, dict) else {},
        "own": [str(file) for file in files if worker.match_skip(file)],
        "migrates": bool(worker.template.config_data.get("migrations")),
    }


def _prompts(ask: Asking | None) -> Any:
    """Return our prompts; None if nothing is asked, or if a library of copier's prompts is built differently."""
    if ask is None:
        return None
    try:
        from .prompts import Prompts
    except ImportError:
        return None
    return Prompts(ask)


def _is_of_a_library(error: Exception) -> bool:
    """Return whether an error is one in the template's text, not in an answer."""
    return type(error).__module__.partition(".")[0] in ("jinja2", "yaml", "pydantic", "pydantic_core")


def _clone(source: Source, target: Path) -> Path:
    """Clone a bundle with one git command, where copier needs nine."""
    bundle = os.path.expanduser(source.location)
    done = git.run(target.parent, "clone", "--quiet", "--branch", str(source.revision), "--", bundle, str(target))
    if not done.ok:
        raise FastprojError(f"git could not read the template {source.location}: {done.reason}")
    return target
