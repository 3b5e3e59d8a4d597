"""Render a project: whole and in its place, or not at all."""

import errno
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import git, names
from .errors import FastprojError
from .source import Source, last_line

ANSWERS_FILE = ".copier-answers.yml"


@dataclass(frozen=True)
class Rendered:
    """A project as it lies on the disk now."""

    path: Path
    files: int
    answers: dict[str, Any]
    """The recorded answers, without copier's own entries."""
    git: str
    """What became of the repository and its first commit."""


def destination(name: str, output: Path) -> Path:
    """Return where the project will be.

    Raises:
        FastprojError: the name is not allowed, something is there already, or the folder around it cannot take it.
    """
    names.check(name)
    target = output / name
    if not os.path.isdir(output):  # unlike Path.is_dir, False too where one may not look
        raise FastprojError(f"--output {output} is no folder: make it first, or choose another")
    if os.path.lexists(target):
        raise FastprojError(f"{target} exists already: choose another name, or another folder with --output")
    if not os.access(output, os.W_OK | os.X_OK):
        raise FastprojError(f"{output} cannot be written: choose another folder with --output")
    return target


def render(
    target: Path, source: Source, answers: dict[str, Any], defaults: dict[str, Any], ask: bool, commit: bool
) -> Rendered:
    """Render the template into `target`, which must not exist, asking for what is not in `answers` if `ask`.

    All work is done in a folder beside it, renamed at the end: `target` is whole or absent, whatever happens.

    Raises:
        FastprojError: the template cannot be had or is broken; an answer is not allowed; the disk is full.
    """
    shown, target = target, target.absolute()  # copier works in other folders
    work: Path | None = None
    try:
        _sweep(target)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.fastproj-", dir=target.parent))
        with _locked(work):
            stage = work / "project"
            with _temporary_files(work / "tmp"), git.reading_templates(source.own), redirect_stderr(io.StringIO()):
                _copier(stage, source, answers | {"project_name": target.name}, defaults, ask)
            recorded = _recorded(stage, set(answers))
            files = sum(len(found) for _, _, found in os.walk(stage))
            outcome = _commit(stage, target) if commit else "no repository, as asked"
            if os.path.lexists(target):
                raise FastprojError(f"{shown} was made by another program meanwhile: choose another name")
            os.rename(stage, target)
    except OSError as error:
        way_out = (
            "free some space, or use" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "use another"
        )
        raise FastprojError(f"cannot write {shown} ({error.strerror}): {way_out} --output") from error
    finally:
        if work is not None:
            with _undisturbed():
                _remove(work)
    return Rendered(shown, files, recorded, outcome)


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


def _sweep(target: Path) -> None:
    """Remove what killed renders of the same name left beside it: folders that nobody holds a lock on any more."""
    for left in target.parent.glob(f".{target.name}.fastproj-*"):
        if time.time() - left.stat().st_mtime < 2:
            continue  # its owner may not have come to lock it yet
        descriptor = os.open(left, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(left)
        except OSError:
            continue
        finally:
            os.close(descriptor)


@contextmanager
def _temporary_files(folder: Path) -> Iterator[None]:
    """Give copier a temporary folder of our own, as it leaves its clone behind when it is stopped."""
    folder.mkdir()
    before = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no second signal stop the cleaning up after the first."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _remove(folder: Path) -> None:
    """Remove a folder, again where a git that outlives its stopped parent still writes into it."""
    for _ in range(40):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)


def _copier(stage: Path, source: Source, answers: dict[str, Any], defaults: dict[str, Any], ask: bool) -> None:
    """Call copier, and turn the many ways in which it fails into one line each."""
    import copier  # a quarter of a second, so only here
    from copier.errors import CopierError, InteractiveSessionError
    from plumbum import CommandNotFound, ProcessExecutionError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as: uncommitted changes of a template folder are taken in
            copier.run_copy(
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


def _recorded(stage: Path, given: set[str]) -> dict[str, Any]:
    """Read the answers back; one that was given and is not among them was no question of the template."""
    import yaml

    file = stage / ANSWERS_FILE
    if not file.is_file():
        raise FastprojError(
            f"the template writes no {ANSWERS_FILE}, so its projects could not be updated: add one to it"
        )
    recorded = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(recorded, dict):
        raise FastprojError(f"the template writes a {ANSWERS_FILE} without answers: let it write _copier_answers there")
    answers = {key: value for key, value in recorded.items() if not key.startswith("_")}
    unknown = sorted(given - set(answers) - {"tensor_cores"})
    if unknown:
        raise FastprojError(f"the template asks no question {unknown[0]!r}: it asks {', '.join(answers)}")
    return answers


def _commit(stage: Path, target: Path) -> str:
    """Make a repository with one commit; whatever stands against the commit is told, and is no failure."""
    if git.run(target.parent, "rev-parse", "--is-inside-work-tree").stdout.strip() == "true":
        return "no repository of its own, as it lies in one: git add it there"
    # Hooks, signatures and ignored files are the user's for later; the first commit holds just what was rendered.
    plain = [
        "-c",
        f"core.hooksPath={os.devnull}",
        "-c",
        "commit.gpgSign=false",
        "-c",
        f"core.excludesFile={os.devnull}",
    ]
    plain += ["-c", "user.useConfigOnly=true"]
    for command in (["init", "--quiet", "--initial-branch=main"], ["add", "--all"]):
        done = git.run(stage, *plain, *command)
        if done.returncode != 0:
            return f"no commit, as git {command[0]} failed: {last_line(done.stderr)}"
    if git.run(stage, *plain, "var", "GIT_COMMITTER_IDENT").returncode != 0:
        return "no first commit, as git does not know you: set user.name and user.email with git config, then commit"
    done = git.run(stage, *plain, "commit", "--quiet", "--message", f"Render {target.name} with fastproj")
    return "a repository with a first commit" if done.returncode == 0 else f"no first commit: {last_line(done.stderr)}"
