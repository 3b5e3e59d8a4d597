"""Python commands in forks of one process that has imported torch, as that takes seconds.

Only where the start itself is not what is tested.
"""

import gc
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing import forkserver, util
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from matrix import EVERY
from program import LIMIT_S, PROGRAMS

PRELOADED = ["torch", "torch._dynamo", "jsonargparse", "sklearn.datasets", "lightning.pytorch.cli"]
PRELOADED += ["accelerate"]
FORKED = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
"""Options of pytest in a fork: a plugin of pytest is imported there already."""


RUNNING: list["Started"] = []
"""What a test has started and not yet ended; a fixture ends it with the test."""


class Started:
    """The processes of one command; their output is in files."""

    def __init__(
        self, command: tuple[str, ...], processes: list[BaseProcess], outputs: Path
    ) -> None:
        self.command = command
        self.processes = processes
        self.outputs = outputs

    def send(self, number: int, rank: int | None = None) -> None:
        """Send a signal to one rank, or to all of them."""
        for place, process in enumerate(self.processes):
            if rank in (None, place) and process.is_alive() and process.pid:
                os.kill(process.pid, number)

    def kill(self) -> None:
        """End all ranks by SIGKILL, with the processes that they have started."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.kill()  # it may not have its group yet
            process.join()
        if self in RUNNING:
            RUNNING.remove(self)

    def running(self) -> bool:
        """Whether every rank still runs."""
        return all(process.is_alive() for process in self.processes)

    def finish(self, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Wait until all ranks have ended, and put together what they printed.

        Kill those that hang.
        """
        deadline = time.monotonic() + limit_s
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0))
        self.kill()
        ranks = range(len(self.processes))
        stdout = "".join((self.outputs / f"1-{rank}").read_text() for rank in ranks)
        stderr = "".join((self.outputs / f"2-{rank}").read_text() for rank in ranks)
        status = next((process.exitcode for process in self.processes if process.exitcode), 0)
        return subprocess.CompletedProcess(self.command, status, stdout, stderr)


def one_of_two_ranks(monkeypatch: pytest.MonkeyPatch, errors: Any) -> None:
    """Let this process be a rank that waits half a second for another one, which does not come."""
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (variables | {"MASTER_PORT": free_port()}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(errors, "JOIN", timedelta(seconds=0.5))


def free_port() -> str:
    """Return the number of a port that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def start_python(
    folder: Path, *command: str, ranks: int = 1, nodes: int = 1, **changes: str
) -> Started:
    """Start `python COMMAND` in a rendered project, whose package is found without being installed.

    Ranks have the environment that torchrun would give them on that many nodes; 0 ranks are one
    process without a launcher.
    """
    here = ranks // nodes
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    shared |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(here)}
    outputs = Path(tempfile.mkdtemp())
    processes: list[BaseProcess] = []
    for rank in range(max(ranks, 1)):
        variables = dict(changes)
        if ranks > 0:
            place = {"LOCAL_RANK": f"{rank % here}", "GROUP_RANK": f"{rank // here}"}
            variables = shared | {"RANK": f"{rank}"} | place | changes
        files = [str(outputs / f"{stream}-{rank}") for stream in (1, 2)]
        for file in files:
            Path(file).touch()
        processes.append(context.Process(target=_run, args=(folder, command, variables, files)))
    for process in processes:
        process.start()
    RUNNING.append(Started(command, processes, outputs))
    return RUNNING[-1]


def start_torchrun(
    folder: Path,
    *command: str,
    **changes: str,
) -> Started:
    """Start two ranks by torchrun, which are forks of it; only `make test-all` starts a Python."""
    program = ["-m", "torch.distributed.run"] if EVERY else [str(PROGRAMS / "forking_torchrun.py")]
    options = ["--standalone", "--nproc-per-node=2"]
    changes.setdefault("PYTHONPATH", str(folder / "src"))  # of ranks that are not forks
    return start_python(
        folder,
        *program,
        *options,
        *command,
        ranks=0,
        nodes=1,
        **changes,
    )


def run_python(
    folder: Path,
    *command: str,
    ranks: int = 1,
    nodes: int = 1,
    limit_s: float = LIMIT_S,
    status: int | None = 0,
    **changes: str,
) -> subprocess.CompletedProcess[str]:
    """Run `python COMMAND` as `start_python` does, and wait for its end."""
    done = start_python(folder, *command, ranks=ranks, nodes=nodes, **changes).finish(limit_s)
    assert status in (None, done.returncode), f"{done.returncode}: {done.stdout}{done.stderr}"
    return done


def _run(
    folder: Path,
    command: tuple[str, ...],
    environment: dict[str, str],
    outputs: list[str],
) -> None:
    if command[0] == "-m":  # programs of tests may look at what is collected
        # The collection at the end of a group need not look at what was imported before.
        gc.freeze()
        gc.freeze = gc.unfreeze = lambda: None
    os.setsid()  # a process group, which can be killed as a whole
    # of loader workers, as in a process of its own
    multiprocessing.set_start_method("fork", force=True)
    os.environ |= environment
    for stream, output in enumerate(outputs, start=1):
        file = os.open(output, os.O_WRONLY)
        os.dup2(file, stream)
        os.close(file)
    os.chdir(folder)
    if command[:2] == ("-m", "pytest"):  # a project's own tests start ranks
        with mock.patch.object(util, "spawnv_passfds", _fork_server):
            forkserver.ensure_running()
    sys.path.insert(0, str(folder / "src"))
    if command[0] == "-m":
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        runpy.run_path(command[0], run_name="__main__")


def _fork_server(
    _program: str,
    words: Sequence[bytes],
    kept: Iterable[int],
) -> int:
    """Start multiprocessing's server in a fork, and not as a new Python that imports torch."""
    process = os.fork()
    if process == 0:
        kept = {0, 1, 2, *kept}
        for file in {int(name) for name in os.listdir("/dev/fd")} - kept:
            with suppress(OSError):  # the one that listed them
                os.close(file)
        try:
            exec(os.fsdecode(words[-1]))  # noqa: S102
        finally:
            os._exit(0)
    return process
