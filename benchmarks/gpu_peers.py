"""Measure loops of others beside the project's own on one GPU, as `make gpu-smoke` does.

    python benchmarks/gpu_peers.py FOLDER RESULTS LOOP:MODEL[:compiled] ...

FOLDER is what `gpu_smoke.py --prepare` has written, RESULTS a JSON file. LOOP is core, bare,
nanogpt, timm, lightning or hf. What is answered is skipped. `gpu_smoke.py` takes over the results
from a file `peers.json` beside its own.
"""

import argparse
import signal
import sys
import time
from pathlib import Path

from gpu_questions import OTHERS, SIZES, Row, core, other
from gpu_smoke import Smoke, ask_all, end_all, find_machine, find_versions, name_of

SHORT_NAMES = {"hf": "hugging_face"}


def row_of(text: str) -> Row:
    """Return the row of LOOP:MODEL or LOOP:MODEL:compiled."""
    short, _, rest = text.partition(":")
    model, _, how = rest.partition(":")
    loop = SHORT_NAMES.get(short, short)
    compiled = how == "compiled"
    if model not in SIZES or loop not in ("core", *OTHERS):
        sys.exit(f"error: {text} is not LOOP:MODEL, with a loop of core, {', '.join(OTHERS)}")
    return core(model, compiled) if loop == "core" else other(loop, model, compiled)


def main() -> None:
    """Measure, and print what failed."""
    parser = argparse.ArgumentParser(
        description="Measure loops of others beside the project's own on a GPU."
    )
    parser.add_argument("folder", type=Path, help="what gpu_smoke.py --prepare has written")
    parser.add_argument("results", type=Path, help="a JSON file")
    parser.add_argument("loops", nargs="+", metavar="LOOP:MODEL[:compiled]")
    parser.add_argument("--seconds", type=float, default=540.0, help="time for everything")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, end_all)
    deadline = time.monotonic() + args.seconds
    smoke = Smoke(
        args.folder.resolve(),
        args.results,
        deadline,
        find_machine(),
        versions=find_versions(),
    )
    smoke.load()
    succeeded = smoke.with_status("ok")
    rows = [row_of(text) for text in args.loops]
    rows = [row for row in rows if name_of(row) not in succeeded]
    ask_all(smoke, together=[], alone=rows, jobs=1)
    failed = smoke.with_status("failed")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
