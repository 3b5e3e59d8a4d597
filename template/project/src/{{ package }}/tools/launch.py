"""Start several ranks with torchrun, whose options this takes, and report a failure in one line instead of forty.

    python -m <package>.tools.launch --standalone --nproc-per-node 4 -m <package>.train --config configs/default.yaml

A rank prints its own error. What torchrun adds, a traceback of itself, is left out; its other messages are not.
"""

import logging
import signal
import sys
from collections.abc import Mapping
from typing import Any


def main(argv: list[str] | None = None) -> None:
    """Run torchrun. The exit status is the one of the first rank that failed, 128 + n for signal n."""
    print("starting the ranks with torchrun", flush=True)  # as importing torch takes seconds
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    logging.getLogger("torch.distributed.elastic.agent.server.api").setLevel(logging.ERROR)
    try:
        options = run.parse_args(argv)
        run.config_from_args(options)  # refuses values
    except ValueError as error:
        sys.exit(f"error: torchrun: {error}")
    try:
        run.run(options)
    except ChildFailedError as error:
        sys.exit(report(error.failures))
    except SignalException as error:
        sys.exit(128 + error.sigval)


def report(failures: Mapping[int, Any]) -> int:
    """Print which rank failed first, unless it has said why, and return the exit status."""

    def moment(item: tuple[int, Any]) -> tuple[int, bool, bool, bool]:
        """Sort by time, in whole seconds: first a rank that a signal ended, then one that says why.

        torchrun ends the others with SIGTERM when one has failed.
        """
        failure = item[1]
        stopped = failure.exitcode == -signal.SIGTERM
        unexplained = not isinstance(failure.message, Mapping)
        return failure.timestamp, failure.exitcode >= 0 or stopped, unexplained, stopped

    rank, first = min(failures.items(), key=moment)
    if isinstance(first.message, Mapping):  # what the rank recorded when it printed its error
        return int(first.exitcode)
    if first.exitcode >= 0:
        print(f"error: rank {rank} ended with status {first.exitcode}; see above", file=sys.stderr)
        return int(first.exitcode)
    name = signal.Signals(-first.exitcode).name
    memory = ", as happens when the machine is out of memory" if name == "SIGKILL" else ""
    print(f"error: rank {rank} ended by {name}{memory}; resume with --run.resume", file=sys.stderr)
    return 128 - int(first.exitcode)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # before torchrun handles it
        sys.exit(128 + signal.SIGINT)
