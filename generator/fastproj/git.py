"""Run git such that neither the caller's repository nor hooks affect the result."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from .errors import FastprojError

TIMEOUT_S = 600.0

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
        lines = map(str.strip, self.stderr.decode(errors="replace").splitlines())
        return next(
            (it for it in lines if it and not it.lower().startswith(("warning:", "hint:"))),
            "no message",
        )


def run(
    folder: Path,
    *arguments: str,
    data: bytes = b"",
    settings: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Result:
    """Run git in a folder, without hooks; raises an error if it cannot be started or does not end."""
    if (program := shutil.which("git")) is None:
        raise FastprojError("git is not on the PATH: install git, then try again")
    options = [
        part
        for key, value in (_SAFE | dict(settings or {})).items()
        for part in ("-c", f"{key}={value}")
    ]
    command = [program, *options, *arguments]
    environment = os.environ | _TRANSPORT | dict(variables or {})
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe
        )
        try:
            stdout, stderr = process.communicate(data, TIMEOUT_S)
        except BaseException:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                # until what git has started, such as `index-pack`, ends as well
                process.communicate(timeout=5)
            raise
    except subprocess.TimeoutExpired as error:
        raise FastprojError(
            f"git {arguments[0]} did not finish in {TIMEOUT_S:g} s: run it in {folder}"
        ) from error
    except OSError as error:
        raise FastprojError(
            f"git cannot be started ({error.strerror}): repair {program}"
        ) from error
    return Result(command, process.returncode, stdout, stderr)


def require_merges() -> None:
    """Check that git works and is recent enough for updates; else raise an error."""
    done = run(Path("/"), "--version")
    found = re.match(r"git version (\d+)\.(\d+)", done.text)
    if found is None or (int(found[1]), int(found[2])) < (2, 38):  # `merge-tree --write-tree`
        is_now = done.text.strip() if done.ok else done.reason
        raise FastprojError(
            f"git does not work or is too old ({is_now}): install git 2.38 or newer, or repair it"
        )


def forget_callers_repository() -> None:
    """Remove variables that point git to a repository, such as GIT_DIR, from the environment."""
    for key in [key for key in os.environ if key.startswith("GIT_") and not key.startswith(_KEPT)]:
        del os.environ[key]
