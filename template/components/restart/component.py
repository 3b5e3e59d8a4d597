"""Restarts a run that was killed, failed or hung, from its newest checkpoint.

python -m <package>.components.restart -- --config configs/default.yaml --run.name first

It starts the ranks of one machine itself: torchrun hides their exit statuses, and its restarts
often hang with gloo.
"""

import argparse
import math
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from ..components import Config
from ..config import parse
from ..errors import UserError, one_line

STOPPED = 75
"""Exit status of a rank that was asked to stop."""
WRONG = 64
"""Exit status of a rank with an error that a restart cannot repair: EX_USAGE of sysexits.h."""
# seconds that the other ranks have for their stacks, or their own error, after one has failed
GRACE = 5.0


class Supervisor:
    """Starts the ranks of a run on this machine, as often as needed."""

    def __init__(
        self,
        folder: Path,
        options: list[str],
        ranks: int,
    ) -> None:
        self.folder = folder
        self.ranks = ranks
        module = f"{__package__.removesuffix('.components')}.train"
        self.command = [sys.executable, "-m", module, *options, "--watchdog.enabled=true"]
        self.asked: list[int] = []
        """Signals that asked to stop."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, _: self.asked.append(number))

    def run(self, max_restarts: int) -> int:
        """Train to the end, and return the exit status.

        Give up after so many restarts without a newer checkpoint.
        """
        in_vain = 0
        while True:
            before = self._progress()
            codes = self._wait(self._start())
            self._show_stacks()
            after = self._progress()
            if not any(codes) or (WRONG in codes and after[1] == before[1]):
                return int(any(codes))
            if STOPPED in codes or self.asked:
                return STOPPED
            in_vain = 0 if after != before else in_vain + 1
            ended = f"the ranks ended with status {', '.join(map(str, codes))}"
            if in_vain > max_restarts:
                vain = f"{max_restarts} restarts brought no newer checkpoint"
                print(f"error: {ended}, and {vain}", file=sys.stderr)
                return 1
            again = f"{self.folder} starts again from step {after[0]:,}"
            print(f"restart: {ended}: {again}", file=sys.stderr)

    def _start(self) -> list[subprocess.Popen[bytes]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ERROR_STATUS": str(WRONG)}
        shared |= {"WORLD_SIZE": str(self.ranks), "LOCAL_WORLD_SIZE": str(self.ranks)}
        if self.ranks > 1:  # as torchrun does
            os.environ.setdefault("OMP_NUM_THREADS", "1")
        processes = []
        for rank in range(self.ranks):
            variables = os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(self.command, env=variables, start_new_session=True)
            processes.append(process)
        return processes

    def _wait(self, processes: list[subprocess.Popen[bytes]]) -> list[int]:
        """Pass signals on; after a failure, end what is left. Return the exit statuses."""
        end = math.inf
        sent = 0
        codes = [process.poll() for process in processes]
        while None in codes and time.monotonic() < end:
            for number in self.asked[sent:]:
                for process in processes:
                    process.send_signal(number)
                sent += 1
            if set(codes) - {None, 0, STOPPED}:
                end = min(end, time.monotonic() + GRACE)
            time.sleep(0.1)
            codes = [process.poll() for process in processes]
        for process in processes:  # and its loader workers, which keep the lock of the run
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return [process.wait() for process in processes]

    def _show_stacks(self) -> None:
        for file in sorted(self.folder.glob("stacks-rank-*.txt")):
            stacks = file.read_text(encoding="utf-8")
            if stacks:
                rank = file.stem.removeprefix("stacks-")
                print(f"restart: {rank} hung\n{stacks}", file=sys.stderr)
            file.unlink()

    def _progress(self) -> tuple[int, str]:
        """Return the step of the newest checkpoint, and what the component `oom` has left."""
        names = [folder.name for folder in self.folder.glob("checkpoints/step-*")]
        steps = [int(name.removeprefix("step-")) for name in names]
        file = self.folder / "oom.json"
        return max(steps, default=0), file.read_text(encoding="utf-8") if file.exists() else ""


def main() -> None:
    """Train with the options of the command line, and start again if needed."""
    parser = argparse.ArgumentParser(
        description="Train, and restart the run when it is killed, fails or hangs."
    )
    parser.add_argument(
        "--max-restarts", type=int, default=3, help="restarts in a row without a newer checkpoint"
    )
    parser.add_argument("--nproc-per-node", type=int, default=1, help="ranks on this machine")
    parser.add_argument(
        "options",
        nargs="*",
        help="after --: options of the training command; --run.name is required",
    )
    given = parser.parse_args()
    with one_line():
        cfg = parse(Config, given.options)
        if cfg.run.name is None:
            raise UserError("a run without a name cannot be resumed: add --run.name first")
    supervisor = Supervisor(cfg.run.dir / cfg.run.name, given.options, given.nproc_per_node)
    raise SystemExit(supervisor.run(given.max_restarts))


if __name__ == "__main__":
    main()
