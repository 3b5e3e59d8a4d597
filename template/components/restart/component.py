"""Restarts a run that was killed, failed or hung, from its newest checkpoint.

python -m <package>.components.restart --nproc-per-node 4 -- --config configs/default.yaml
--run.name first

It starts the ranks of one machine itself: torchrun hides their exit statuses, and its restarts
often hang with gloo.
"""

import argparse
import faulthandler
import math
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..component import Component, ForwardBackward, OptimizerStep
from ..config_base import Section, within
from ..distributed import World
from ..errors import UserError, one_line
from ..log import Run
from ..metrics import Metrics

STOPPED, WRONG = 75, 64
"""Exit statuses of a rank that was asked to stop, and of one with an error that a restart cannot repair."""
SLOW = 4
"""What the limit is multiplied with for a first step, which may compile, and for checkpoints and validations."""
# seconds that the other ranks have for their stacks, or their own error, after one has failed
GRACE = 5.0
# `python -m` of a module that its package imports.
warnings.filterwarnings(
    "ignore", "'.*components.restart' found in sys.modules", RuntimeWarning, "runpy"
)


@dataclass(frozen=True)
class RestartConfig(Section):
    """A watchdog that ends a process that hangs."""

    enabled: bool = False
    """End a process that hangs, and write the stacks of its threads to `stacks-rank-<rank>.txt` in the run's folder."""
    hang_seconds: float = within("(0, inf)", 600.0)
    """Seconds without progress that count as a hang; four times as many in a first step, checkpoint or validation."""


class Restart(Component):
    """Arms faulthandler's watchdog again and again, which works even while Python's lock is held."""

    name = "restart"

    def __init__(self, cfg: RestartConfig, world: World) -> None:
        self.limit, self.rank = cfg.hang_seconds, world.rank
        self.file: IO[str] | None = None
        self.armed = self.seconds = 0.0  # when the watchdog was armed, and for how long

    def wrap_step(
        self, run: Run, forward_backward: ForwardBackward, step: OptimizerStep
    ) -> tuple[ForwardBackward, OptimizerStep]:
        first = run.step

        def watched(batch: Any, share: float, last: bool) -> Metrics:
            self._arm(run, SLOW if run.step == first else 1)
            return forward_backward(batch, share, last)

        return watched, step

    def on_step_end(self, run: Run) -> None:
        self._arm(run, SLOW if run.plan.validates(run.step) else 1)

    @contextmanager
    def eval_weights(self, run: Run) -> Iterator[None]:
        self._arm(run, SLOW)
        yield

    def on_train_end(self, run: Run) -> None:
        faulthandler.cancel_dump_traceback_later()
        if self.file is not None:
            self.file.close()
            if (file := Path(self.file.name)).stat().st_size == 0:
                file.unlink()

    def _arm(self, run: Run, factor: int) -> None:
        """Let the process end after so many times the limit, unless this is called before; at most once a second."""
        now, seconds = time.monotonic(), factor * self.limit
        if seconds == self.seconds and now - self.armed < min(1.0, 0.1 * self.limit):
            return
        if self.file is None:
            self.file = (run.folder / f"stacks-rank-{self.rank}.txt").open("a", encoding="utf-8")
        self.armed, self.seconds = now, seconds
        faulthandler.dump_traceback_later(seconds, file=self.file, exit=True)


class Supervisor:
    """Starts the ranks of a run on this machine, as often as needed."""

    def __init__(self, folder: Path, options: list[str], ranks: int) -> None:
        self.folder, self.ranks = folder, ranks
        own = f"{__package__}.restart"
        self.command = [sys.executable, "-m", own, "--worker", *options, "--restart.enabled=true"]
        self.asked: list[int] = []
        """Signals that asked to stop."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, _: self.asked.append(number))

    def run(self, most: int) -> int:
        """Train to the end, and return the exit status; give up after so many restarts without a newer checkpoint."""
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
            if in_vain > most:
                print(
                    f"error: {ended}, and {most} restarts brought no newer checkpoint",
                    file=sys.stderr,
                )
                return 1
            print(
                f"restart: {ended}: {self.folder} starts again from step {after[0]:,}",
                file=sys.stderr,
            )

    def _start(self) -> list[subprocess.Popen[bytes]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        if self.ranks > 1:  # as torchrun does
            place |= {"WORLD_SIZE": str(self.ranks), "LOCAL_WORLD_SIZE": str(self.ranks)}
            os.environ.setdefault("OMP_NUM_THREADS", "1")
        names = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(self.ranks)]
        return [
            subprocess.Popen(self.command, env=os.environ | place | it, start_new_session=True)
            for it in names
        ]

    def _wait(self, processes: list[subprocess.Popen[bytes]]) -> list[int]:
        """Pass signals on; after a failure, end what is left. Return the exit statuses."""
        end, sent = math.inf, 0
        while (
            None in (codes := [process.poll() for process in processes]) and time.monotonic() < end
        ):
            for number in self.asked[sent:]:
                for process in processes:
                    process.send_signal(number)
                sent += 1
            if set(codes) - {None, 0, STOPPED}:
                end = min(end, time.monotonic() + GRACE)
            time.sleep(0.1)
        for process in processes:  # and its loader workers, which keep the lock of the run
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return [process.wait() for process in processes]

    def _show_stacks(self) -> None:
        for file in sorted(self.folder.glob("stacks-rank-*.txt")):
            if stacks := file.read_text(encoding="utf-8"):
                print(
                    f"restart: {file.stem.removeprefix('stacks-')} hung\n{stacks}", file=sys.stderr
                )
            file.unlink()

    def _progress(self) -> tuple[int, str]:
        """Return the step of the newest checkpoint, and what the component `oom` has left for the next start."""
        steps = [
            int(folder.name.removeprefix("step-"))
            for folder in self.folder.glob("checkpoints/step-*")
        ]
        file = self.folder / "oom.json"
        return max(steps, default=0), file.read_text(encoding="utf-8") if file.exists() else ""


def main() -> None:
    """Start the supervisor; or, as `--worker`, a rank."""
    if sys.argv[1:2] == ["--worker"]:
        _train(sys.argv[2:])
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
        from ..components import Config  # imports this module
        from ..config import parse

        cfg = parse(Config, given.options)
        if cfg.run.name is None:
            raise UserError("a run without a name cannot be resumed: add --run.name first")
    supervisor = Supervisor(cfg.run.dir / cfg.run.name, given.options, given.nproc_per_node)
    raise SystemExit(supervisor.run(given.max_restarts))


def _train(options: list[str]) -> None:
    """Train as one rank; exit with `WRONG` after an error of one line, as Python exits with 1 after any exception."""
    from ..train import main as train

    sys.argv[1:] = options
    try:
        train()
    except SystemExit as ended:
        raise SystemExit(WRONG if ended.code == 1 else ended.code) from None
    raise SystemExit(0)


if __name__ == "__main__":
    main()
