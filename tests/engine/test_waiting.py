"""Nothing waits for ever: slow loaders, dead workers, full shared memory, ranks that fail."""

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine import Package, equal, saved
from matrix import tiers
from program import PROGRAMS, finish, is_running, started
from warm import Started, start_python, start_torchrun

MINUTE = 60.0
BATCH = 53
"""Of all samples."""
LONG = ["--train.steps=1000000", "--train.eval_every=1000000", f"--train.batch_size={BATCH}"]
SHORT = ["--train.steps=6", "--train.eval_every=2", f"--train.batch_size={BATCH}"]


def wait_for(file: Path, run: Started) -> None:
    """Wait until a file exists."""
    deadline = time.monotonic() + 2 * MINUTE
    while not file.exists():
        assert run.running(), run.finish().stderr
        assert time.monotonic() < deadline, f"there is no {file}"
        time.sleep(0.02)


def stalled(
    p: Any,
    folder: Path,
    *options: str,
    workers: int = 0,
    ranks: int = 1,
    after: int = 0,
    rank: int = 0,
) -> Started:
    """Start a training that waits for a sample after so many samples, and wait until it does."""
    program = [
        str(PROGRAMS / "stall_after.py"),
        str(after),
        str(folder),
        p.name,
    ]
    arguments = p.arguments(folder, "--data.kind=samples", f"--loader.num_workers={workers}")
    run = start_python(
        p.root, *program, *arguments, *options, ranks=ranks, RANK_THAT_STALLS=f"{rank}"
    )
    wait_for(folder / "stalled", run)
    return run


def send_until_end(run: Started, number: int, rank: int = 0) -> int:
    """Send a signal again and again, as someone would press Ctrl-C.

    Return the status of that rank.
    """
    process = run.processes[rank]
    deadline = time.monotonic() + MINUTE
    while process.is_alive() and time.monotonic() < deadline:
        run.send(number, rank)
        process.join(0.5)
    assert process.exitcode is not None
    return int(process.exitcode)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_ends_a_run_at_once_with_its_workers(
    p: Package, tmp_path: Path, workers: int, number: int
) -> None:
    run = stalled(p, tmp_path, *LONG, workers=workers)
    begin = time.monotonic()
    assert send_until_end(run, number) == 128 + number, run.finish().stderr
    assert time.monotonic() - begin >= 2, "two signals within 2 seconds are one"
    worker = int((tmp_path / "stalled").read_text())
    deadline = time.monotonic() + MINUTE
    while is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(worker)
    assert run.finish().stderr == ""


@pytest.mark.slow
def test_second_signal_ends_a_rank_that_waits_for_another_one(p: Package, tmp_path: Path) -> None:
    """Its main thread waits in a collective, which no signal interrupts."""
    batch = f"--train.batch_size={BATCH // 2}"
    run = stalled(
        p,
        tmp_path,
        *LONG,
        batch,
        ranks=2,
        rank=1,
    )
    time.sleep(1)  # rank 0 arrives at the collective
    assert send_until_end(run, signal.SIGINT) == 130
    assert send_until_end(run, signal.SIGINT, rank=1) == 130
    assert "Traceback" not in run.finish().stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "line"),
    [(0, "no batch was loaded within 2 seconds"), (2, "DataLoader timed out after 2.0 seconds")],
)
def test_batch_that_does_not_come_ends_the_run_with_one_line(
    p: Package, tmp_path: Path, workers: int, line: str
) -> None:
    p.finish(tmp_path / "whole", *SHORT, "--data.kind=samples")
    run = stalled(p, tmp_path, *SHORT, "--loader.timeout=2", workers=workers)
    done = run.finish(MINUTE)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {line}: look for a file or a mount")
    assert len(done.stderr.splitlines()) == 1
    p.finish(tmp_path, *SHORT, "--data.kind=samples")
    assert equal(saved(tmp_path), saved(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS])
def test_worker_that_dies_ends_the_run_with_one_line(
    p: Package, tmp_path: Path, number: int
) -> None:
    run = stalled(p, tmp_path, *LONG, workers=2)
    os.kill(int((tmp_path / "stalled").read_text()), number)
    done = run.finish(MINUTE)
    assert done.returncode == 1
    printed = done.stderr.replace("\0", "").splitlines()
    lines = [line for line in printed if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "DataLoader worker (pid" in lines[0]
    assert "--shm-size=8g or --ipc=host, or use num_workers 0" in lines[0]
    others = [line for line in printed if line not in lines]
    assert all("bus error" in line for line in others if line), "torch's own line"


MOUNTS = (
    shutil.which("unshare") is not None
    and subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"],  # noqa: S108
        capture_output=True,
        check=False,
    ).returncode
    == 0
)


@pytest.mark.slow
@pytest.mark.skipif(not MOUNTS, reason="needs root, and a machine that allows mounts")
@pytest.mark.parametrize("size", ["80k", "160k"])
def test_shared_memory_that_is_too_small_is_one_line(p: Package, tmp_path: Path, size: str) -> None:
    options = ["--train.batch_size=1000", "--data.samples=20000", "--loader.num_workers=2"]
    options += ["--loader.prefetch_factor=8", "--train.epochs=1"]
    train = f"mount -t tmpfs -o size={size} tmpfs /dev/shm && exec"
    command = [sys.executable, "-m", f"{p.name}.train", *p.arguments(tmp_path, *options)]
    words = ["unshare", "--mount", "bash", "-c", f'{train} "$@"', "bash", *command]
    with started(p.root, *words) as run:
        _, stderr = finish(run, 2 * MINUTE)
    assert run.returncode == 1, stderr
    found = [text for text in stderr.splitlines() if text.startswith("error: ")]
    assert len(found) == 1, stderr
    assert "--shm-size=8g or --ipc=host, or use num_workers 0" in found[0]
    assert "Traceback" not in stderr


@pytest.mark.parametrize(("blocks", "fits"), [(96, True), (95, False)])
def test_shared_memory_must_hold_the_prefetched_batches(
    p: Package, monkeypatch: pytest.MonkeyPatch, blocks: int, fits: bool
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=blocks, f_frsize=4))
    batch = {"a": (torch.zeros(8, 2),), "b": [torch.zeros(0)]}
    if fits:
        p.workers.check_shared_memory(batch, 6)
    else:
        with pytest.raises(p.errors.UserError, match="the 6 batches of all workers need"):
            p.workers.check_shared_memory(batch, 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "rank", "step"),
    tiers(
        [("step", 0, 7)],
        [
            ("config", 1, 0),
            ("data", 0, 0),
            ("step", 1, 0),
            ("validation", 1, 0),
            ("crash", 0, 0),
        ],
    ),
)
def test_error_of_one_rank_is_one_line_and_ends_the_others(
    p: Package, tmp_path: Path, place: str, rank: int, step: int
) -> None:
    program = [
        str(PROGRAMS / "fail_on_rank.py"),
        place,
        f"{rank}",
        p.name,
    ]
    options = p.arguments(tmp_path, *LONG, "--train.eval_every=50", "--train.batch_size=8")
    run = start_torchrun(
        p.root,
        *program,
        *options,
        FAIL_AT_STEP=f"{step}",
    )
    done = run.finish(2 * MINUTE)
    assert done.returncode == 1
    stderr = done.stderr
    own, _, summary = stderr.partition("torch/distributed/elastic")
    errors = [line for line in own.splitlines() if "error: " in line or "Traceback" in line]
    assert errors == ([] if place == "crash" else ["error: this is wrong: correct it"]), own
    assert "[rank" not in stderr, "a traceback of another rank"
    assert f"rank      : {rank} (local_rank: {rank})" in summary.partition("Root Cause")[2]


def test_full_shared_memory_is_named_where_no_loader_can_be_built(
    p: Package, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues of workers need it; the error of a file has its name, and needs no such hint."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    for names in ((), ("file",)):
        with pytest.raises(SystemExit), p.errors.one_line():
            raise OSError(errno.ENOSPC, "No space left on device", *names)
    plain, named = capsys.readouterr().err.splitlines()
    assert plain == (
        "error: [Errno 28] No space left on device: the disk is full, or /dev/shm: "
        "start a container with --shm-size=8g or --ipc=host, or use num_workers 0"
    )
    assert named == "error: [Errno 28] No space left on device: 'file'"


@pytest.mark.parametrize(
    "kind", [RuntimeError, torch.distributed.DistBackendError, torch.distributed.DistNetworkError]
)
def test_end_of_another_rank_is_one_line(
    p: Package,
    kind: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In each framework, as `one_line` is common to them."""
    waited: list[float] = []
    monkeypatch.setattr(p.errors.time, "sleep", waited.append)
    is_gloo = kind is RuntimeError
    where = "[gloo/transport/tcp/pair.cc:553] " if is_gloo else ""
    with pytest.raises(SystemExit) as ended, p.errors.one_line():
        raise kind(f"{where}Connection closed by peer\nException raised from")
    assert ended.value.code == 1
    lines = capsys.readouterr().err.splitlines()
    told = (
        "another rank is gone: look for its error"
        if is_gloo
        else "this rank or another one has failed"
    )
    assert lines == [f"{told} ({where}Connection closed by peer)"]
    assert waited == [5], "a launcher names the first rank that ends"
    for own in (
        "of its own",
        "[gloo/transport/tcp/device.cc:9] of its own",
        "igloo/a.cpp of its own",
    ):
        with pytest.raises(RuntimeError, match="of its own"), p.errors.one_line():
            raise RuntimeError(own)


def test_worker_outlives_signals(p: Package) -> None:
    """However long the main process needs to save."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def work() -> None:
        p.workers.init_worker(0)
        there.send("ready")
        there.send(there.recv())

    worker = context.Process(target=work)
    worker.start()
    assert here.recv() == "ready"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) * 2:
        os.kill(worker.pid or 0, number)
    here.send("alive")
    assert here.recv() == "alive"
    worker.join()


class Unpassable:
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("this cannot be pickled")


@pytest.mark.parametrize("kind", ["no memory", "no pickle"])
def test_batch_that_a_worker_cannot_pass_on_is_one_line(
    p: Package, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    batch: Any = {"a": (torch.zeros(2), "text", 1)}
    if kind == "no pickle":
        batch = [batch, Unpassable()]
    else:

        def full(_: Any) -> Any:
            raise RuntimeError("unable to write to file </torch_1>: No space left\non device (28)")

        monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    reason = {"no memory": "No space left on device", "no pickle": "this cannot be pickled"}[kind]
    world = p.distributed.World(0, 1, torch.device("cpu"))
    cfg = p.config.LoaderConfig(num_workers=1)
    dataset = Made(batch)
    with closing(
        p.loader.Loader(
            dataset,
            [[0], [1]],
            cfg,
            world,
        )
    ) as loader:
        with pytest.raises(p.errors.UserError) as raised:
            next(iter(loader))
        assert "a loader worker cannot pass its batch on (" in str(raised.value)
        assert reason in str(raised.value)
        assert str(raised.value).strip().endswith("or use num_workers 0")


class Made:
    """A dataset that returns one batch again and again."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return 2

    def __getitems__(self, _: list[int]) -> Any:
        return self.batch

    def collate_fn(self, batch: Any) -> Any:
        """Return the batch."""
        return batch


@pytest.mark.slow
@pytest.mark.parametrize("has_store", [False, True])
def test_rank_that_never_joins_is_missed(p: Package, tmp_path: Path, has_store: bool) -> None:
    """With the store of rank 0, and with one of the launcher, as torchrun has it."""
    distributed: Any = torch.distributed
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launcher: dict[str, Any] = {
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    change = "import runpy, sys; from datetime import timedelta; sys.argv = sys.argv[1:]; "
    change += f"from {p.name} import errors; errors.JOIN = timedelta(seconds=4); "
    file = tmp_path / "soon.py"
    file.write_text(f"{change}runpy.run_path(sys.argv[0], run_name='__main__')")
    program = [str(PROGRAMS / "fail_on_rank.py"), "start", "1", p.name]
    run = start_python(
        p.root,
        str(file),
        *program,
        *p.arguments(tmp_path),
        ranks=2,
        **(launcher if has_store else {}),
    )
    done = run.finish(MINUTE)
    assert [process.exitcode for process in run.processes] == [1, 0]
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: not all of 2 ranks have joined (")
    assert last.endswith("): look for an error of another rank")
