"""Ask a GPU whether each precision and component trains and agrees, and measure speed and memory: `make gpu-smoke`.

    python benchmarks/gpu_smoke.py                         # all, at most nine minutes; what is answered is skipped
    python benchmarks/gpu_smoke.py --only 'fp8|^gpt'       # these again
    python benchmarks/gpu_page.py                          # docs/gpu.md from the results
    python benchmarks/gpu_peers.py                         # some loops only

A machine without a network needs torch, and a copy of this repository with a folder that is
prepared elsewhere, for its version of Python:

    python benchmarks/gpu_smoke.py --prepare 3.12          # writes build/gpu-smoke, which must be copied as well

Each answer is written at once to the results, a JSON file, so that a second call continues the
first. Without a GPU, this is a dry run: what needs one is skipped.
"""

import argparse
import json
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_prepare import ROOT, prepare
from gpu_questions import COLD, QUESTIONS, ROWS, Question, Row, compiles

sys.path.insert(0, str(Path(__file__).parent / "programs"))
FOLDER = ROOT / "build/gpu-smoke"
RESULTS = Path(__file__).with_name("gpu.json")
PEERS = "peers.json"
"""Results of `gpu_peers.py`: rows in a file of this name, beside the results, are not measured again."""
LIMITS = {Question: 120.0, Row: 100.0}
"""Seconds that one of them may take."""
PATIENCE = 6
"""On a CPU, which measures nothing and may have other work, the limits are so many times as long."""
SHORTEST = 10.0
"""Nothing is started when fewer seconds are left."""


def name_of(asked: Question | Row) -> str:
    """Return the key of a result."""
    return asked.name if isinstance(asked, Question) else f"{asked.model}: {asked.name}"


@dataclass
class Smoke:
    """One call: what can be asked here, and the results so far."""

    folder: Path
    file: Path
    deadline: float
    machine: dict[str, Any]
    results: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self) -> None:
        """Read the results so far, or end the program if they are of another machine."""
        found = (
            json.loads(self.file.read_text())
            if self.file.exists()
            else {"machine": self.machine, "results": {}}
        )
        if found["machine"] != self.machine:
            sys.exit(
                f"error: {self.file} is of another machine, {found['machine']}: use another --results"
            )
        self.results = found["results"]
        peers = self.file.with_name(PEERS)
        if peers != self.file and peers.exists():
            others = json.loads(peers.read_text())
            self.results = (
                others["results"] if others.get("machine") == self.machine else {}
            ) | self.results

    def ask(self, asked: Question | Row) -> None:
        """Answer in a process of its own, within the time that is left, and write the result."""
        left = self.deadline - time.monotonic()
        why = missing(asked, self.machine)
        if not why and left < SHORTEST:
            return
        started = time.monotonic()
        found = (
            {"status": "skipped", "why": why}
            if why
            else self._answer(asked, left, self.limit(asked))
        )
        if found:
            found |= self.versions if isinstance(asked, Row) else {}
            self.write(name_of(asked), found | {"seconds": round(time.monotonic() - started, 1)})

    def write(self, name: str, found: dict[str, Any]) -> None:
        """Add a result to the file."""
        with self.lock:
            self.results[name] = found
            new = self.file.with_suffix(".new")
            new.write_text(
                json.dumps({"machine": self.machine, "results": self.results}, indent=1) + "\n"
            )
            new.replace(self.file)
            print(
                f"{found['status']:8}{found['seconds']:6.1f} s  {name}  {found.get('why', '')}".rstrip(),
                flush=True,
            )

    def limit(self, asked: Question | Row) -> float:
        """Return the seconds that it may take."""
        return LIMITS[type(asked)] * (1 if self.machine["gpus"] else PATIENCE)

    def _answer(self, asked: Question | Row, left: float, limit: float) -> dict[str, Any]:
        context = multiprocessing.get_context("forkserver")
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder, "answer.json")
            process = context.Process(
                target=_start, args=(asked, self.folder / asked.model / "proj", result)
            )
            process.start()
            process.join(min(left, limit))
            if process.is_alive():
                end(process.pid or 0)
                process.join()
                return (
                    {"status": "failed", "why": f"took more than {limit:.0f} s"}
                    if left > limit
                    else {}
                )
            ended = {"status": "failed", "why": f"the process ended with {process.exitcode}"}
            found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else ended
            return found


def _start(asked: Question | Row, project: Path, result: Path) -> None:
    from gpu_answer import answer  # imports torch, which the parent needs not

    answer(asked, project, result)


def missing(asked: Question | Row, machine: dict[str, Any]) -> str:
    """Return what this machine lacks for a question."""
    lacks = {
        "CUDA": machine["gpus"] < 1,
        "2 GPUs": machine["gpus"] < 2,
        "fp8": machine["capability"] < [8, 9],
    }
    lacks["torch 2.13"] = lacks["CUDA"] or [
        int(part) for part in machine["torch"].split(".")[:2]
    ] < [2, 13]
    packages = [name for name in asked.modules if find_spec(name) is None]
    found = [asked.needs] if lacks.get(asked.needs) else packages
    return f"needs {' and '.join(found)}" if found else ""


def end(process: int) -> None:
    """Kill a process and those that it has started, directly or not."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    family = {process}
    while children := {child for child, parent in parents.items() if parent in family} - family:
        family |= children
    for member in sorted(family, key=os.getpid().__eq__):  # this process is the last one
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)


def end_all(*_: object) -> None:
    """End this process and those that it has started: `timeout` sends SIGTERM to this one alone."""
    end(os.getpid())


def find_versions() -> dict[str, Any]:
    """Return the versions of cuDNN and of the driver, which may differ between calls."""
    import torch

    if not torch.cuda.is_available():
        return {}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError):
        printed = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
        return {"cudnn": torch.backends.cudnn.version(), "driver": printed[0] if printed else ""}
    return {"cudnn": torch.backends.cudnn.version(), "driver": ""}


def find_machine() -> dict[str, Any]:
    """Return what a result depends on."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "gpus": torch.cuda.device_count() if cuda else 0,
        "capability": list(torch.cuda.get_device_capability()) if cuda else [0, 0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def remaining(
    asked: Iterable[Question | Row], done: dict[str, Any], only: str
) -> list[Question | Row]:
    """Return what is not answered yet, or what is asked for by name."""
    if only:
        return [it for it in asked if re.search(only, name_of(it))]
    return [it for it in asked if name_of(it) not in done]


def ask_all(
    smoke: Smoke, together: Sequence[Question | Row], alone: Sequence[Row], jobs: int
) -> None:
    """Ask several at the same time, those that compile first; then, one after the other, what is measured."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "jsonargparse", "gpu_answer"])
    site = str(smoke.folder / "site")
    sys.path.append(site)
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:1], str(Path(__file__).parent), site])
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(smoke.ask, sorted(together, key=compiles, reverse=True)))
    for row in alone:
        smoke.ask(row)


def main() -> None:
    """Read the options, ask, and print what is left."""
    parser = argparse.ArgumentParser(description="Train each component on a GPU, and measure.")
    parser.add_argument(
        "--prepare", metavar="PYTHON", help="render, and fetch packages for a Python, such as 3.12"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the rendered projects")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=540.0, help="time for everything")
    parser.add_argument("--jobs", type=int, help="questions at the same time")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="ask these, also if they are answered"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, end_all)
    deadline = time.monotonic() + args.seconds
    if args.prepare or not args.folder.exists():
        prepare(args.folder, args.prepare or "")
    if args.prepare:
        return
    smoke = Smoke(
        args.folder.resolve(), args.results, deadline, find_machine(), versions=find_versions()
    )
    smoke.load()
    together = remaining([*COLD, *QUESTIONS], smoke.results, args.only)
    alone = [row for row in remaining(ROWS, smoke.results, args.only) if isinstance(row, Row)]
    ask_all(smoke, together, alone, args.jobs or max(1, (os.cpu_count() or 2) // 2))
    every: list[Question | Row] = [*COLD, *QUESTIONS, *ROWS]
    failed = [name for name, found in smoke.results.items() if found["status"] == "failed"]
    unanswered = len(remaining(every, smoke.results, ""))
    print(
        f"{len(every) - unanswered} of {len(every)} answered, {len(failed)} failed: {', '.join(failed) or 'none'}"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
