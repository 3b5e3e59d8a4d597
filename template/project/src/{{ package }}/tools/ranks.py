"""The processes of one start of a run: starts them, passes signals on, and ends all when one has failed."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ONE_SIGNAL_SECONDS, RESTART, STOPPED, UNEXPECTED

POLL = 0.05
"""Seconds between looks at the processes."""
GRACE = 3.0
"""Seconds that the others have when one has failed, in which they may report why they fail, too."""
GRACE_AFTER_HANG = 0.5
"""The same when one reports a hang, as it has waited for the reports of the others."""
STOPPING = 120.0
"""Seconds that the others have when one has stopped by request, or has ended."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class Place(NamedTuple):
    """Where the ranks are: which of them are on this machine, and where they meet."""

    here: int = 1
    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    port: int = 0

    def variables(self, local_rank: int) -> dict[str, str]:
        """Return the environment of a rank, which a single process does not need."""
        if self.here * self.nodes == 1:
            return {}
        values = {
            "RANK": self.node * self.here + local_rank,
            "LOCAL_RANK": local_rank,
            "GROUP_RANK": self.node,
            "WORLD_SIZE": self.nodes * self.here,
            "LOCAL_WORLD_SIZE": self.here,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": self.port,
        }
        return {name: str(value) for name, value in values.items()}


class Ranks:
    """Runs a command in several processes, again for each `run`, and passes the signals that it gets on to them."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.place = Place()
        self.stopping = 0.0
        """When the first signal came."""
        self.kill_at = float("inf")

    def handle_signals(self) -> None:
        """Pass signals on, but those that are ignored, as under nohup."""
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self.stopping and now > self.stopping + ONE_SIGNAL_SECONDS:
            self.kill_at = min(self.kill_at, now + GRACE)
        elif self.stopping:
            return
        self.stopping = self.stopping or now
        self._send(signal.SIGTERM if number == signal.SIGHUP else number)  # a closed terminal asks to stop, too

    def _send(self, number: int) -> None:
        for process in self.processes:
            process.send_signal(number)

    def run(self, command: Sequence[str], place: Place, folder: Path) -> int:
        """Start the command once per rank, wait for all, print which rank failed first, and return its exit status.

        The status is 128 + n for signal n. The ranks leave their messages in `folder`.
        """
        self.place = place
        several = place.here > 1 or place.nodes > 1
        try:
            for local_rank in range(place.here):
                record = folder / str(local_rank) / "error.json"
                record.parent.mkdir(parents=True)
                common = {"TORCHELASTIC_RUN_ID": "launch", "TORCHELASTIC_ERROR_FILE": str(record)}
                # A launcher that has started this one, through `run.processes`, restarts the run.
                environment = {"LAUNCH_DIR": str(folder), **os.environ, **common, **place.variables(local_rank)}
                self.processes.append(
                    subprocess.Popen(command, env=environment, start_new_session=several, preexec_fn=end_with_parent())
                )
            if self.stopping:  # since the first of them was started: the last may not have got the signal
                self._send(signal.SIGTERM)
            return self._wait(folder)
        finally:
            self._kill()
            self.processes, self.kill_at = [], float("inf")

    def _wait(self, folder: Path) -> int:
        failed: list[int] = []
        while True:
            ended = [rank for rank, process in enumerate(self.processes) if process.poll() is not None]
            statuses = {rank: int(self.processes[rank].returncode) for rank in ended}
            if ended and not failed:
                failed = [rank for rank in ended if statuses[rank] not in (0, STOPPED)]
                hung = any(statuses[rank] == RESTART for rank in failed)
                grace = (GRACE_AFTER_HANG if hung else GRACE) if failed else STOPPING
                self.kill_at = min(self.kill_at, time.monotonic() + grace)
            if len(ended) == len(self.processes):
                break
            if time.monotonic() > self.kill_at:
                self._kill()
                if not failed:
                    late = ", ".join(self._name(rank) for rank in range(len(self.processes)) if rank not in ended)
                    print(f"error: {late} did not end in time: killed", file=sys.stderr)
                    return 128 + signal.SIGKILL
            time.sleep(POLL)
        if failed:
            first = {self._name(rank): statuses[rank] for rank in failed}
            return report(first, {self._name(rank) for rank in failed if _message(folder / f"{rank}/error.json")})
        return max(status if status >= 0 else 128 - status for status in statuses.values())

    def _kill(self) -> None:
        for process in self.processes:
            with suppress(OSError):
                if self.place.here > 1 or self.place.nodes > 1:  # with its loader workers
                    os.killpg(process.pid, signal.SIGKILL)
                elif process.poll() is None:
                    process.kill()
        for process in self.processes:
            process.wait()

    def _name(self, local_rank: int) -> str:
        here, node, nodes, *_ = self.place
        return f"rank {node * here + local_rank}" if here * nodes > 1 else "the run"


def _message(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def report(failed: Mapping[str, int], said: set[str]) -> int:
    """Print which rank failed first, unless it is in `said`, as it has said why; return its exit status.

    `failed` are the exit statuses of the ranks that were the first to end, by name; -n for signal n.
    """
    name = min(failed, key=lambda name: (failed[name] >= 0, name not in said))
    status = failed[name]
    if status >= 0:
        if name not in said and status not in (1, 2, UNEXPECTED, RESTART) and status < 128:  # which print a line
            print(f"error: {name} ended with status {status}; see above", file=sys.stderr)
        return status
    ended_by = signal.Signals(-status).name
    memory = ", as happens when the machine is out of memory" if ended_by == "SIGKILL" else ""
    print(f"error: {name} ended by {ended_by}{memory}", file=sys.stderr)
    return 128 - status


def end_with_parent() -> Callable[[], object] | None:
    """Return what a new process calls so that the system kills it when this one ends, however that happens."""
    if sys.platform != "linux":
        return None
    set_option, parent_death_signal = ctypes.CDLL(None).prctl, 1  # PR_SET_PDEATHSIG, in linux/prctl.h
    return lambda: set_option(parent_death_signal, int(signal.SIGKILL))
