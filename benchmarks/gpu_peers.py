"""Measure loops of others beside the project's own on one GPU, one after the other; `make gpu-smoke` does it as well.

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

from gpu_questions import OTHERS, ROWS, SIZES, Row, other
from gpu_smoke import Smoke, ask_all, end_all, find_machine, find_versions, name_of

SHORT_NAMES = {"hf": "hugging_face"}


def row_of(text: str) -> Row:
    """Return the row of LOOP:MODEL or LOOP:MODEL:compiled."""
    loop, model, *rest = [*text.split(":"), ""][:3]
    loop, compiled = SHORT_NAMES.get(loop, loop), rest == ["compiled"]
    if model not in SIZES or loop not in ("core", *OTHERS):
        sys.exit(f"error: {text} is not LOOP:MODEL, with a loop of core, {', '.join(OTHERS)}")
    if loop != "core":
        return other(loop, model, compiled)
    name = "bf16, compiled" if compiled else "bf16"
    return next(row for row in ROWS if (row.model, row.name) == (model, name))


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
        args.folder.resolve(), args.results, deadline, find_machine(), versions=find_versions()
    )
    smoke.load()
    rows = [row_of(text) for text in args.loops]
    ask_all(
        smoke,
        [],
        [row for row in rows if smoke.results.get(name_of(row), {}).get("status") != "ok"],
        1,
    )
    failed = [name for name, answer in smoke.results.items() if answer["status"] == "failed"]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
