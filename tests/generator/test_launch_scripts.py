"""The launch scripts, run with stand-ins for Python and for SLURM's commands."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from matrix import FRAMEWORKS
from program import Project

TORCHRUN = "-m torch.distributed.run"
TRAIN = "-m proj.train --config configs/default.yaml"
PYTHON = 'case "$1" in -c) echo "${GPUS-8}";; *) echo "threads=${OMP_NUM_THREADS-} $@";; esac'
"""Stands in for Python on a machine with 8 GPUs, or as many as the variable says."""


@pytest.fixture
def folder(project: Project, tmp_path: Path) -> Path:
    """A project with every launcher, for two machines with 8 GPUs each."""
    copied = shutil.copytree(project("pytorch", "mlp", "nodes"), tmp_path / "proj")
    stand_in(tmp_path / "bin/python", PYTHON)
    return copied


def stand_in(file: Path, script: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/usr/bin/env bash\n{script}\n")
    file.chmod(0o755)


def run(
    folder: Path, script: str, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    programs = folder.parent / "bin"
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    environment |= {"PYTHON": str(programs / "python"), "PATH": f"{programs}:{os.environ['PATH']}"}
    command = [str(folder / "launch" / script), *options]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_local_starts_torchrun_for_several_processes_only(folder: Path) -> None:
    several = run(
        folder, "local.sh", "--run.name", "first", "--optim.lr", "3e-4", OMP_NUM_THREADS="5"
    )
    logs = f"--log-dir runs/first/logs --tee {','.join(f'{rank}:3' for rank in range(1, 8))}"
    launcher = f"{TORCHRUN} --standalone --nproc-per-node 8 --max-restarts 0 {logs}"
    module, config = TRAIN.split(" --config ")
    command = f"{module} --run.name first --config {config} --run.name first --optim.lr 3e-4"
    expected = f"threads=5 {launcher} {command}\n"
    assert (several.returncode, several.stdout) == (0, expected)
    assert run(folder, "local.sh", PROCESSES="1").stdout == f"threads= {TRAIN}\n"
    assert "--nproc-per-node 3 " in run(folder, "local.sh", PROCESSES="auto", GPUS="3").stdout
    assert run(folder, "local.sh", PROCESSES="auto", GPUS="0").stdout == f"threads= {TRAIN}\n"
    assert " --max-restarts 3 " in run(folder, "local.sh", RESTARTS="3").stdout


def test_unnamed_run_has_its_name_before_it_starts(folder: Path) -> None:
    """So that a restart resumes it; and the cores are shared by the processes."""
    words = run(folder, "local.sh", PROCESSES="2").stdout.split()
    name = words[words.index("--run.name") + 1]
    assert re.fullmatch(r"(\d+-){5}\d+", name)
    assert words[words.index("--log-dir") + 1] == f"runs/{name}/logs"
    assert words.index("--run.name") < words.index("--config"), "a name in the config wins"
    assert words[0] == f"threads={max(len(os.sched_getaffinity(0)) // 2, 1)}"


NAMES = ["mine  # comment", '"mine"', "'mine'  # comment", "null", "  # mine"]


@pytest.mark.parametrize("section", [f"run:\n  name: {name}" for name in NAMES])
def test_name_in_the_config_is_that_of_the_logs(folder: Path, section: str) -> None:
    file = folder / "configs/default.yaml"
    file.write_text(f"{section}\ndata:\n  name: other\n")
    words = run(folder, "local.sh", PROCESSES="2").stdout.split()
    name = words[words.index("--run.name") + 1]
    is_named = "mine" in section.partition(" #")[0]
    assert (name == "mine") == is_named
    assert words[words.index("--log-dir") + 1] == f"runs/{name}/logs"


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        (
            [],
            {"GPUS": "4"},
            "8 processes need 8 GPUs, but torch finds 4: use PROCESSES=auto, or --run.device cpu",
        ),
        (
            [],
            {"GPUS": "0"},
            "8 processes need 8 GPUs, but torch finds 0: use PROCESSES=auto, or --run.device cpu",
        ),
        ([], {"PROCESSES": "0"}, "PROCESSES is '0': use auto, or a number from 1"),
        ([], {"PROCESSES": "two"}, "PROCESSES is 'two': use auto, or a number from 1"),
        (["--run.device=cpu"], {"GPUS": "4"}, None),
        (["--run.device", "cpu"], {"GPUS": "4"}, None),
    ],
)
def test_local_refuses_processes_without_a_gpu(
    options: list[str], variables: dict[str, str], message: str | None, folder: Path
) -> None:
    done = run(folder, "local.sh", *options, **variables)
    assert (done.returncode, done.stderr) == ((2, f"error: {message}\n") if message else (0, ""))
    assert bool(done.stdout) == (message is None), "nothing has started"


def test_lightning_starts_its_processes_itself_but_for_clusters(
    project: Project, tmp_path: Path
) -> None:
    copied = shutil.copytree(project("lightning", "mlp", "nodes"), tmp_path / "proj")
    stand_in(tmp_path / "bin/python", PYTHON.replace("threads=${OMP_NUM_THREADS-} ", ""))
    train = "-m proj.train fit --config configs/default.yaml"
    local = run(copied, "local.sh", "--model.lr", "3e-4")
    assert local.stdout == f"{train} --trainer.num_nodes 1 --model.lr 3e-4\n", "8 of the config"
    local = run(copied, "local.sh", PROCESSES="2")
    assert local.stdout == f"{train} --trainer.num_nodes 1 --trainer.devices 2\n"
    done = run(copied, "multinode.sh", **FIRST, PROCESSES="4")
    named = "--trainer.logger.version first --ckpt_path last"
    assert done.stdout.endswith(f" {train[3:]} --trainer.devices 4 --trainer.num_nodes 2 {named}\n")
    stand_in(tmp_path / "bin/srun", 'shift; "$@"')
    stand_in(tmp_path / "bin/scontrol", "echo n0")
    done = run(
        copied,
        "slurm.sbatch",
        "--model.lr",
        "3e-4",
        SLURM_SUBMIT_DIR=str(copied),
        **JOB,
    )
    named = f"{named.replace('first', 'slurm-4711')} --trainer.default_root_dir runs/slurm-4711"
    assert (
        done.stdout
        == f"{train} --trainer.devices 8 --trainer.num_nodes 2 {named} --model.lr 3e-4\n"
    ), done.stderr


FIRST = {"RUN_NAME": "first", "MASTER_ADDR": "10.0.0.1", "GPUS": "1 10.0.0.1"}
"""Variables of the first machine; what Python prints says that it is the first one."""


def test_multinode_starts_torchrun(folder: Path) -> None:
    words = run(folder, "multinode.sh", "--optim.lr", "3e-4", **FIRST, NODES="1:2").stdout
    assert f"{TORCHRUN} --nnodes 1:2 --nproc-per-node 8 --max-restarts 3 " in words
    assert " --rdzv-id first --rdzv-endpoint 10.0.0.1:29400 --rdzv-conf is_host=1 " in words
    assert words.endswith(f" {TRAIN} --run.name first --optim.lr 3e-4\n")


def test_machine_whose_first_one_does_not_answer_ends_with_a_line(folder: Path) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "GPUS": "0 127.0.0.1", "WAIT": "0"}
    done = run(folder, "multinode.sh", **FIRST | place)
    message = (
        "127.0.0.1:1 does not answer: start this command there too, or set WAIT to more seconds"
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {message}\n")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RUN_NAME": ""}, "set RUN_NAME to the name of the run, the same on all machines"),
        ({"MASTER_ADDR": ""}, "set MASTER_ADDR to the address of the machine that the others join"),
        (
            {"NODES": "0"},
            "error: NODES is '0' and PROCESSES is '8': use numbers from 1, or MIN:MAX for NODES",
        ),
        (
            {"NODES": "2:"},
            "error: NODES is '2:' and PROCESSES is '8': use numbers from 1, or MIN:MAX for NODES",
        ),
        (
            {"PROCESSES": "0"},
            "error: NODES is '2' and PROCESSES is '0': use numbers from 1, or MIN:MAX for NODES",
        ),
    ],
)
def test_multinode_refuses_what_cannot_start(
    variables: dict[str, str], message: str, folder: Path
) -> None:
    done = run(folder, "multinode.sh", **FIRST | variables)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"{message}\n")


JOB = {
    "GPUS": "29500",  # what Python prints: here, the port
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "n[0-1]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS_PER_NODE": "8",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "1",
}


def slurm(
    folder: Path, *options: str, status: int = 0, state: str = "", **variables: str
) -> tuple[str, list[str]]:
    """Run the batch script with commands of SLURM that write down how they are called.

    Return output and calls.
    """
    programs = folder.parent / "bin"
    record = folder.parent / "calls"
    saves = 'if [ -n "${SAVES-}" ]; then mkdir "$SAVES"; fi'
    stand_in(programs / "srun", f'echo srun >> {record}; shift; "$@"; {saves}; exit {status}')
    stand_in(programs / "squeue", f"echo {state}")
    stand_in(
        programs / "scontrol",
        f'case "$1" in show) printf "n0\\nn1\\n";; *) echo "$@" >> {record};; esac',
    )
    names = "address=$MASTER_ADDR:$MASTER_PORT rank=$RANK/$WORLD_SIZE local=$LOCAL_RANK"
    stand_in(programs / "python", f'case "$1" in -c) echo 29500;; *) echo "{names} $@";; esac')
    done = run(
        folder, "slurm.sbatch", *options, **JOB | {"SLURM_SUBMIT_DIR": str(folder)} | variables
    )
    assert done.returncode == status, done.stderr
    return done.stdout, record.read_text().splitlines()


@pytest.mark.parametrize(
    ("status", "state", "calls"),
    [
        (0, "RUNNING", ["srun"]),
        (1, "RUNNING", ["srun"]),
        (75, "RUNNING", ["srun", "requeue 4711"]),
        (75, "COMPLETING", ["srun"]),
    ],
)
def test_slurm_requeues_a_run_that_was_stopped(
    status: int, state: str, calls: list[str], folder: Path
) -> None:
    printed, called = slurm(
        folder,
        "--optim.lr",
        "3e-4",
        status=status,
        state=state,
    )
    assert (
        printed
        == f"address=n0:29500 rank=0/16 local=1 {TRAIN} --run.name slurm-4711 --optim.lr 3e-4\n"
    )
    assert called == calls
    script = (folder / "launch/slurm.sbatch").read_text()
    for option in (
        "--nodes=2",
        "--ntasks-per-node=8",
        "--gpus-per-node=8",
        "--signal=USR1@120",
        "--requeue",
    ):
        assert f"\n#SBATCH {option}\n" in script


def test_slurm_requeues_a_failed_run_only_if_it_has_a_new_checkpoint(folder: Path) -> None:
    checkpoints = folder / "runs/slurm-4711/checkpoints"
    (checkpoints / "step-1").mkdir(parents=True)
    assert slurm(folder, status=137, state="RUNNING")[1] == ["srun"]
    (folder.parent / "calls").unlink()
    called = slurm(folder, status=137, state="RUNNING", SAVES=str(checkpoints / "step-2"))[1]
    assert called == ["srun", "requeue 4711"]


def test_slurm_array_has_a_run_for_each_seed(folder: Path) -> None:
    printed, _ = slurm(folder, SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="3")
    assert printed.endswith(f" {TRAIN} --run.name slurm-4700-3 --run.seed 3\n")


def test_other_tasks_of_slurm_write_to_files_of_the_run(folder: Path) -> None:
    printed, _ = slurm(folder, SLURM_PROCID="9")
    assert printed == ""
    assert " rank=9/16 " in (folder / "runs/slurm-4711/logs/9.log").read_text()


def test_slurm_refuses_what_cannot_start(folder: Path) -> None:
    without = run(folder, "slurm.sbatch")
    assert without.stderr.endswith(
        "start this file with sbatch, on a machine where SLURM is installed\n"
    )
    few = run(
        folder, "slurm.sbatch", **JOB | {"SLURM_SUBMIT_DIR": str(folder), "SLURM_GPUS_ON_NODE": "4"}
    )
    assert (
        few.stderr
        == "error: 8 tasks per node, but 4 GPUs: set --ntasks-per-node and --gpus-per-node\n"
    )
    assert (without.returncode != 0, few.returncode) == (True, 2)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_scripts_are_short_and_begin_with_the_command_that_starts_them(
    project: Project, framework: str
) -> None:
    scripts = [*(project(framework, "mlp", "nodes") / "launch").glob("*.s*h*")]
    assert {script.name for script in scripts} == {"local.sh", "multinode.sh", "slurm.sbatch"}
    for script in scripts:
        lines = script.read_text().splitlines()
        assert len(lines) <= 80
        assert f"launch/{script.name} " in "".join(
            line for line in lines[:4] if line.startswith("#")
        )
