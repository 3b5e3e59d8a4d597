"""Start a training program in one process or in several ranks, and restart it where that can help.

    python -m <package>.tools.launch --nproc-per-node 4 -m <package>.train --config configs/default.yaml
    python -m <package>.tools.launch --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 8 -m ...

The options have the names that torchrun gives them. A rank prints its own error; one that was killed is named here.
This imports nothing but Python's standard library, and needs no store of its own: the ranks meet at rank 0's.
"""

import argparse
import socket
import sys

from . import restart
from .ranks import Place


def main(argv: list[str] | None = None) -> None:
    """Run the program. The exit status is that of the rank that failed first, 128 + n for signal n."""
    options = _parse(argv)
    command = [sys.executable, *(["-m"] if options.module else []), *options.program]

    def place(restarts: int) -> Place:
        if options.nnodes == 1:
            return Place(options.nproc_per_node, port=_free_port() if options.nproc_per_node > 1 else 0)
        # Each start meets at a port of its own, so that no rank meets one of the start before.
        port = options.master_port + restarts
        return Place(options.nproc_per_node, options.node_rank, options.nnodes, options.master_addr, port)

    sys.exit(restart.run(command, place, options.restarts))


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launch", allow_abbrev=False, add_help=False)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--nproc-per-node", type=int, default=1)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=29500)
    parser.add_argument("-m", dest="module", action="store_true")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    most = {"restarts": (0, 1000), "nproc_per_node": (1, 4096), "nnodes": (1, 65536), "master_port": (1, 65535)}
    for name, (low, high) in {**most, "node_rank": (0, options.nnodes - 1)}.items():
        if not low <= getattr(options, name) <= high:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}: it must be from {low} to {high}")
    if not options.program:
        parser.error("no program to start: add -m and a module")
    return options


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
