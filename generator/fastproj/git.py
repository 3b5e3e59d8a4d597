"""Run git such that neither the caller's repository nor hooks affect the result."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from packaging.version import Version

from . import signals
from .errors import FastprojError

TIMEOUT_S = 600.0
END_S = 10.0
"""Seconds to wait for what git has started, after git was killed."""

# Variables about identity and transport. All others, such as GIT_DIR, are about a repository.
_IDENTITY = ("GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_SSH", "GIT_SSL_", "GIT_ASKPASS", "GIT_EXEC_PATH")
_KEPT = (*_IDENTITY, "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")

# A cloned or rendered folder that looks like a bare repository must not bring settings, which may
# name programs.
_SAFE = {"core.hooksPath": os.devnull, "core.fsmonitor": "false", "safe.bareRepository": "explicit"}
# Files of a template as they were committed, without conversion.
AS_COMMITTED = {"core.autocrlf": "false", "core.eol": "lf", "core.attributesFile": os.devnull}
# Whatever the user's settings say: local templates can be cloned, and no protocol that runs
# commands, such as ext. A private template must fail, not wait for a password.
_TRANSPORT = {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", "GIT_TERMINAL_PROMPT": "0"}


class Result(subprocess.CompletedProcess[bytes]):
    """Exit status and output of a git command."""

    @property
    def ok(self) -> bool:
        """Whether the command succeeded."""
        return self.returncode == 0

    @property
    def text(self) -> str:
        """The output, decoded."""
        return self.stdout.decode(errors="replace")

    @property
    def reason(self) -> str:
        """Why the command failed, in one line."""
        for line in self.stderr.decode(errors="replace").splitlines():
            if line.strip() and not line.lower().startswith(("warning:", "hint:")):
                return line.strip()
        return "no message"


def run(
    folder: Path,
    *arguments: str,
    data: bytes = b"",
    settings: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Result:
    """Run git in a folder, without hooks; raises an error if it cannot start or does not end."""
    program = shutil.which("git")
    if program is None:
        raise FastprojError("git is not on the PATH: install git, then try again")
    command = [program]
    for key, value in (_SAFE | dict(settings or {})).items():
        command += ["-c", f"{key}={value}"]
    command += arguments
    environment = os.environ | _TRANSPORT | dict(variables or {})
    process = None
    try:
        with signals.delayed():
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        output, errors = process.communicate(data, TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise FastprojError(
            f"git {arguments[0]} did not finish in {TIMEOUT_S:g} s: run it in {folder}"
        ) from error
    except OSError as error:
        raise FastprojError(
            f"git cannot be started ({error.strerror}): repair {program}"
        ) from error
    finally:
        if process is not None and process.poll() is None:
            _end(process)
    return Result(command, process.returncode, output, errors)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill git, and wait for the programs that it started, which could still write files."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=END_S)  # until nobody holds its output


def require_merges() -> None:
    """Check that git works and is recent enough for updates; else raise an error."""
    done = run(Path("/"), "--version")
    version = re.match(r"git version (\d+\.\d+)", done.text)
    if version is None or Version(version[1]) < Version("2.38"):  # `merge-tree --write-tree`
        present = done.text.strip() if done.ok else done.reason
        raise FastprojError(
            f"git does not work or is too old ({present}): install git 2.38 or newer, or repair it"
        )


def forget_callers_repository() -> None:
    """Remove variables that point git to a repository, such as GIT_DIR, from the environment."""
    for key in list(os.environ):
        if key.startswith("GIT_") and not key.startswith(_KEPT):
            del os.environ[key]
