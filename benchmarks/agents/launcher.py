"""Write a batch script for SLURM."""

import os
import re
import subprocess
import sys
from pathlib import Path

from common import NAME, Project, expect

MODEL = "mlp"
NODES = 4
GPUS = 8
RECORD = """\
#!/bin/sh
# Stands for a program that starts a training: writes its ranks and its arguments.
case "$1" in -c | -) exec {python} "$@" ;; esac
echo "$RANK/$WORLD_SIZE $(basename "$0") $*" >> "$CALLS"
"""
SRUN = """\
#!{python}
import os, subprocess, sys
values = {{"-n", "-N", "-c", "-J", "-o", "-e", "-w", "-p", "-t"}}
flags = {{"--label", "--unbuffered", "--exclusive", "--overlap", "--kill-on-bad-exit"}}
words = sys.argv[1:]
given = {{}}
while words and words[0].startswith("-"):
    word = words.pop(0)
    key, _, value = word.partition("=")
    if word in values or (word.startswith("--") and "=" not in word and word not in flags):
        value = words.pop(0)
    given[key] = value
nodes = int(given.get("-N") or given.get("--nodes") or os.environ["SLURM_NNODES"])
tasks = int(given.get("-n") or given.get("--ntasks") or os.environ["SLURM_NTASKS"])
if "--ntasks-per-node" in given:
    tasks = nodes * int(given["--ntasks-per-node"])
for task in range(tasks):
    of_node = tasks // nodes
    place = {{"PROCID": task, "LOCALID": task % of_node, "NODEID": task // of_node}}
    place |= {{"NTASKS": tasks, "STEP_NUM_TASKS": tasks}}
    variables = {{f"SLURM_{{name}}": str(value) for name, value in place.items()}}
    subprocess.run(words, env=os.environ | variables, check=True)
"""
STARTERS = ("python", "python3", "torchrun", "accelerate")


def prepare(folder: Path) -> None:
    """Change nothing."""


def check(project: Project) -> None:
    """Run the script twice with programs that stand for SLURM and Python."""
    scripts = []
    for file in (project.folder / "launch").rglob("*"):
        if file.is_file() and first_number(read_options(file), "--nodes", "-N") == NODES:
            scripts.append(file)  # one may start another, which `fastproj add slurm` brought
    expect(len(scripts) == 1, f"{len(scripts)} files in launch/ ask SLURM for {NODES} nodes")
    options = read_options(scripts[0])
    per_node = first_number(options, "--gpus-per-node", "--gres")
    total = first_number(options, "--gpus", "-G") or NODES * per_node
    tasks = first_number(options, "--ntasks", "-n")
    tasks = tasks or NODES * (first_number(options, "--ntasks-per-node") or 1)
    total = total or tasks * first_number(options, "--gpus-per-task")
    expect(total == NODES * GPUS, f"the script asks for {total} GPUs")

    names = set()
    for restart in range(2):
        calls = run(project, scripts[0], tasks, restart)
        expect(calls, "the script starts no training")
        check_ranks(calls)
        for call in calls:
            expect(f"{NAME}.train" in call or "train.py" in call, f"no training: {call}")
            expect("configs/default.yaml" in call, f"without the recipe: {call}")
            name = re.search(r"--run\.name[= ](\S+)", call)
            expect(name, f"without a name, the run is not resumed: {call}")
            names.add(name[1] if name else "")
    expect(len(names) == 1, f"the run has several names: {sorted(names)}")


def check_ranks(calls: list[str]) -> None:
    """Check that all calls of a job are one training on all GPUs."""
    if "torchrun" in calls[0] or "torch.distributed" in calls[0]:
        expect(len(calls) == NODES, f"torchrun is started {len(calls)} times")
        for call in calls:
            nodes = re.search(r"--nnodes[= ](\S+)", call)
            processes = re.search(r"--nproc[-_]per[-_]node[= ](\S+)", call)
            expect(nodes and nodes[1] in ("4", "4:4"), f"not for {NODES} nodes: {call}")
            several = processes and processes[1] in ("8", "gpu", "auto")
            expect(several, f"not {GPUS} processes per node: {call}")
        return
    expected = {f"{rank}/{NODES * GPUS}" for rank in range(NODES * GPUS)}
    ranks = {call.split()[0] for call in calls}
    expect(ranks == expected, f"RANK/WORLD_SIZE of the processes are {sorted(ranks)}")


def read_options(script: Path) -> dict[str, str]:
    """Return the options of SLURM in a script."""
    options = {}
    text = script.read_text(encoding="utf-8")
    for key, value in re.findall(r"^#SBATCH\s+(-[-\w]+)[= ]*(\S*)", text, re.MULTILINE):
        options[key] = value
    return options


def first_number(options: dict[str, str], *keys: str) -> int:
    """Return the last number in the value of the first of these options; 0 without them."""
    for key in keys:
        numbers = re.findall(r"\d+", options.get(key, ""))
        if numbers:
            return int(numbers[-1])
    return 0


def run(project: Project, script: Path, tasks: int, restart: int) -> list[str]:
    """Run the script as SLURM does on the first node; return what it starts."""
    programs = project.scratch / f"programs{restart}"
    programs.mkdir()
    calls = programs / "calls"
    calls.touch()
    python = sys.executable
    for name in STARTERS:
        (programs / name).write_text(RECORD.format(python=python))
    hosts = " ".join(f"node{number}" for number in range(NODES))
    (programs / "srun").write_text(SRUN.format(python=python))
    (programs / "scontrol").write_text(f'#!/bin/sh\nprintf "%s\\n" {hosts}\n')
    (programs / "squeue").write_text("#!/bin/sh\necho RUNNING\n")
    for file in programs.iterdir():
        file.chmod(0o755)
    slurm = {
        "JOB_ID": 7,
        "JOBID": 7,
        "SUBMIT_DIR": project.folder,
        "JOB_NUM_NODES": NODES,
        "NNODES": NODES,
        "NTASKS": tasks,
        "NPROCS": tasks,
        "NTASKS_PER_NODE": tasks // NODES,
        "TASKS_PER_NODE": f"{tasks // NODES}(x{NODES})",
        "JOB_NODELIST": f"node[0-{NODES - 1}]",
        "NODELIST": f"node[0-{NODES - 1}]",
        "GPUS_ON_NODE": GPUS,
        "GPUS_PER_NODE": GPUS,
        "CPUS_PER_TASK": 4,
        "CPUS_ON_NODE": 32,
        "RESTART_COUNT": restart,
        "PROCID": 0,
        "LOCALID": 0,
        "NODEID": 0,
    }
    variables = {f"SLURM_{name}": str(value) for name, value in slurm.items()}
    variables |= {"PATH": f"{programs}:{os.environ['PATH']}", "CALLS": str(calls)}
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHON", "RANK")}
    result = subprocess.run(
        ["bash", str(script)],
        cwd=project.folder,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    expect(result.returncode == 0, f"the script fails: {result.stderr.strip()[-300:]}")
    return calls.read_text().splitlines()
