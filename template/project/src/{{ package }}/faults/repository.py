"""The state of the git repository that the code of a run is in; git runs beside the training, as it may take long."""

import hashlib
import os
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

SECONDS = 10.0
"""How long git may take: on a network disk it can hang."""
MAX_DIFF = 2**20
"""Bytes of a diff that is kept."""
MAX_NAMES = 100
"""Untracked files that are named."""
STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", "--ignore-submodules=dirty")
DIFF = ("diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD", "--")


class Repository:
    """Starts git for the repository of a folder; `read` waits for what it says."""

    def __init__(self, folder: Path) -> None:
        self.started, self.problem = time.monotonic(), ""
        self.running: list[subprocess.Popen[bytes]] = []
        self.outputs: list[Any] = []
        # Without variables such as GIT_DIR, which git sets for a hook, and without locks that would disturb other git.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        try:
            for command in (STATUS, DIFF):
                self.outputs.append(tempfile.TemporaryFile())  # noqa: SIM115  # `close` closes it
                git = ["git", "-C", str(folder), *command]
                quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                self.running.append(subprocess.Popen(git, stdout=self.outputs[-1], env=environment, **quiet))
        except FileNotFoundError:
            self.problem = "git is not installed"
        except OSError as error:
            self.problem = f"git does not start: {error.strerror}"

    def read(self) -> tuple[dict[str, Any], bytes]:
        """Return the commit, what is not committed, and the diff; empty if there is none, or it is too large."""
        answers: list[bytes | None] = []
        try:
            answers = [self._answer(*one) for one in zip(self.running, self.outputs, strict=False)]
        except subprocess.TimeoutExpired:
            self.problem = f"git took more than {SECONDS:.0f} s"
        except OSError as error:
            self.problem = f"git failed: {error.strerror}"
        finally:
            self.close()
        if self.problem or None in answers:
            return {"commit": None, "why": self.problem or "not in a git repository, or without a commit"}, b""
        status, diff = (answer or b"" for answer in answers)
        lines = status.decode(errors="replace").split("\0")
        commit = next(line.removeprefix("# branch.oid ") for line in lines if line.startswith("# branch.oid "))
        untracked = sorted(line[2:] for line in lines if line.startswith("? "))
        found: dict[str, Any] = {"commit": commit, "untracked": untracked[:MAX_NAMES], "diff": None}
        if diff:
            found["diff"] = {"sha256": hashlib.sha256(diff).hexdigest(), "bytes": len(diff)}
        return found, diff if len(diff) <= MAX_DIFF else b""

    def close(self) -> None:
        """End git, if it still runs."""
        for process in self.running:
            if process.poll() is None:
                process.kill()
                with suppress(subprocess.TimeoutExpired):  # it waits for a disk
                    process.wait(1)
        for output in self.outputs:
            output.close()
        self.running, self.outputs = [], []

    def _answer(self, process: subprocess.Popen[bytes], output: Any) -> bytes | None:
        """Return what git has printed, at most 64 MiB; None after an error."""
        if process.wait(max(0.0, self.started + SECONDS - time.monotonic())) != 0:
            return None
        output.seek(0)
        return bytes(output.read(2**26))
