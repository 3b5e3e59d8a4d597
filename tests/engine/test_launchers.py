"""No process outlives what started it: a launcher that was killed, or a test that hangs."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from engine import FIXED, Package, saved
from lightning_runs import LightningProject
from matrix import ENGINE_MODEL
from program import PROGRAMS, Project, finish, is_running, started
from warm import start_python, start_torchrun

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"]
ACCELERATE += ["--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]
LIGHTNING = ["--trainer.devices=2", "--trainer.strategy=ddp"]
MINUTE = 60.0


def wait_for_end(ids: list[Path]) -> None:
    """Wait until the processes whose IDs are in files have ended."""
    for file in ids:
        for word in file.read_text().split():
            while is_running(int(word)):
                time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.test_all
@pytest.mark.parametrize(
    ("framework", "launcher"),
    [
        ("pytorch", ["-m", *TORCHRUN]),
        ("accelerate", ["-m", *ACCELERATE]),
        ("lightning", ["-m", *TORCHRUN]),
        # the first process starts the second one
        ("lightning", []),
    ],
    ids=["torchrun", "accelerate-launch", "lightning-torchrun", "lightning"],
)
def test_ranks_that_wait_for_each_other_end_after_their_launcher(
    project: Project,
    lightning: LightningProject,
    tmp_path: Path,
    framework: str,
    launcher: list[str],
) -> None:
    if framework == "lightning":
        p = lightning(ENGINE_MODEL)
        root = p.root
        package = p.name
        options = p.arguments(tmp_path, *LIGHTNING)
    else:
        root = project(framework, ENGINE_MODEL)
        package = "proj"
        options = [*FIXED, f"--run.dir={tmp_path}"]
    place = {"FOLDER": str(tmp_path), "PACKAGE": package}
    command = [sys.executable, *launcher, str(PROGRAMS / "join_without_launcher.py"), *options]
    ids = [tmp_path / f"rank-{rank}" for rank in (0, 1)]
    with started(root, *command, **place) as run:
        try:
            while not all(file.exists() and file.read_text() for file in ids):
                assert run.poll() is None, run.communicate()
                time.sleep(0.05)
            run.kill()
            (tmp_path / "gone").touch()
            finish(run, MINUTE)  # stderr ends with the last process that has it
            wait_for_end(ids)
        finally:
            for file in ids:
                with suppress(ProcessLookupError, FileNotFoundError):
                    os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_ranks_save_a_checkpoint_when_their_launcher_is_gone(p: Package, tmp_path: Path) -> None:
    options = p.arguments(
        tmp_path, "--train.steps=1000000", "--train.eval_every=1000000", "--train.batch_size=8"
    )
    run = start_torchrun(
        p.root,
        "-m",
        f"{p.name}.train",
        *options,
    )
    log = tmp_path / "a/metrics.jsonl"
    while not (log.exists() and log.stat().st_size):
        assert run.running(), run.finish().stderr
        time.sleep(0.05)
    run.send(signal.SIGKILL)
    deadline = time.monotonic() + MINUTE
    while "resume with" not in (stderr := run.finish().stderr):
        assert time.monotonic() < deadline, stderr
        time.sleep(0.05)
    assert f"stopped at step {saved(tmp_path)['step']:,}: resume with --run.name a\n" in stderr


TWO = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TWO |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
"""Variables that torchrun sets."""
ONE = {"RANK": "0", "WORLD_SIZE": "1"}
GOOD: list[tuple[dict[str, str], tuple[int, int, int]]] = [
    ({}, (0, 1, 0)),
    (TWO, (1, 2, 1)),
    (TWO | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, (1, 2, 0)),
    (ONE, (0, 1, 0)),
    (ONE | {"LOCAL_RANK": "0", "MASTER_ADDR": "elsewhere"}, (0, 1, 0)),
    ({"MASTER_ADDR": "elsewhere"}, (0, 1, 0)),
]
NEEDED = [name for name in TWO if name != "LOCAL_WORLD_SIZE"]


def without(name: str) -> dict[str, str]:
    return {key: text for key, text in TWO.items() if key != name}


WRONG: list[dict[str, str]] = [
    *map(without, NEEDED),
    {"RANK": "1"},
    {"WORLD_SIZE": "2"},
    *(TWO | {name: text} for name, text in product(NEEDED[:2], ("", "abc", "-1", "1.5"))),
    *(TWO | {name: text} for name, text in product(("LOCAL_RANK", "MASTER_PORT"), ("", "abc"))),
    TWO | {"MASTER_ADDR": ""},
    ONE | {"RANK": "1"},
    TWO | {"WORLD_SIZE": "0"},
    TWO | {"RANK": "2"},
]


def test_variables_of_a_launcher_are_complete_or_one_line(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variables, ranks in GOOD:
        with monkeypatch.context() as patch:
            set_only(patch, variables)
            assert p.errors.launched_rank() == ranks, variables
    for variables in WRONG:
        with monkeypatch.context() as patch:
            set_only(patch, variables)
            with pytest.raises(p.errors.UserError) as raised:
                p.errors.launched_rank()
            assert str(raised.value).endswith("): start with torchrun, or unset them"), variables
    with monkeypatch.context() as patch:
        set_only(patch, {"RANK": "1"})
        with pytest.raises(p.errors.UserError, match=r"\(RANK=1\)"), p.distributed.init("cpu"):
            pass


def set_only(patch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Set these variables of a launcher, and no others."""
    for name in TWO:
        patch.delenv(name, raising=False)
    for name, text in variables.items():
        patch.setenv(name, text)


CHILD = """
import os, subprocess, sys, time
from pathlib import Path
if sys.argv[1:]:
    Path("ids").write_text(f"{os.getpid()} {os.getppid()}")
else:
    subprocess.Popen([sys.executable, __file__, "child"])
time.sleep(1000)
"""


@pytest.mark.parametrize("forks", [False, True])
def test_program_of_a_test_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, forks: bool
) -> None:
    (tmp_path / "program.py").write_text(CHILD)
    ids = tmp_path / "ids"

    def wait_for_ids() -> None:
        while not (ids.exists() and ids.read_text()):
            time.sleep(0.01)

    if forks:
        run = start_python(tmp_path, str(tmp_path / "program.py"))
        wait_for_ids()
        assert run.finish(0).returncode == -signal.SIGKILL
    else:
        with started(tmp_path, sys.executable, str(tmp_path / "program.py")) as process:
            wait_for_ids()
            with pytest.raises(subprocess.TimeoutExpired):
                finish(process, 0)
    wait_for_end([ids])
