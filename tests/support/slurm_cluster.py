"""A SLURM cluster of two emulated nodes on this machine."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from program import LIMIT_S

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
CONFIG = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n0 NodeHostname=localhost NodeAddr=127.0.0.1 Port={first} CPUs=8 Gres=gpu:2
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={second} CPUs=8 Gres=gpu:2
PartitionName=all Nodes=n[0-1] Default=YES
"""


def missing() -> str:
    """Return why there is no cluster on this machine, or nothing."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"needs {absent[0]}, by tests/support/programs/install_slurm.sh: make test-all"
    return "" if os.geteuid() == 0 else "needs root, to start SLURM's daemons: sudo make test-all"


class Cluster:
    """The daemons, which end with the context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons = list[subprocess.Popen[bytes]]()
        self.environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}:/usr/sbin",
        }

    def __enter__(self) -> Self:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        ports = dict(
            zip(
                ("controller", "first", "second"),
                (it.getsockname()[1] for it in sockets),
                strict=True,
            )
        )
        for it in sockets:
            it.close()
        munge = self.folder / "munge"
        for folder in (self.folder / "state", munge):
            folder.mkdir()
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        for gpu in ("gpu0", "gpu1"):
            (self.folder / gpu).touch()
        (self.folder / "slurm.conf").write_text(CONFIG.format(folder=self.folder, **ports))
        (self.folder / "gres.conf").write_text(
            f"NodeName=n[0-1] Name=gpu File={self.folder}/gpu[0-1]\n"
        )
        files = {
            "socket": "socket",
            "key-file": "key",
            "log-file": "log",
            "pid-file": "pid",
            "seed-file": "seed",
        }
        self._start(
            "munged",
            "--foreground",
            "--force",
            *(f"--{name}={munge}/{files[name]}" for name in files),
        )
        wait_for((munge / "socket").exists, self.daemons)
        self._start("slurmctld", "-D")
        for node in ("n0", "n1"):
            self._start("slurmd", "-D", "-N", node)
        wait_for(
            lambda: self.run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle", "idle"],
            self.daemons,
        )
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait(LIMIT_S)

    def _start(self, *command: str) -> None:
        with (self.folder / f"{len(self.daemons)}.log").open("wb") as log:
            self.daemons.append(
                subprocess.Popen(
                    command,
                    env=self.environment,
                    stdout=log,
                    stderr=log,
                )
            )

    def run(
        self,
        *command: str,
        cwd: Path | None = None,
        **changes: str,
    ) -> str:
        """Return what a command of SLURM prints."""
        done = subprocess.run(
            command,
            cwd=cwd,
            env=self.environment | changes,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def state(self, job: str) -> str:
        """Return the state of a job, such as PENDING."""
        found = re.search(
            r"JobState=(\w+)",
            self.run(
                "scontrol",
                "show",
                "job",
                job,
            ),
        )
        return found[1] if found else ""


def wait_for(
    condition: Callable[[], bool], running: list[subprocess.Popen[bytes]], seconds: float = LIMIT_S
) -> None:
    """Wait until a condition holds, as long as some processes run."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        assert all(it.poll() is None for it in running), (
            f"{[it.args for it in running if it.poll() is not None]}"
        )
        time.sleep(0.1)
