"""The launch scripts, run with stand-ins for Python and for SLURM's commands."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from program import Project

TORCHRUN = "-m torch.distributed.run"
TRAIN = "-m proj.train --config configs/default.yaml"


@pytest.fixture
def folder(project: Project, tmp_path: Path) -> Path:
    """A project with every launcher, for two machines with 8 GPUs each."""
    copied = shutil.copytree(project("pytorch", "mlp", "nodes"), tmp_path / "proj")
    stand_in(tmp_path / "bin/python", 'case "$1" in -c) echo 3;; *) echo "threads=${OMP_NUM_THREADS-} $@";; esac')
    return copied


def stand_in(file: Path, script: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/usr/bin/env bash\n{script}\n")
    file.chmod(0o755)


def run(folder: Path, script: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    programs = folder.parent / "bin"
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    environment |= {"PYTHON": str(programs / "python"), "PATH": f"{programs}:{os.environ['PATH']}"}
    command = [str(folder / "launch" / script), *options]
    return subprocess.run(command, cwd=folder, env=environment | variables, capture_output=True, text=True, check=False)


def test_local_starts_torchrun_for_several_processes_only(folder: Path) -> None:
    several = run(folder, "local.sh", "--optim.lr", "3e-4")
    expected = f"threads=1 {TORCHRUN} --standalone --nproc-per-node 8 {TRAIN} --optim.lr 3e-4\n"
    assert (several.returncode, several.stdout) == (0, expected)
    assert run(folder, "local.sh", PROCESSES="1").stdout == f"threads= {TRAIN}\n"
    assert "--nproc-per-node 3 " in run(folder, "local.sh", PROCESSES="auto").stdout


def test_lightning_starts_its_processes_itself_but_for_multinode(project: Project, tmp_path: Path) -> None:
    copied = shutil.copytree(project("lightning", "mlp", "nodes"), tmp_path / "proj")
    stand_in(tmp_path / "bin/python", 'echo "$@"')
    train = "-m proj.train fit --config configs/default.yaml"
    local = run(copied, "local.sh", "--model.lr", "3e-4")
    assert local.stdout == f"{train} --trainer.devices 8 --trainer.num_nodes 1 --model.lr 3e-4\n"
    done = run(copied, "multinode.sh", NODE_RANK="1", MASTER_ADDR="10.0.0.1", PROCESSES="4")
    assert "--nproc-per-node 4 " in done.stdout
    assert done.stdout.endswith(f" {train} --trainer.devices 4 --trainer.num_nodes 2\n")
    stand_in(tmp_path / "bin/srun", 'echo "$@"')
    done = run(copied, "slurm.sbatch", "--model.lr", "3e-4", SLURM_SUBMIT_DIR=str(copied), **JOB)
    run_folder = "--trainer.logger.version slurm-4711 --trainer.default_root_dir runs/slurm-4711"
    assert done.stdout == f"{tmp_path}/bin/python {train} {run_folder} --model.lr 3e-4\n"


def test_multinode_names_this_machine_and_the_first_one(folder: Path) -> None:
    address = {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
    done = run(folder, "multinode.sh", "--run.name", "first", **address)
    where = "--nnodes 2 --node-rank 1 --nproc-per-node 8 --master-addr 10.0.0.1 --master-port 29500"
    assert done.stdout == f"threads=1 {TORCHRUN} {where} {TRAIN} --run.name first\n"
    without = run(folder, "multinode.sh")
    assert without.returncode != 0
    assert "set NODE_RANK to the index of this machine" in without.stderr


JOB = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "n[0-1]",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
}


@pytest.mark.parametrize(
    ("status", "state", "requeued"),
    [(0, "RUNNING", False), (1, "RUNNING", False), (75, "RUNNING", True), (75, "COMPLETING", False)],
)
def test_slurm_requeues_a_run_that_was_stopped(status: int, state: str, requeued: bool, folder: Path) -> None:
    programs, record = folder.parent / "bin", folder.parent / "requeued"
    stand_in(programs / "srun", f'shift; "$@"; exit {status}')
    stand_in(programs / "squeue", f"echo {state}")
    stand_in(programs / "scontrol", f'case "$1" in show) printf "n0\\nn1\\n";; requeue) echo "$2" > {record};; esac')
    names = "address=$MASTER_ADDR:$MASTER_PORT rank=$RANK/$WORLD_SIZE local=$LOCAL_RANK"
    stand_in(programs / "python", f'echo "{names} $@"')
    done = run(folder, "slurm.sbatch", "--optim.lr", "3e-4", SLURM_SUBMIT_DIR=str(folder), **JOB)
    assert done.returncode == status, done.stderr
    assert done.stdout == f"address=n0:24711 rank=9/16 local=1 {TRAIN} --run.name slurm-4711 --optim.lr 3e-4\n"
    assert record.exists() == requeued
    script = (folder / "launch/slurm.sbatch").read_text()
    for option in ("--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8", "--signal=USR1@120", "--requeue"):
        assert f"\n#SBATCH {option}\n" in script
