"""The batch script in a real SLURM cluster of two emulated nodes with fake GPUs."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine import equal, rows, saved
from hosts import render_for_two
from program import Fastproj
from slurm_cluster import Cluster, missing, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.test_all,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
OPTIONS = [
    "--run.device=cpu",
    "--speed.compile=off",
    "--train.steps=1500",
    "--train.eval_every=100",
]
VARIABLES = {"PYTHON": sys.executable, "MASTER_ADDR": "127.0.0.1", "PYTHONPATH": ""}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return render_for_two(fastproj, tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def whole(cluster: Cluster, folder: Path) -> str:
    """The name of a run that was not interrupted."""
    job = submit(cluster, folder)
    ended(cluster, job)
    return f"slurm-{job}"


def submit(cluster: Cluster, folder: Path, *options: str, train: list[str] = OPTIONS) -> str:
    """Submit the script, and return the ID of the job."""
    printed = cluster.run(
        "sbatch", *options, "launch/slurm.sbatch", *train, cwd=folder, **VARIABLES
    )
    found = re.fullmatch(r"Submitted batch job (\d+)\n", printed)
    assert found, printed
    return found[1]


def ended(cluster: Cluster, job: str, seconds: float = 200) -> None:
    """Wait until a job has ended."""
    wait_for(
        lambda: cluster.state(job) not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED"),
        cluster.daemons,
        seconds,
    )
    assert cluster.state(job) == "COMPLETED", cluster.run(
        "scontrol",
        "show",
        "job",
        job,
    )


def trains(folder: Path, job: str) -> bool:
    """Whether the run of a job has saved a checkpoint."""
    return any(folder.glob(f"runs/slurm-{job}/checkpoints/step-*"))


def test_run_is_requeued_at_the_time_limit_and_ends_as_an_uninterrupted_one(
    cluster: Cluster, folder: Path, whole: str
) -> None:
    job = submit(cluster, folder, "--time=1", "--signal=USR1@45")
    start_soon(cluster, job)
    stopped = saved(folder / "runs", f"slurm-{job}")["step"]
    assert stopped < 1500, "so it has not ended before the signal"
    requeued = time.monotonic()
    ended(cluster, job)
    output = (folder / f"slurm-{job}.out").read_text()
    assert f"stopped at step {stopped:,}: resume with --run.name slurm-{job}" in output
    assert f"from step {stopped:,}" in output
    assert equal(saved(folder / "runs", f"slurm-{job}"), saved(folder / "runs", whole))
    assert rows(folder / "runs", "val", f"slurm-{job}") == rows(folder / "runs", "val", whole)
    print(
        f"stopped at step {stopped}; "
        f"{time.monotonic() - requeued:.0f} s from the requeue to the end"
    )


def start_soon(cluster: Cluster, job: str) -> None:
    """Wait until a job is requeued, and start it soon: SLURM would wait for two minutes."""

    def waits_for_its_start() -> bool:
        facts = cluster.run("scontrol", "show", "job", job)
        # SLURM refuses credentials that are not newer than the end of the first start, in seconds
        return "Restarts=1" in facts and "JobState=PENDING" in facts

    wait_for(waits_for_its_start, cluster.daemons, 150)
    for change in ("TimeLimit=10", "StartTime=now+5"):
        cluster.run("scontrol", "update", f"JobId={job}", change)


def test_job_with_a_killed_task_is_requeued_and_ends_as_an_uninterrupted_one(
    cluster: Cluster, folder: Path, whole: str
) -> None:
    job = submit(cluster, folder)
    wait_for(lambda: trains(folder, job), cluster.daemons)
    os.kill(rank_of(f"slurm-{job}", "1"), signal.SIGKILL)
    start_soon(cluster, job)
    ended(cluster, job)
    assert "a task ended with status 137" in (folder / f"slurm-{job}.out").read_text()
    assert equal(saved(folder / "runs", f"slurm-{job}"), saved(folder / "runs", whole))


def rank_of(name: str, rank: str) -> int:
    """Return the process of a run's rank."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_text().split("\0")
            if (
                name in command
                and "proj.train" in command
                and f"\0RANK={rank}\0" in (place / "environ").read_text()
            ):
                return int(place.name)
        except OSError:
            continue
    raise AssertionError(f"{name} has no rank {rank}")


def test_array_trains_a_run_for_each_seed(cluster: Cluster, folder: Path) -> None:
    short = ["--run.device=cpu", "--speed.compile=off", "--train.steps=20", "--train.eval_every=20"]
    job = submit(cluster, folder, "--array=3-4", "--nodes=1", train=short)
    ended(cluster, f"{job}_3")
    ended(cluster, f"{job}_4")
    configs = [
        json.loads((folder / f"runs/slurm-{job}-{seed}/config.json").read_text()) for seed in (3, 4)
    ]
    assert [it["config"]["run"]["seed"] for it in configs] == [3, 4]


def test_more_tasks_than_gpus_are_refused(cluster: Cluster, folder: Path) -> None:
    job = submit(cluster, folder, "--nodes=1", "--ntasks-per-node=2")
    wait_for(lambda: cluster.state(job) == "FAILED", cluster.daemons)
    output = (folder / f"slurm-{job}.out").read_text()
    assert (
        output == "error: 2 tasks per node, but 1 GPUs: set --ntasks-per-node and --gpus-per-node\n"
    )
