"""Requests to stop: every rank ends at the same step, with a checkpoint and status 75.

The rest follows exactly.
"""

import json
import signal
import threading
import time
from itertools import product
from pathlib import Path

import pytest
import torch
from engine import MakePackage, Package, equal, rows, saved, summary
from matrix import EVERY
from program import PROGRAMS
from warm import start_python, start_torchrun

STEPS = ["--train.steps=60", "--train.eval_every=20", "--log.every=5", "--train.batch_size=8"]
ENDLESS = ["--train.steps=1000000", "--train.eval_every=1000000", "--train.batch_size=8"]
ACCURACY = ["--train.monitor=accuracy", "--train.monitor_mode=max"]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]


@pytest.fixture(scope="module")
def whole(tiny: MakePackage, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return uninterrupted runs by the number of ranks."""
    folders = {ranks: tmp_path_factory.mktemp("whole") for ranks in (1, 2)}
    for ranks, folder in folders.items():
        tiny().finish(folder, *STEPS, ranks=ranks)
    return folders


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "number"),
    [*product((1, 2), SIGNALS)] if EVERY else [(1, signal.SIGINT), (2, signal.SIGUSR1)],
)
def test_signal_stops_all_ranks_and_the_rest_follows(
    p: Package, whole: dict[int, Path], tmp_path: Path, ranks: int, number: signal.Signals
) -> None:
    program = [
        str(PROGRAMS / "signal_at_step.py"),
        f"{number}",
        "32",
        p.name,
        *p.arguments(tmp_path, *STEPS),
    ]
    run = start_python(p.root, *program, ranks=ranks)
    done = run.finish()
    assert [process.exitcode for process in run.processes] == [75] * ranks, done.stderr
    assert saved(tmp_path)["step"] == 33
    assert done.stderr == "stopped at step 33: resume with --run.name a\n"
    p.finish(tmp_path, *STEPS, ranks=ranks)
    assert equal(saved(tmp_path), saved(whole[ranks]))
    assert rows(tmp_path, "val") == rows(whole[ranks], "val")
    assert rows(tmp_path, "train")[-1] == rows(whole[ranks], "train")[-1]


def test_signal_that_a_launcher_repeats_is_ignored(p: Package) -> None:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    world = p.distributed.World(0, 1, torch.device("cpu"))
    try:
        with p.signals.stop_requests(world) as requests:
            signal.raise_signal(signal.SIGUSR1)
            assert requests.should_stop()
        assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.raise_signal(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    with p.signals.stop_requests(world):
        pass
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_time_limit_stops_a_run(p: Package, tmp_path: Path) -> None:
    with pytest.raises(p.errors.Stopped, match=r"stopped at step \d+: resume with --run.name a"):
        p.train_here(tmp_path, *ENDLESS, "--run.hours=1e-5")
    assert saved(tmp_path)["step"] > 0


def test_stopped_again_and_again_equals_one_run(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("ema")
    options = ["--ema.enabled=true", "--train.steps=12", "--train.eval_every=5", "--log.every=3"]
    p.train_here(tmp_path / "whole", *options)
    for stop in range(50):
        try:
            p.train_here(tmp_path / "parts", *options, "--run.hours=1e-9")
            break
        except p.errors.Stopped:
            assert summary(tmp_path / "parts")["exit"] == "stopped"
            assert summary(tmp_path / "parts")["steps"] == stop + 1
    assert stop == 11, "once after each step but the last one"
    assert equal(saved(tmp_path / "parts"), saved(tmp_path / "whole"))
    assert rows(tmp_path / "parts", "val") == rows(tmp_path / "whole", "val")
    whole = summary(tmp_path / "whole")
    parts = summary(tmp_path / "parts")
    assert (parts["exit"], parts["steps"]) == ("finished", 12)
    for name in ("best", "last"):
        assert parts[name]["loss"] == whole[name]["loss"]
    validations = rows(tmp_path / "whole", "val")
    assert whole["best"]["loss"] == min(row["loss"] for row in validations)
    assert whole["last"]["step"] == 12
    assert min(whole["seconds"], whole["samples_per_second"], whole["peak_memory_mb"]) > 0


def test_a_stop_after_the_last_step_is_no_stop(p: Package, tmp_path: Path) -> None:
    run = p.train_here(tmp_path, "--train.steps=1", "--run.hours=1e-9")
    assert run["loss"] > 0


@pytest.mark.parametrize("in_thread", [False, True])
def test_training_in_a_notebook_leaves_signal_handlers_and_has_no_lock_afterwards(
    p: Package, tmp_path: Path, in_thread: bool
) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    found = []

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
    p.train_here(tmp_path, "--train.steps=3", "--run.allow_changes=true")


def test_an_error_leaves_signal_handlers(p: Package, tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(p.errors.UserError, match="train.monitor"):
        p.train_here(tmp_path, "--train.steps=2", *ACCURACY)
    assert (summary(tmp_path)["exit"], summary(tmp_path)["best"]) == ("error", None)
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.slow
def test_torchrun_starts_ranks_and_passes_a_signal_on(p: Package, tmp_path: Path) -> None:
    options = [
        "--config=configs/default.yaml",
        "--run.device=cpu",
        "--run.name=a",
        *ENDLESS,
    ]
    run = start_torchrun(
        p.root,
        "-m",
        f"{p.name}.train",
        *options,
        f"--run.dir={tmp_path}",
    )
    log = tmp_path / "a/metrics.jsonl"
    while not (log.exists() and log.stat().st_size):
        assert run.running(), run.finish().stderr
        time.sleep(0.01)
    run.send(signal.SIGTERM)
    done = run.finish()
    assert done.returncode != 0
    assert done.stderr.count(f"stopped at step {saved(tmp_path)['step']:,}") == 1
    assert (
        json.loads((tmp_path / "a/config.json").read_text())["config"]["train"]["steps"] == 1000000
    )
