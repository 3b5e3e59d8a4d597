"""The launcher: what it restarts and what not, and what its ranks are told. Its programs here import nothing heavy."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..faults import guard
from ..tools import launch, ranks, restart
from ..tools.ranks import Place
from .conftest import PACKAGE

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
folder = Path(sys.argv[1])
with (folder / "starts").open("a") as stream:
    stream.write(json.dumps(sys.argv[3:]) + "\\n")
number = len((folder / "starts").read_text().splitlines())
(Path(os.environ["LAUNCH_DIR"]) / "run").write_text(str(folder))
status, step = json.loads(sys.argv[2])[number - 1]
if step:
    (folder / f"checkpoints/step-{step:08d}").mkdir(parents=True, exist_ok=True)
    (folder / f"checkpoints/step-{step:08d}/manifest.json").touch()
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
"""Ends with the status that its second argument has for this start, after a checkpoint of the step there."""

Launched = Callable[..., tuple[int, list[list[str]]]]


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launched]:
    """Run a program that ends with a status and after a step, for each start; return the last status, and options."""
    handlers = {number: signal.getsignal(number) for number in ranks.SIGNALS}
    monkeypatch.setattr(restart, "PAUSE", 0.01)
    monkeypatch.chdir(tmp_path)
    Path("run/checkpoints/step-00000009.copy").mkdir(parents=True)
    Path("run/checkpoints/step-00000009.copy/manifest.json").touch()

    def run(*plan: tuple[int, int], restarts: int = 3) -> tuple[int, list[list[str]]]:
        command = [sys.executable, "-S", "-c", PROGRAM, "run", json.dumps(plan)]
        status = restart.run(command, lambda _: Place(), restarts)
        return status, [json.loads(line) for line in Path("run/starts").read_text().splitlines()]

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_run_is_restarted_from_its_newest_checkpoint(launched: Launched, capfd: pytest.CaptureFixture[str]) -> None:
    status, options = launched((70, 0), (-signal.SIGKILL, 20), (76, 40), (0, 0))
    assert status == 0
    assert options == [[], *[["--run.resume=auto", "--run.dir=.", "--run.name=run"]] * 3]
    assert capfd.readouterr().err.splitlines() == [
        "restart 1 of 3: run continues from the beginning, as it has no checkpoint, in 0.01 s",
        "error: the run ended by SIGKILL, as happens when the machine is out of memory",
        "restart 2 of 3: run continues from step 20, in 0.02 s",
        "restart 3 of 3: run continues from step 40, in 0.04 s",
    ]


@pytest.mark.parametrize(
    ("plan", "restarts", "ended", "why"),
    [
        ([(76, 20), (76, 20)], 3, (76, 2), "as there is no newer checkpoint than at the last start"),
        ([(76, 20), (76, 40), (-signal.SIGSEGV, 60)], 2, (139, 3), "after 2 restarts"),
        ([(76, 20)], 0, (76, 1), ""),
        *(([(status, 20)], 3, (status, 1), "") for status in (0, 1, 2, 3, 75)),
        ([(-signal.SIGTERM, 20)], 3, (143, 1), ""),
    ],
)
def test_restarts_end(
    launched: Launched,
    capfd: pytest.CaptureFixture[str],
    plan: list[tuple[int, int]],
    restarts: int,
    ended: tuple[int, int],
    why: str,
) -> None:
    status, options = launched(*plan, restarts=restarts)
    assert (status, len(options)) == ended
    printed = capfd.readouterr().err
    assert printed.endswith(f"error: not restarted again, {why}\n") if why else "restart" not in printed


SIGNALLED = """
import os, signal, sys, time
from pathlib import Path
folder, stubborn = Path(sys.argv[1]), "stubborn" in sys.argv
def note(number, frame):
    with (folder / "signals").open("a") as stream:
        stream.write(f"{os.environ['RANK']} {signal.Signals(number).name}\\n")
    if not stubborn:
        sys.exit(75)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, note)
(folder / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
while True:
    time.sleep(1)
"""
"""Notes the signals that it gets, and ends with status 75 unless it is stubborn."""


def start_two(folder: Path, *options: str) -> tuple["subprocess.Popen[str]", list[int]]:
    """Start the program in two ranks; return the launcher, and the ranks' processes when they are ready."""
    program = folder / "program.py"
    program.write_text(SIGNALLED)
    short = f"from {PACKAGE}.tools import ranks; ranks.GRACE, ranks.ONE_SIGNAL_SECONDS = 0.1, 0.1"
    main = f"{short}; from {PACKAGE}.tools import launch; launch.main()"
    command = [sys.executable, "-c", main, "--nproc-per-node=2", str(program), str(folder), *options]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    files = [folder / f"pid-{rank}" for rank in (0, 1)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    return started, [int(file.read_text()) for file in files]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    return guard.status_of(pid) in ("", "Z", "X")


linux = pytest.mark.skipif(sys.platform != "linux", reason="the states of processes are read from /proc")


def test_launcher_does_not_import_torch() -> None:
    """That takes seconds, and hundreds of megabytes."""
    subprocess.run(
        [sys.executable, "-c", f"import sys, {PACKAGE}.tools.launch; assert 'torch' not in sys.modules"], check=True
    )


def test_signal_while_the_ranks_are_started_reaches_them(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the one that is not known yet."""
    start = subprocess.Popen

    def started(*arguments: Any, **options: Any) -> Any:
        process: Any = start(*arguments, **options)
        os.kill(os.getpid(), signal.SIGUSR1)
        return process

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(sys.modules[__name__], "PROGRAM", "import time; time.sleep(30)")
    Path("run/starts").touch()
    assert launched((0, 0)) == (143, [])


@linux
def test_each_rank_gets_a_signal_once(tmp_path: Path) -> None:
    started, _ = start_two(tmp_path)
    started.send_signal(signal.SIGUSR1)
    assert started.communicate(timeout=30)[1] == ""
    assert started.returncode == 75
    assert sorted((tmp_path / "signals").read_text().splitlines()) == ["0 SIGUSR1", "1 SIGUSR1"]


@linux
def test_second_signal_kills_the_ranks(tmp_path: Path) -> None:
    started, pids = start_two(tmp_path, "stubborn")
    for number in (1, 2):
        started.send_signal(signal.SIGINT)
        wait_until(lambda: (tmp_path / "signals").exists())
        wait_until(lambda number=number: len((tmp_path / "signals").read_text().splitlines()) == 2 * number)  # type: ignore[misc]
        time.sleep(0.15)
    assert started.communicate(timeout=30)[1] == "error: rank 0, rank 1 did not end in time: killed\n"
    assert started.returncode == 137
    assert all(map(has_ended, pids))


@linux
@pytest.mark.parametrize("killed", ["launcher", "rank"])
def test_no_process_outlives_the_others(tmp_path: Path, killed: str) -> None:
    started, pids = start_two(tmp_path, "stubborn")
    os.kill(started.pid if killed == "launcher" else pids[1], signal.SIGKILL)
    said = started.communicate(timeout=30)[1]
    wait_until(lambda: has_ended(pids[0]))
    assert said.startswith("error: rank 1 ended by SIGKILL" if killed == "rank" else "")


def test_ranks_of_a_restart_meet_at_another_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that those of a machine that restarts first do not meet ranks of the start before."""
    places: list[Place] = []

    def run(command: list[str], find_place: Callable[[int], Place], restarts: int) -> int:
        places.extend(map(find_place, (0, 1)))
        return 0

    monkeypatch.setattr(restart, "run", run)
    nodes = ["--nnodes=2", "--node-rank=1", "--master-addr=first", "--master-port=20000", "--nproc-per-node=4"]
    with pytest.raises(SystemExit, match="0"):
        launch.main([*nodes, "-m", "train"])
    values = places[1].variables(2)
    assert values | {"RANK": "6", "LOCAL_RANK": "2", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"} == values
    assert (values["MASTER_ADDR"], values["MASTER_PORT"], places[0].port) == ("first", "20001", 20000)


@pytest.mark.parametrize(
    ("failed", "said", "status", "printed"),
    [
        ({"rank 3": 2, "rank 5": 2}, {"rank 5"}, 2, ""),
        ({"rank 5": 3}, set(), 3, "error: rank 5 ended with status 3; see above\n"),
        ({"rank 3": 70, "rank 5": -9}, {"rank 3"}, 137, "error: rank 5 ended by SIGKILL, as happens when the machine"),
        ({"the run": -11}, set(), 139, "error: the run ended by SIGSEGV\n"),
    ],
)
def test_launcher_names_the_rank_that_failed(
    failed: dict[str, int], said: set[str], status: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ranks.report(failed, said) == status
    found = capsys.readouterr().err
    assert found.startswith(printed)
    assert bool(found) == bool(printed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nproc-per-node=0", "-m", "train"], "--nproc-per-node is 0: it must be from 1 to 4096"),
        (["--nnodes=2", "--node-rank=2", "-m", "train"], "--node-rank is 2: it must be from 0 to 1"),
        (["--restarts=1"], "no program to start"),
    ],
)
def test_launcher_refuses_wrong_options(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        launch.main(options)
    assert message in capsys.readouterr().err


HOLDING = """
import ctypes, os, subprocess, sys
guard, limit = sys.argv[1:3]
watching = subprocess.Popen([sys.executable, guard, str(os.getpid()), limit, "it hangs"], stdin=subprocess.PIPE)
os.write(watching.stdin.fileno(), b".")
ctypes.PyDLL(None).sleep(30)
"""
"""Holds Python's lock, so that no thread can run."""


@linux
def test_process_that_holds_pythons_lock_is_aborted_but_not_while_it_is_stopped() -> None:
    command = [sys.executable, "-c", HOLDING, guard.__file__, "0.6"]
    holding = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    time.sleep(0.1)
    holding.send_signal(signal.SIGSTOP)
    time.sleep(1)
    assert holding.poll() is None
    holding.send_signal(signal.SIGCONT)
    assert holding.communicate(timeout=30)[1] == "it hangs\n"
    assert holding.returncode == -signal.SIGABRT
