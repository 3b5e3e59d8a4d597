"""Ask a GPU whether each precision and component trains, and measure: `make gpu-smoke`.

    python benchmarks/gpu_smoke.py                      # all, nine minutes; skips what is answered
    python benchmarks/gpu_smoke.py --only 'fp8|^gpt'    # these again
    python benchmarks/gpu_page.py                       # docs/gpu.md from the results
    python benchmarks/gpu_peers.py                      # some loops only

A machine without a network needs torch, and a copy of this repository with a folder that is
prepared elsewhere, for its version of Python:

    python benchmarks/gpu_smoke.py --prepare 3.12       # writes build/gpu-smoke: copy it as well

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
from typing import Any, TypeVar

from gpu_prepare import prepare
from gpu_questions import COLD, QUESTIONS, ROWS, Question, Row, compiles
from projects import ROOT

sys.path.insert(0, str(Path(__file__).parent / "programs"))
FOLDER = ROOT / "build/gpu-smoke"
RESULTS = Path(__file__).with_name("gpu.json")
PEERS = "peers.json"
"""A file beside the results, of `gpu_peers.py`: its rows are not measured again."""
LIMITS = {Question: 120.0, Row: 100.0}
"""Seconds that one of them may take."""
PATIENCE = 6
"""On a CPU, which measures nothing and may have other work, limits are so many times as long."""
SHORTEST = 10.0
"""Nothing is started when fewer seconds are left."""


Asked = TypeVar("Asked", bound=Question | Row)


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
        self.results = {}
        peers = self.file.with_name(PEERS)
        if peers != self.file and peers.exists():
            others = json.loads(peers.read_text())
            if others["machine"] == self.machine:
                self.results = others["results"]
        if self.file.exists():
            saved = json.loads(self.file.read_text())
            if saved["machine"] != self.machine:
                other = f"{self.file} is of another machine, {saved['machine']}"
                sys.exit(f"error: {other}: use another --results")
            self.results |= saved["results"]

    def with_status(self, status: str) -> list[str]:
        """Return the names of the results that are ok, failed or skipped."""
        return [name for name, result in self.results.items() if result["status"] == status]

    def ask(self, asked: Question | Row) -> None:
        """Answer in a process of its own, within the time that is left, and write the result."""
        left = self.deadline - time.monotonic()
        why = missing(asked, self.machine)
        if not why and left < SHORTEST:
            return
        started = time.monotonic()
        if why:
            result: dict[str, Any] | None = {"status": "skipped", "why": why}
        else:
            result = self._answer(asked, left, self.limit(asked))
        if result is None:
            return
        if isinstance(asked, Row):
            result |= self.versions
        result["seconds"] = round(time.monotonic() - started, 1)
        self.write(name_of(asked), result)

    def write(
        self,
        name: str,
        result: dict[str, Any],
    ) -> None:
        """Add a result to the file."""
        with self.lock:
            self.results[name] = result
            content = {"machine": self.machine, "results": self.results}
            new = self.file.with_suffix(".new")
            new.write_text(json.dumps(content, indent=1) + "\n")
            new.replace(self.file)
            line = f"{result['status']:8}{result['seconds']:6.1f} s  {name}"
            print(f"{line}  {result.get('why', '')}".rstrip(), flush=True)

    def limit(self, asked: Question | Row) -> float:
        """Return the seconds that it may take."""
        return LIMITS[type(asked)] * (1 if self.machine["gpus"] else PATIENCE)

    def _answer(
        self,
        asked: Question | Row,
        left: float,
        limit: float,
    ) -> dict[str, Any] | None:
        """Return the answer of a process, or None if no time is left."""
        context = multiprocessing.get_context("forkserver")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "answer.json")
            project = self.folder / asked.model / "proj"
            process = context.Process(target=_start, args=(asked, project, file))
            process.start()
            process.join(min(left, limit))
            if process.is_alive():
                end(process.pid or 0)
                process.join()
                if left <= limit:
                    return None
                return {"status": "failed", "why": f"took more than {limit:.0f} s"}
            if not file.exists():
                return {"status": "failed", "why": f"the process ended with {process.exitcode}"}
            result: dict[str, Any] = json.loads(file.read_text())
            return result


def _start(
    asked: Question | Row,
    project: Path,
    result: Path,
) -> None:
    from gpu_answer import answer  # imports torch, which the parent needs not

    answer(asked, project, result)


def missing(asked: Question | Row, machine: dict[str, Any]) -> str:
    """Return what this machine lacks for a question."""
    no_gpu = machine["gpus"] < 1
    version = [int(part) for part in machine["torch"].split(".")[:2]]
    lacks = {
        "": False,
        "CUDA": no_gpu,
        "2 GPUs": machine["gpus"] < 2,
        "fp8": machine["capability"] < [8, 9],
        "torch 2.13": no_gpu or version < [2, 13],
    }
    if lacks[asked.needs]:
        return f"needs {asked.needs}"
    packages = [name for name in asked.modules if find_spec(name) is None]
    return f"needs {' and '.join(packages)}" if packages else ""


def end(process: int) -> None:
    """Kill a process and those that it has started, directly or not."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            after_name = file.read_text().rpartition(")")[2]
            parents[int(file.parent.name)] = int(after_name.split()[1])

    family = [process]
    for member in family:  # which grows meanwhile
        family += [child for child, parent in parents.items() if parent == member]
    for member in reversed(family):  # so that this process is the last one
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
    driver = ""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError):
        done = subprocess.run(
            query,
            capture_output=True,
            text=True,
            check=False,
        )
        driver = done.stdout.partition("\n")[0].strip()
    return {"cudnn": torch.backends.cudnn.version(), "driver": driver}


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
    asked: Iterable[Asked],
    done: dict[str, Any],
    only: str,
) -> list[Asked]:
    """Return what is not answered yet, or what is asked for by name."""
    if only:
        return [question for question in asked if re.search(only, name_of(question))]
    return [question for question in asked if name_of(question) not in done]


def ask_all(
    smoke: Smoke,
    together: Sequence[Question | Row],
    alone: Sequence[Row],
    jobs: int,
) -> None:
    """Ask several at the same time, those that compile first; then measure the others alone."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "jsonargparse", "gpu_answer"])
    programs = sys.path[0]
    site = str(smoke.folder / "site")
    sys.path.append(site)
    folders = [programs, str(Path(__file__).parent), site]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
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
        args.folder.resolve(),
        args.results,
        deadline,
        find_machine(),
        versions=find_versions(),
    )
    smoke.load()
    at_once: list[Question | Row] = [*COLD, *QUESTIONS]
    together = remaining(at_once, smoke.results, args.only)
    alone = remaining(ROWS, smoke.results, args.only)
    cores = os.cpu_count() or 2
    ask_all(smoke, together, alone, jobs=args.jobs or max(1, cores // 2))

    every = [*at_once, *ROWS]
    answered = len(every) - len(remaining(every, smoke.results, only=""))
    failed = smoke.with_status("failed")
    names = ", ".join(failed) or "none"
    print(f"{answered} of {len(every)} answered, {len(failed)} failed: {names}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
