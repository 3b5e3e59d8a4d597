"""Short runs with one fault each, and their comparison with a run that nothing interrupted."""

import json
import math
import multiprocessing
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from .. import checkpoint
from ..phase_times import MEASURED

ROOT = __package__.rpartition(".")[0]
EVERY = 3
"""Optimizer steps between checkpoints; twice as many between validations, and four times in a run."""
OPTIONS = ["--config=configs/default.yaml", "--config=configs/smoke.yaml", "--run.device=cpu", "--run.resume=auto"]
OPTIONS += [f"--train.steps={4 * EVERY}", f"--train.eval_every={2 * EVERY}", f"--checkpoint.every={EVERY}"]
OPTIONS += ["--train.global_batch=16", "--train.micro_batch=8", "--log.every=1"]
LIMIT = 120.0
"""Seconds after which a run hangs."""
GRACE = 20.0
"""Seconds in which the other ranks end when one has failed; after them a launcher would kill these."""
STOPPED_FOR = 0.5
"""Seconds after which a process that was stopped continues."""
TOLERANCE = 1e-4
"""Largest relative difference of a loss after a restart with another number of ranks, which sum in another order."""
"""Values in a row of metrics that differ each time."""

_starting = Lock()


def preload() -> None:
    """Import torch and what the framework needs once, in the process of which all others are forks."""
    modules = [f"{ROOT}.run", f"{ROOT}.module", f"{ROOT}.accelerator"]  # the last two are of a framework
    modules += ["torch._dynamo", "sklearn.datasets", "jsonargparse"]  # what a run imports later, if it is there
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)


def _enter(module: str, argv: list[str], environment: dict[str, str], output: Path) -> None:
    """Run a module in this new process, as a launcher would start it."""
    os.setpgid(0, 0)
    multiprocessing.set_start_method(None, force=True)  # loader workers start as they do in any run
    os.environ |= environment
    descriptor = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    sys.argv = [module, *argv]
    runpy.run_module(f"{ROOT}.{module}", run_name="__main__", alter_sys=True)


@contextmanager
def started(module: str, argv: list[str], ranks: int, output: Path) -> Iterator[list[Any]]:
    """Start a module in a process per rank; in the end none of them, and of those that they started, remains."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    shared |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=_enter, args=(module, argv, shared | place, output)) for place in places]
    try:
        with _starting:
            for process in processes:
                process.start()
        yield processes
    finally:
        for process in processes:
            if process.pid is None:  # an earlier one could not be started
                continue
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()


def launch(argv: list[str], ranks: int, output: Path, name: str) -> tuple[int | None, list[int]]:
    """Start `tools.inject` with the project's launcher; return its status, and the processes that it left."""
    command = [sys.executable, "-m", f"{ROOT}.tools.launch", "--restarts=2", f"--nproc-per-node={ranks}"]
    mark = {"FAULT_RUN": name, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with output.open("ab") as stream:
        command += ["-m", f"{ROOT}.tools.inject", *argv]
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=os.environ | mark)
    try:
        process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
    left = _marked(f"FAULT_RUN={name}")
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return process.returncode, left


def _marked(mark: str) -> list[int]:
    """Return the processes with an entry in their environment, after a moment in which they may end; on Linux."""
    found: list[int] = []
    for _ in range(30):
        found = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                found += [int(file.parent.name)] * (mark.encode() in file.read_bytes().split(b"\0"))
        if not found:
            break
        time.sleep(0.1)
    return found


def wait(processes: list[Any], grace: float = GRACE) -> list[int | None]:
    """Return the statuses; None for a process that hangs, or that goes on `grace` seconds after another has failed."""
    end = time.monotonic() + LIMIT
    while any(process.exitcode is None for process in processes) and time.monotonic() < end:
        if any(process.exitcode for process in processes):
            end = min(end, time.monotonic() + grace)
        connection.wait([process.sentinel for process in processes if process.exitcode is None], 1)
    return [process.exitcode for process in processes]


def resume_stopped(record: Path, processes: list[Any]) -> None:
    """Let the processes continue that were stopped, some time after they were."""
    while not record.exists() and any(process.exitcode is None for process in processes):
        time.sleep(0.1)
    time.sleep(STOPPED_FOR)
    for line in record.read_text(encoding="utf-8").splitlines() if record.exists() else ():
        with suppress(ProcessLookupError):
            os.kill(json.loads(line)["pid"], signal.SIGCONT)


def orphans(processes: list[Any]) -> list[int]:
    """Return the processes that left others behind, after the time in which loader workers notice it."""
    left = [process.pid for process in processes if process.exitcode is not None]
    for _ in range(100):
        for pid in left.copy():
            try:
                os.killpg(pid, 0)
            except ProcessLookupError:
                left.remove(pid)
        if not left:
            break
        time.sleep(0.1)
    return left


def rows(run: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics, without values that depend on time."""
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: row[key] for key in row if key not in MEASURED} for row in logged]


def differences(run: Path, whole: Path, tolerance: float = 0.0) -> list[str]:
    """Return in what a run differs from the uninterrupted one: rows, weights, optimizer, files.

    With an infinite tolerance, which is for a lack of memory, only rows and files are compared.
    """
    found = []
    ours, theirs = rows(run), rows(whole)
    places = [[(row["split"], row["step"]) for row in logged] for logged in (ours, theirs)]
    if places[0] != places[1]:
        found.append(f"metrics.jsonl has rows {places[0]}, not {places[1]}")
    elif not all(_close(mine, other, tolerance) for mine, other in zip(ours, theirs, strict=True)):
        found.append("the values in metrics.jsonl differ")
    last = [path for folder in (run, whole) for path in checkpoint.all_checkpoints(folder / "checkpoints")[-1:]]
    if len(last) < 2:
        return [*found, "it has no checkpoint"]
    (mine, names), (others, expected) = (tree_flatten(_state(path, tolerance)) for path in last)
    if last[0].name != last[1].name or names != expected:
        found.append(f"the last checkpoint is {last[0].name} with other contents than {last[1].name}")
    elif not all(_close(value, other, tolerance) for value, other in zip(mine, others, strict=True)):
        found.append("the weights or the optimizer differ")
    extra = {_kind(file, run) for file in run.rglob("*")} - {_kind(file, whole) for file in whole.rglob("*")}
    kept = r"resumes\.json|ranks(/stacks-.*)?|uncommitted-.*"  # also what a hang shows, and edits meanwhile
    kept += r"|out_of_memory\.json" if math.isinf(tolerance) else ""
    return found + [f"{name} is left" for name in sorted(extra) if not re.fullmatch(kept, name)]


def _state(path: Path, tolerance: float) -> dict[str, Any]:
    """Load a checkpoint; of one on another number of ranks, what does not depend on BatchNorm's running statistics."""
    state = checkpoint.read_state(path)
    if not tolerance:
        return state
    return {key: state[key] for key in ("optimizer", "step")} | {
        name: value for name, value in state["model"].items() if "running_" not in name and "num_batches" not in name
    }


def _close(value: Any, other: Any, tolerance: float) -> bool:
    if isinstance(value, dict):
        compared = [] if tolerance and value["split"] == "val" else [*value.keys() | other.keys()]
        return all(_close(value.get(key), other.get(key), tolerance) for key in compared)
    if math.isinf(tolerance):
        return True
    if isinstance(value, torch.Tensor):
        return torch.allclose(value, other, rtol=tolerance, atol=tolerance) if tolerance else torch.equal(value, other)
    if isinstance(value, float) and tolerance:
        return bool(abs(value - other) <= tolerance * max(abs(other), 1.0))
    return bool(value == other)


def _kind(file: Path, run: Path) -> str:
    """Return a file's place in the run's folder; what the run sets aside or names by step is of one kind."""
    return re.sub(r"(damaged-|abandoned-)?step-\d+(\.\d+)?", "step", str(file.relative_to(run)))
