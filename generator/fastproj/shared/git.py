"""Call git so that neither the caller's repository nor the caller's settings can change what comes out."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import FastprojError

TIMEOUT_S = 60.0
_OLDEST = (2, 28)  # whose `init` can name the first branch; copier needs 2.27

# What of git's environment is about who and how, and not about which repository.
_WHO_AND_HOW = ("GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_SSH", "GIT_SSL_", "GIT_ASKPASS", "GIT_EXEC_PATH")
_KEPT = (*_WHO_AND_HOW, "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")

# A template's files as they were written: no CRLF, no filters, no hooks; and a local template can be cloned.
_AS_WRITTEN = {
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.attributesFile": os.devnull,
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "protocol.file.allow": "always",
}


def require() -> None:
    """Make sure that there is a git that works.

    Raises:
        FastprojError: there is none, it does not answer as git does, or it is too old.
    """
    if shutil.which("git") is None:
        raise FastprojError("git is not on the PATH, and templates are read with it: install git, then try again")
    answer = run(Path("/"), "--version").stdout
    version = re.match(r"git version (\d+)\.(\d+)", answer)
    if version is None:
        raise FastprojError(f"{shutil.which('git')} does not answer as git does: repair or reinstall git")
    if (int(version[1]), int(version[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise FastprojError(f"{answer.strip()} is too old for templates: install git {oldest} or newer")


def forget_callers_repository() -> None:
    """Drop what ties git to another repository (GIT_DIR, GIT_INDEX_FILE and the like) from the environment."""
    for key in [key for key in os.environ if key.startswith("GIT_") and not key.startswith(_KEPT)]:
        del os.environ[key]


@contextmanager
def reading_templates(own: bool) -> Iterator[None]:
    """Environment for reading a template; our own needs nothing of the user's settings, which could only spoil it."""
    before = os.environ.copy()
    os.environ["GIT_TERMINAL_PROMPT"] = "0"  # a private address must fail, and not wait for a password
    if own:
        os.environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    os.environ["GIT_CONFIG_COUNT"] = str(len(_AS_WRITTEN))
    for number, (key, value) in enumerate(_AS_WRITTEN.items()):
        os.environ |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    try:
        yield
    finally:
        for key in set(os.environ) - set(before):
            del os.environ[key]
        os.environ.update(before)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in a folder and return what it said, whatever its status.

    Raises:
        FastprojError: git cannot be started, or gives no answer in a minute.
    """
    try:
        return subprocess.run(
            [shutil.which("git") or "git", *arguments],  # as copier finds it, not the next one on the PATH
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FastprojError(
            f"git {arguments[0]} gave no answer in {TIMEOUT_S:g} s: repair {shutil.which('git')}"
        ) from error
    except OSError as error:
        raise FastprojError(f"git cannot be started ({error.strerror}): repair {shutil.which('git')}") from error
