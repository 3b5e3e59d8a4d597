"""The command line of `make gpu-smoke`: see the package's docstring."""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from . import bundle, report
from .results import Result, line, passed, read
from .supervisor import Supervisor, WorkerError, worker_command

OUTPUT = bundle.ROOT / "build" / "gpu-smoke.jsonl"


def main() -> None:
    """Run the checks; the exit status is 0 if all passed, or lack hardware."""
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as at an error, the worker ends and its files are removed
    parser = argparse.ArgumentParser(prog="python -m gpu_smoke", description="Check rendered projects on a GPU.")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with tiny sizes, what the CPU can show")
    parser.add_argument(
        "--limit",
        type=float,
        default=540.0,
        help="seconds in total from the start of this program, so that one call fits ten minutes; the checks that are "
        "left then have failed (540)",
    )
    parser.add_argument("--only", nargs="+", default=[], help="only checks whose name contains one of these")
    parser.add_argument(
        "--group", nargs="+", default=[], help="only checks of these groups: the headings of docs/gpu.md"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file of JSON lines; overwritten without --append")
    parser.add_argument(
        "--append",
        action="store_true",
        help="keep the results in --output: run what is not in it, then what has failed",
    )
    parser.add_argument("--bundle", type=Path, default=bundle.FOLDER, help="folder that `make gpu-bundle` filled")
    parser.add_argument("--report", action="store_true", help="run nothing: write docs/gpu.md from the last results")
    args = parser.parse_args()
    if args.report:
        report.keep(args.output)
        return
    args.output.parent.mkdir(parents=True, exist_ok=True)
    for file in () if args.append else (args.output, args.output.with_suffix(".log")):
        file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-smoke-", ignore_cleanup_errors=True) as folder:
        projects, search = prepare(args.bundle, Path(folder))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, search))}
        # cuBLAS reads it once per process, long before the checks of deterministic runs; it is Hopper's default size.
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        command = worker_command(projects, Path(folder, "runs"), args.dry_run)
        supervisor = Supervisor(command, environment, args.output, args.limit, args.only, args.group, started)
        sys.exit(0 if show(supervisor, args.append) else 1)


def prepare(folder: Path, scratch: Path) -> tuple[Path, list[Path]]:
    """Return the folder of the rendered projects, and PYTHONPATH."""
    folder, here = folder.resolve(), Path(__file__).parents[1]
    inherited = [Path(place) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    if (folder / bundle.PROJECTS).is_file():
        bundle.unpack(folder, scratch)
        return scratch / "projects", [here, scratch / "packages", *inherited, folder / "data"]
    if find_spec("copier") is None or find_spec("fastproj") is None:
        sys.exit(f"error: {folder} has no projects: run `make gpu-bundle` where there is a network, and copy it here")
    bundle.render(scratch / "projects")
    return scratch / "projects", [here, *inherited]


def show(supervisor: Supervisor, appended: bool = False) -> bool:
    """Print each result as it comes, and a summary; return whether all is well, with those of before if appended."""
    results: list[Result] = []
    try:
        for result in supervisor.run():
            results.append(result)
            print(line(result), flush=True)
    except WorkerError as error:
        sys.exit(f"error: {error}; {supervisor.output.with_suffix('.log')} may say more")
    counts = Counter(result.status for result in results)
    summary = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no check has this name, or is left"
    print(f"{summary}; results in {supervisor.output}")
    return bool(results) and passed(results) if not appended else passed(read(supervisor.output)[1])


if __name__ == "__main__":
    main()
