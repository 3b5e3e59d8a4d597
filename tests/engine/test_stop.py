"""Requests to stop: every rank ends at the same step, with a checkpoint and status 75; the rest follows exactly."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from engine import MakePackage, equal, rows, saved
from matrix import EVERY

LONG = ["--train.steps=1500", "--train.eval_every=500", "--log.every=50", "--train.micro_batch=8"]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]


def wait_for_rows(folder: Path, count: int, run: Any) -> None:
    """Wait until a run has logged some rows."""
    log = folder / "a/metrics.jsonl"
    while run.running() and (not log.exists() or len(log.read_text().splitlines()) < count):
        time.sleep(0.002)


@pytest.fixture(scope="module")
def whole(tiny: MakePackage, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return uninterrupted runs by the number of ranks."""
    folders = {ranks: tmp_path_factory.mktemp("whole") for ranks in (1, 2)}
    for ranks, folder in folders.items():
        tiny().finish(folder, *LONG, ranks=ranks)
    return folders


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "number"),
    [(ranks, it) for ranks in (1, 2) for it in SIGNALS] if EVERY else [(1, signal.SIGINT), (2, signal.SIGUSR1)],
)
def test_signal_stops_all_ranks_and_the_rest_follows(
    tiny: MakePackage, whole: dict[int, Path], tmp_path: Path, ranks: int, number: signal.Signals
) -> None:
    p = tiny()
    run = p.start(tmp_path, *LONG, ranks=ranks)
    wait_for_rows(tmp_path, 3, run)
    run.send(number, rank=ranks - 1)
    done = run.finish(60)
    assert [process.exitcode for process in run.processes] == [75] * ranks, done.stderr
    stopped = saved(tmp_path)["step"]
    assert 150 <= stopped < 1500
    assert done.stderr == f"stopped at step {stopped:,}: resume with --run.name a\n"
    p.finish(tmp_path, *LONG, ranks=ranks)
    assert equal(saved(tmp_path), saved(whole[ranks]))
    assert rows(tmp_path, "val") == rows(whole[ranks], "val")
    assert rows(tmp_path, "train")[-1] == rows(whole[ranks], "train")[-1]


def test_time_limit_stops_a_run(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny()
    with pytest.raises(p.errors.Stopped, match=r"stopped at step \d+: resume with --run.name a"):
        p.train_here(tmp_path, *LONG, "--run.hours=1e-5")
    assert 0 < saved(tmp_path)["step"] < 1500


def test_stopped_again_and_again_equals_one_run(tiny: MakePackage, tmp_path: Path) -> None:
    p, options = tiny("ema"), ["--ema.enabled=true", "--train.steps=12", "--train.eval_every=5", "--log.every=3"]
    p.train_here(tmp_path / "whole", *options)
    for stop in range(50):  # noqa: B007
        try:
            p.train_here(tmp_path / "parts", *options, "--run.hours=1e-6")
            break
        except p.errors.Stopped:
            pass
    assert stop > 3
    assert equal(saved(tmp_path / "parts"), saved(tmp_path / "whole"))
    assert rows(tmp_path / "parts", "val") == rows(tmp_path / "whole", "val")


def test_a_stop_after_the_last_step_is_no_stop(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny()
    run = p.train_here(tmp_path, "--train.steps=1", "--run.hours=1e-9")
    assert run["loss"] > 0


@pytest.mark.parametrize("in_thread", [False, True])
def test_training_in_a_notebook_leaves_signal_handlers_and_has_no_lock_afterwards(
    tiny: MakePackage, tmp_path: Path, in_thread: bool
) -> None:
    p, before, found = tiny(), [signal.getsignal(number) for number in SIGNALS], []

    def train() -> None:
        found.append(p.train_here(tmp_path, "--train.steps=2"))

    if in_thread:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    else:
        train()
    assert len(found) == 1
    assert [signal.getsignal(number) for number in SIGNALS] == before
    p.train_here(tmp_path, "--train.steps=3")


def test_an_error_leaves_signal_handlers(tiny: MakePackage, tmp_path: Path) -> None:
    p, before = tiny(), [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(p.errors.UserError, match="train.monitor"):
        p.train_here(tmp_path, "--train.steps=2", "--train.monitor=accuracy")
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.slow
def test_torchrun_starts_ranks_passes_a_signal_on_and_says_once_what_is_wrong(
    tiny: MakePackage, tmp_path: Path
) -> None:
    p = tiny()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    arguments = [f"{p.name}.train", "--config=configs/default.yaml", "--run.device=cpu", "--run.name=a", *LONG]
    environment = os.environ | {"PYTHONPATH": str(p.root / "src"), "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        [*launch, *arguments, f"--run.dir={tmp_path}"],
        cwd=p.root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / "a/metrics.jsonl"
    while run.poll() is None and (not log.exists() or len(log.read_text().splitlines()) < 3):
        time.sleep(0.01)
    run.send_signal(signal.SIGTERM)
    _, stderr = run.communicate(timeout=60)
    assert stderr.count("stopped at step") == 1
    assert run.returncode != 0
    assert 100 <= saved(tmp_path)["step"] < 1500
    wrong = subprocess.run(
        [*launch, *arguments, "--train.micro_batch=1000", f"--run.dir={tmp_path}/b"],
        cwd=p.root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.stderr.count("is larger than the training set of 53: lower train.micro_batch") == 1
    assert json.loads((tmp_path / "a/config.json").read_text())["config"]["train"]["steps"] == 1500
