"""restart: kills, hangs and failures of one of two ranks; what is not restarted; signals; a lack of memory."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine import MakePackage, Package, equal, rows, saved

OPTIONS = ["--train.steps=8", "--train.eval_every=2", "--train.micro_batch=4", "--restart.hang_seconds=3"]
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import torch
from {0}.components import restart
from {0}.config import parse
from {0}.components import Config
from {0}.errors import UserError
from {0}.optim import OneCycle
folder, fault = Path(sys.argv[2]), sys.argv[3]
original = OneCycle.set
def crash(schedule, optimizer, step):
    marker = folder / "marker"
    if os.environ["RANK"] == os.environ["FAULTY_RANK"] and step == 5 and not (marker.exists() and "once" in fault):
        marker.touch()
        exec(fault)
    return original(schedule, optimizer, step)
OneCycle.set = crash
if sys.argv[1] == "rank":
    restart._train(sys.argv[4:])
options = sys.argv[5:]
supervisor = restart.Supervisor(folder / "a", options, int(sys.argv[4]))
supervisor.command = [sys.executable, __file__, "rank", str(folder), fault, *options, "--restart.enabled=true"]
raise SystemExit(supervisor.run(1))
"""
KILL, HANG = "os.kill(os.getpid(), signal.SIGKILL) # once", "time.sleep(100) # once"


def supervise(p: Package, folder: Path, fault: str, ranks: int, *options: str) -> subprocess.Popen[str]:
    """Start a supervisor whose last rank has a fault in step 6."""
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(PROGRAM.format(p.name))
    arguments = [str(folder), fault, str(ranks), *p.arguments(folder, *OPTIONS, *options)]
    variables = os.environ | {"PYTHONPATH": f"{p.root}/src", "FAULTY_RANK": str(ranks - 1)}
    command = [sys.executable, str(program), "supervise", *arguments]
    return subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [KILL, HANG])
def test_fault_of_one_of_two_ranks_changes_nothing(tiny: MakePackage, tmp_path: Path, fault: str) -> None:
    p = tiny("restart")
    p.finish(tmp_path / "whole", *OPTIONS, "--restart.enabled=true", ranks=2)
    run = supervise(p, tmp_path / "faulty", fault, 2)
    _, stderr = run.communicate(timeout=100)
    assert run.returncode == 0, stderr
    assert re.search("the ranks ended with status .*: .* starts again from step 4", stderr)
    assert equal(saved(tmp_path / "faulty"), saved(tmp_path / "whole"))
    assert rows(tmp_path / "faulty") == rows(tmp_path / "whole")
    if fault == HANG:
        assert "rank-1 hung" in stderr
        assert "<string>" in stderr, "the line of the sleep"
    else:
        assert "-9" in stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said", "starts"),
    [
        ("raise UserError('wrong config')", ["error: wrong config"], 1),
        ("raise RuntimeError", ["starts again from step 4"] * 2 + ["error: the ranks ended with status 1"], 3),
    ],
)
def test_what_a_restart_cannot_repair_ends(
    tiny: MakePackage, tmp_path: Path, fault: str, said: list[str], starts: int
) -> None:
    count = "(folder / f'start-{time.monotonic()}').touch(); " + fault
    run = supervise(tiny("restart"), tmp_path / "b", count, 1)
    _, stderr = run.communicate(timeout=100)
    assert run.returncode == 1
    assert len(list((tmp_path / "b").glob("start-*"))) == starts, stderr
    found = [line for line in stderr.splitlines() if line.startswith(("error", "restart"))]
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))


@pytest.mark.slow
def test_stop_reaches_all_ranks_and_nothing_is_restarted(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("restart")
    run = supervise(p, tmp_path / "b", "pass", 2, "--train.steps=100000", "--train.eval_every=1000")
    log = tmp_path / "b/a/metrics.jsonl"
    while run.poll() is None and not (log.exists() and log.stat().st_size):
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == 75, stderr
    assert re.fullmatch(r"stopped at step [\d,]+: resume with --run.name a\n", stderr)
    assert saved(tmp_path / "b")["step"] < 100000


@pytest.mark.slow
def test_rank_without_memory_starts_again_with_smaller_forward_passes(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("oom", "restart")
    fault = "raise UserError('no memory') if (folder / 'a/oom.json').write_text('2') else None # once"
    run = supervise(p, tmp_path / "b", fault, 1, "--oom.enabled=true")
    _, stderr = run.communicate(timeout=100)
    assert run.returncode == 0, stderr
    assert "status 64" in stderr
    assert saved(tmp_path / "b")["components"]["oom"] == {"size": 2}


@pytest.mark.slow
def test_program_refuses_a_run_without_a_name(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("restart")
    command = [sys.executable, "-W", "error", "-m", f"{p.name}.components.restart", "--", "--train.steps=2"]
    command += [f"--run.dir={tmp_path}", "--run.device=cpu", "--train.micro_batch=4"]
    variables = os.environ | {"PYTHONPATH": f"{p.root}/src"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (
        1,
        "error: a run without a name cannot be resumed: add --run.name first\n",
    )
    command += ["--run.name=b"]
    named = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=100)
    assert (named.returncode, named.stderr) == (0, "")
    assert saved(tmp_path, "b")["step"] == 2
