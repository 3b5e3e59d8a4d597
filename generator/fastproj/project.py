"""Render a project: whole and in its place, or not at all."""

import io
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import names
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
    target: Path, source: Source, answers: dict[str, Any], defaults: dict[str, Any], ask: bool, git: bool
) -> Rendered:
    """Render the template into `target`, which must not exist, asking for what is not in `answers` if `ask`.

    All work is done in a folder beside it, renamed at the end: `target` is whole or absent, whatever happens.

    Raises:
        FastprojError: the template cannot be had or is broken; an answer is not allowed; the disk is full.
    """
    stage = target.parent / f".{target.name}.fastproj-{os.getpid()}"
    temporary = Path(tempfile.gettempdir(), f"fastproj-{os.getpid()}-{secrets.token_hex(4)}")
    _sweep(target)
    try:
        temporary.mkdir(mode=0o700)
        # Copier tells on stderr which revision it takes; what is wrong comes as an exception.
        with _temporary_files(temporary), redirect_stderr(io.StringIO()):
            _copier(stage, source, answers | {"project_name": target.name}, defaults, ask)
        recorded = _recorded(stage, set(answers))
        files = sum(len(found) for _, _, found in os.walk(stage))
        outcome = _commit(stage, target) if git else "no repository, as asked"
        if os.path.lexists(target):
            raise FastprojError(f"{target} was made by another program meanwhile: choose another name")
        os.rename(stage, target)
    except OSError as error:
        raise FastprojError(f"cannot write {target} ({error.strerror}): free some space, or use --output") from error
    finally:
        with _undisturbed():
            _remove(stage)
            _remove(temporary)
    return Rendered(target, files, recorded, outcome)


def _sweep(target: Path) -> None:
    """Remove what a killed render of the same name left beside it."""
    for left in target.parent.glob(f".{target.name}.fastproj-*"):
        number = left.name.rpartition("-")[2]
        if number.isdecimal() and not _alive(int(number)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


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
def _undisturbed() -> Iterator[None]:
    """Let no second signal stop the cleaning up after the first."""
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
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
    from copier.errors import CopierError
    from plumbum import CommandNotFound, ProcessExecutionError

    os.environ["GIT_TERMINAL_PROMPT"] = "0"  # a private address must fail, and not wait for a password
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
    answers = {key: value for key, value in recorded.items() if not key.startswith("_")}
    unknown = sorted(given - set(answers) - {"tensor_cores"})
    if unknown:
        raise FastprojError(f"the template asks no question {unknown[0]!r}: it asks {', '.join(answers)}")
    return answers


def _commit(stage: Path, target: Path) -> str:
    """Make a repository with one commit; whatever stands against the commit is told, and is no failure."""
    if _inside_repository(stage.parent):
        return "no repository of its own, as it lies in one: git add it there"
    # Hooks, signatures and ignored files are the user's for later; the first commit holds just what was rendered.
    plain = ["-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "-c", "core.excludesFile=/dev/null"]
    plain += ["-c", "user.useConfigOnly=true"]
    for command in (["init", "--quiet", "--initial-branch=main"], ["add", "--all"]):
        done = _git(stage, [*plain, *command])
        if done.returncode != 0:
            return f"no commit, as git {command[0]} failed: {last_line(done.stderr)}"
    if _git(stage, [*plain, "var", "GIT_COMMITTER_IDENT"]).returncode != 0:
        return "no first commit, as git does not know you: set user.name and user.email with git config, then commit"
    done = _git(stage, [*plain, "commit", "--quiet", "--message", f"Render {target.name} with fastproj"])
    return "a repository with a first commit" if done.returncode == 0 else f"no first commit: {last_line(done.stderr)}"


def _inside_repository(folder: Path) -> bool:
    return _git(folder, ["rev-parse", "--is-inside-work-tree"]).stdout.strip() == "true"


def _git(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {
        key: value for key, value in os.environ.items() if key not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    }
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
