"""multinode.sh on two hosts, which are network namespaces; and restarts of local.sh."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from engine import equal, rows, saved
from hosts import missing, render_for_two, two_hosts
from program import LIMIT_S, Fastproj, finish

pytestmark = [
    pytest.mark.slow,
    pytest.mark.test_all,
]
namespaces = pytest.mark.skipif(bool(missing()), reason=missing())
OPTIONS = [
    "--run.device=cpu",
    "--speed.compile=off",
    "--train.steps=1000",
    "--train.eval_every=100",
]
Host = tuple[list[str], str]


@pytest.fixture(scope="module")
def folder(fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return render_for_two(fastproj, tmp_path_factory.mktemp("project"))


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with two_hosts() as hosts:
        yield hosts


def start(
    folder: Path, script: str, *options: str, on: Host | None = None, **variables: str
) -> subprocess.Popen[str]:
    """Start a launch script, on a host or on this machine."""
    settings = {
        "PYTHON": sys.executable,
        "PYTHONPATH": "",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    settings |= (
        {"MASTER_ADDR": "10.39.0.1"} | ({} if on else {"GLOO_SOCKET_IFNAME": "lo"}) | variables
    )
    command = [*(on[0] if on else []), f"launch/{script}", *(options or OPTIONS)]
    environment = os.environ | settings
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environment, stderr=pipe, stdout=pipe, text=True, process_group=0
    )


def processes(name: str, variable: str | None = None) -> list[int]:
    """Return the training processes of a run, with a variable if given."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (place / "cmdline").read_text().split("\0")
            if (
                "proj.train" in command
                and name in command
                and (variable is None or variable in (place / "environ").read_text().split("\0"))
            ):
                found.append(int(place.name))
    return found


def kill_host(launcher: subprocess.Popen[str], name: str) -> None:
    """Kill what runs on a host: the launcher, and the processes that train."""
    network = Path(f"/proc/{launcher.pid}/ns/net").readlink()
    there = [pid for pid in processes(name) if Path(f"/proc/{pid}/ns/net").readlink() == network]
    for pid in {launcher.pid, *there}:
        os.kill(pid, signal.SIGKILL)
    launcher.communicate()


def until(condition: Callable[[], object], *running: subprocess.Popen[str]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        ended = [it for it in running if it.poll() is not None]
        assert not ended, [it.communicate() for it in ended]
        assert time.monotonic() < end
        time.sleep(0.05)


def finished(*started: subprocess.Popen[str]) -> str:
    """Return what was printed, after all have ended well."""
    printed = [finish(it) for it in started]
    assert [it.returncode for it in started] == [0] * len(started), printed
    return "".join(chain.from_iterable(printed))


@namespaces
def test_host_that_was_killed_joins_again(folder: Path, hosts: list[Host]) -> None:
    def both(name: str) -> list[subprocess.Popen[str]]:
        # the first one last
        return [start(folder, "multinode.sh", on=host, RUN_NAME=name) for host in reversed(hosts)]

    finished(*both("whole"))
    second, first = both("killed")
    until(lambda: any(folder.glob("runs/killed/checkpoints/step-*")), first, second)
    kill_host(second, "killed")
    again = start(folder, "multinode.sh", on=hosts[1], RUN_NAME="killed")
    begin = time.monotonic()
    printed = finished(first, again)
    print(f"{time.monotonic() - begin:.0f} s from the kill to the end")
    assert len(set(re.findall(r"from step ([\d,]+)", printed))) == 2, printed
    assert equal(saved(folder / "runs", "killed"), saved(folder / "runs", "whole"))
    assert rows(folder / "runs", "val", "killed") == rows(folder / "runs", "val", "whole")


@namespaces
def test_one_of_two_hosts_is_enough_for_an_elastic_job(folder: Path, hosts: list[Host]) -> None:
    options = [*OPTIONS, "--train.global_batch_size=128"]
    job = {"RUN_NAME": "elastic", "NODES": "1:2"}
    first, second = (start(folder, "multinode.sh", *options, on=host, **job) for host in hosts)
    until(lambda: any(folder.glob("runs/elastic/checkpoints/step-*")), first, second)
    kill_host(second, "elastic")
    printed = finished(first)
    assert "on 2 x cpu" in printed
    assert "on 1 x cpu" in printed


@namespaces
def test_host_without_the_first_one_ends_with_a_line(folder: Path, hosts: list[Host]) -> None:
    alone = start(
        folder,
        "multinode.sh",
        on=hosts[1],
        RUN_NAME="a",
        WAIT="2",
    )
    assert re.fullmatch(r"error: 10.39.0.1:29400 does not answer: .*\n", finish(alone)[1])


def test_local_starts_all_processes_again_after_one_was_killed(folder: Path) -> None:
    variables: dict[str, Any] = {"PROCESSES": "2", "RESTARTS": "1"}
    finished(start(folder, "local.sh", *OPTIONS, "--run.name", "local", **variables))
    run = start(folder, "local.sh", *OPTIONS, "--run.name", "local-killed", **variables)
    until(lambda: any(folder.glob("runs/local-killed/checkpoints/step-*")), run)
    os.kill(processes("local-killed", "RANK=1")[0], signal.SIGKILL)
    begin = time.monotonic()
    printed = finished(run)
    print(f"{time.monotonic() - begin:.0f} s from the kill to the end")
    assert len(set(re.findall(r"from step ([\d,]+)", printed))) == 2
    assert equal(saved(folder / "runs", "local-killed"), saved(folder / "runs", "local"))
    logs = {
        file.parent.name for file in folder.glob("runs/local-killed/logs/*/attempt_1/*/stderr.log")
    }
    assert logs == {"1"}, "the first one has the console"
