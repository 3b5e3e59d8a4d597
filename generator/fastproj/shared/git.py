"""Run git such that neither the caller's repository nor hooks affect the result."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .errors import FastprojError

OLDEST_TO_RENDER = (2, 28)  # first with `init --initial-branch`; copier needs 2.27
OLDEST_TO_MERGE = (2, 38)  # first with `merge-tree --write-tree`

# Variables about identity and transport. All others, such as GIT_DIR, are about a repository.
_IDENTITY = ("GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_SSH", "GIT_SSL_", "GIT_ASKPASS", "GIT_EXEC_PATH")
_KEPT = (*_IDENTITY, "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")

# A cloned or rendered folder that looks like a bare repository must not bring settings, which may name programs.
_SAFE = {"core.hooksPath": os.devnull, "core.fsmonitor": "false", "safe.bareRepository": "explicit"}
# Files of a template as they were committed, without conversion.
_UNCONVERTED = {"core.autocrlf": "false", "core.eol": "lf", "core.attributesFile": os.devnull}
# Whatever the user's settings say: local templates can be cloned, and no protocol that runs commands, such as ext.
_PROTOCOLS = {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh"}


@dataclass(frozen=True)
class Result:
    """Exit status and output of a git command."""

    returncode: int
    stdout: bytes
    stderr: bytes

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
        return last_line(self.stderr.decode(errors="replace"))


def run(
    folder: Path,
    *arguments: str,
    data: bytes = b"",
    settings: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Result:
    """Run git in a folder, without hooks; raises an error if it cannot be started or takes longer than `timeout_s`."""
    program = shutil.which("git")  # as copier finds it, not the next one on the PATH
    if program is None:
        raise FastprojError("git is not on the PATH: install git, then try again")
    options = [part for key, value in (_SAFE | dict(settings or {})).items() for part in ("-c", f"{key}={value}")]
    command = [program, *options, *arguments]
    environment = os.environ | _PROTOCOLS | dict(variables or {})
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
        try:
            stdout, stderr = process.communicate(data, timeout_s)
        except BaseException:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)  # until what git has started, such as `index-pack`, ends as well
            raise
    except subprocess.TimeoutExpired as error:
        reason = f"git {arguments[0]} did not finish in {timeout_s:g} s in {folder}"
        raise FastprojError(f"{reason}: run it there to see why") from error
    except OSError as error:
        raise FastprojError(f"git cannot be started ({error.strerror}): repair {program}") from error
    return Result(process.returncode, stdout, stderr)


@cache
def require(oldest: tuple[int, int] = OLDEST_TO_RENDER) -> None:
    """Check that git works and is recent enough; else raise an error."""
    done = run(Path("/"), "--version")
    found = re.match(r"git version (\d+)\.(\d+)", done.text)
    if found is None:
        raise FastprojError(f"{shutil.which('git')} does not work ({done.reason}): fix its settings, or repair git")
    if (int(found[1]), int(found[2])) < oldest:
        need = ".".join(map(str, oldest))
        raise FastprojError(f"git {found[1]}.{found[2]} is too old: install git {need} or newer")


def forget_callers_repository() -> None:
    """Remove variables that point git to a repository, such as GIT_DIR, from the environment."""
    for key in [key for key in os.environ if key.startswith("GIT_") and not key.startswith(_KEPT)]:
        del os.environ[key]


def to_read_templates(own: bool) -> dict[str, str]:
    """Return variables for commands that read a template as it was committed; our own without the user's settings."""
    # A private repository must fail, not wait for a password.
    variables = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_COUNT": str(len(_UNCONVERTED))}
    for number, (key, value) in enumerate(_UNCONVERTED.items()):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables | ({"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"} if own else {})


def last_line(text: str | None) -> str:
    """Return the last line that is not empty, where programs say what went wrong."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()] or ["no message"]
    if lines[-1] == "fatal: adding files failed":
        return lines[0]  # the others follow from it
    if lines[-1] == "and the repository exists.":
        lines = lines[:-3] or lines[:1]  # git adds three lines to what ssh says
    return lines[-1]
