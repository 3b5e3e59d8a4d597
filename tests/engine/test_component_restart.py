"""restart: kills, hangs and failures of one of two ranks; what is not restarted; signals.

A start of a rank takes seconds, so `make test` has the supervisor's decisions with ranks that only
end, and one fault of ranks that are forks of the supervisor.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from engine import MakePackage, Package, equal, rows, saved
from program import finish
from warm import run_python

OPTIONS = [
    "--train.steps=8",
    "--train.eval_every=2",
    "--train.batch_size=4",
    "--watchdog.hang_seconds=100",
]
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import torch
from {0}.components import restart, watchdog
from {0}.config import parse
from {0}.components import Config
from {0}.errors import UserError
from {0}.train import main
from {0}.optim import OneCycle
folder, fault = Path(sys.argv[2]), sys.argv[3]
original, arm, armed = OneCycle.set, watchdog.Watchdog.arm, []
def note_and_arm(component, run, factor):
    armed[:] = [component, run]
    arm(component, run, factor)
def hang(component, run):
    component.limit = 1.0
    component.arm(run, 1)
    time.sleep(1000)
def crash(schedule, optimizer, step):
    marker = folder / "marker"
    done = marker.exists() and "once" in fault
    if os.environ["RANK"] == os.environ["FAULTY_RANK"] and step == 5 and not done:
        marker.touch()
        exec(fault)
    return original(schedule, optimizer, step)
if sys.argv[1] == "rank":
    OneCycle.set, watchdog.Watchdog.arm = crash, note_and_arm
    sys.argv[1:] = sys.argv[4:]
    main()
    raise SystemExit
options = sys.argv[5:]
supervisor = restart.Supervisor(folder / "a", options, int(sys.argv[4]))
supervisor.command = [sys.executable, __file__, "rank", str(folder), fault, *options]
supervisor.command.append("--watchdog.enabled=true")
if "EVERY_TEST" not in os.environ:
    import forking
    restart.subprocess = forking
raise SystemExit(supervisor.run(1))
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL) # once"
HANG = "hang(*armed) # once"
every = pytest.mark.test_all


def supervisor(
    p: Package,
    folder: Path,
    fault: str,
    ranks: int,
    *options: str,
) -> list[str]:
    """Write a program whose last rank has a fault in step 6, and return it with its arguments."""
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(PROGRAM.format(p.name))
    return [
        str(program),
        "supervise",
        str(folder),
        fault,
        str(ranks),
        *p.arguments(
            folder,
            *OPTIONS,
            *options,
        ),
    ]


def supervise(
    p: Package, folder: Path, fault: str, ranks: int, *options: str
) -> subprocess.Popen[str]:
    """Start a supervisor whose last rank has a fault in step 6."""
    variables = os.environ | {"PYTHONPATH": f"{p.root}/src", "FAULTY_RANK": str(ranks - 1)}
    command = [sys.executable, *supervisor(p, folder, fault, ranks, *options)]
    return subprocess.Popen(
        command, env=variables, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", [KILL, pytest.param(HANG, marks=every)])
def test_fault_of_one_of_two_ranks_changes_nothing(
    tiny: MakePackage, tmp_path: Path, fault: str
) -> None:
    p = tiny("watchdog", "restart")
    p.finish(tmp_path / "whole", *OPTIONS, "--watchdog.enabled=true", ranks=2)
    words = supervisor(p, tmp_path / "faulty", fault, 2)
    search = f"{p.root}/src"  # of ranks that are not forks
    stderr = run_python(p.root, *words, ranks=0, FAULTY_RANK="1", PYTHONPATH=search).stderr
    assert re.search("the ranks ended with status .*: .* starts again from step 4", stderr)
    assert equal(saved(tmp_path / "faulty"), saved(tmp_path / "whole"))
    assert rows(tmp_path / "faulty") == rows(tmp_path / "whole")
    if fault == HANG:
        assert "rank-1 hung" in stderr
        assert "in hang" in stderr, "the function that sleeps"
    else:
        assert "-9" in stderr


IN_VAIN = ["starts again from step 4"] * 2 + ["error: the ranks ended with status 1"]


@pytest.mark.slow
@every
@pytest.mark.parametrize(
    ("fault", "said", "starts"),
    [
        ("raise UserError('wrong config')", ["error: wrong config"], 1),
        ("raise RuntimeError", IN_VAIN, 3),
    ],
)
def test_what_a_restart_cannot_repair_ends(
    tiny: MakePackage, tmp_path: Path, fault: str, said: list[str], starts: int
) -> None:
    count = "(folder / f'start-{time.monotonic()}').touch(); " + fault
    run = supervise(tiny("watchdog", "restart"), tmp_path / "b", count, 1)
    _, stderr = finish(run)
    assert run.returncode == 1
    assert len(list((tmp_path / "b").glob("start-*"))) == starts, stderr
    found = [line for line in stderr.splitlines() if line.startswith(("error", "restart"))]
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))


@pytest.fixture
def restart(tiny: MakePackage) -> Iterator[Any]:
    """Return the module.

    Restore the signal handlers of this process, in which the supervisor sets its own.
    """
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    yield import_module(f"{tiny('watchdog', 'restart').name}.components.restart")
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("statuses", "ended", "starts"),
    [
        ("0", 0, 1),
        ("1 0", 0, 2),
        ("1 1 0", 0, 3),
        ("1 1 1 1", 1, 4),
        ("64", 1, 1),
        ("75", 75, 1),
        ("1 75", 75, 2),
    ],
)
def test_ranks_start_again_until_restarts_are_in_vain(
    restart: Any, tmp_path: Path, statuses: str, ended: int, starts: int
) -> None:
    """The first start leaves a checkpoint, so two restarts in vain may follow it."""
    folder = tmp_path / "a"
    (folder / "checkpoints").mkdir(parents=True)
    supervisor = restart.Supervisor(folder, [], 1)
    rank = f"mkdir -p checkpoints/step-4; echo >> starts; set -- {statuses}; "
    rank += "shift $(($(wc -l < starts) - 1)); exit $1"
    supervisor.command = ["sh", "-c", f"cd {folder}; {rank}"]
    assert supervisor.run(2) == ended
    assert len((folder / "starts").read_text()) == starts


def test_smaller_forward_passes_are_worth_a_start(restart: Any, tmp_path: Path) -> None:
    supervisor = restart.Supervisor(tmp_path, [], 1)
    supervisor.command = [
        "sh",
        "-c",
        f"cd {tmp_path}; test -e oom.json && exit; echo 2 > oom.json; exit 64",
    ]
    assert supervisor.run(1) == 0


def test_signal_reaches_all_ranks(restart: Any, tmp_path: Path) -> None:
    supervisor = restart.Supervisor(tmp_path, [], 2)
    ask = f"touch {tmp_path}/$RANK; test $(ls {tmp_path} | wc -l) = 2 && kill -TERM {os.getpid()}"
    supervisor.command = ["sh", "-c", f"trap 'exit 75' TERM; {ask}; while :; do sleep 0.01; done"]
    assert supervisor.run(1) == 75


def test_failed_rank_ends_the_others(
    restart: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "GRACE", 0.1)
    supervisor = restart.Supervisor(tmp_path, [], 2)
    file = tmp_path / "pid"
    fail = f"until test -s {file}; do sleep 0.01; done; exit 3"
    supervisor.command = [
        "sh",
        "-c",
        f"if test $RANK = 1; then {fail}; fi; echo $$ > {file}; sleep 600",
    ]
    assert supervisor.run(0) == 1
    assert not Path("/proc", file.read_text().strip()).exists()


@pytest.mark.slow
@every
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 75), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_stop_reaches_all_ranks_and_nothing_is_restarted(
    tiny: MakePackage, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """Also when the supervisor is killed, and so cannot pass a signal on."""
    p = tiny("watchdog", "restart")
    run = supervise(p, tmp_path / "b", "pass", 2, "--train.steps=100000", "--train.eval_every=1000")
    log = tmp_path / "b/a/metrics.jsonl"
    while run.poll() is None and not (log.exists() and log.stat().st_size):
        time.sleep(0.05)
    run.send_signal(number)
    _, stderr = finish(run)
    assert run.returncode == status, stderr
    lines = stderr.splitlines()
    assert len(lines) == 1
    assert re.fullmatch(r"stopped at step [\d,]+: resume with --run.name a", lines[0])
    assert saved(tmp_path / "b")["step"] < 100000


@pytest.mark.slow
@every
def test_rank_without_memory_starts_again_with_smaller_forward_passes(
    tiny: MakePackage, tmp_path: Path
) -> None:
    p = tiny("oom", "watchdog", "restart")
    fault = (
        "raise UserError('no memory') if (folder / 'a/oom.json').write_text('2') else None # once"
    )
    run = supervise(p, tmp_path / "b", fault, 1, "--oom.enabled=true")
    _, stderr = finish(run)
    assert run.returncode == 0, stderr
    assert "status 64" in stderr
    assert saved(tmp_path / "b")["components"]["oom"] == {"size": 2}


def test_run_without_a_name_is_refused(
    restart: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["restart", "--", "--train.steps=2"])
    with pytest.raises(SystemExit) as ended:
        restart.main()
    assert ended.value.code == 1
    assert (
        capsys.readouterr().err
        == "error: a run without a name cannot be resumed: add --run.name first\n"
    )


@pytest.mark.test_all
@pytest.mark.slow
def test_program_trains_without_a_warning(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("watchdog", "restart")
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        f"{p.name}.components.restart",
        "--",
        "--train.steps=2",
    ]
    command += [
        f"--run.dir={tmp_path}",
        "--run.device=cpu",
        "--train.batch_size=4",
        "--run.name=b",
    ]
    variables = os.environ | {"PYTHONPATH": f"{p.root}/src"}
    done = subprocess.run(
        command,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert saved(tmp_path, "b")["step"] == 2
