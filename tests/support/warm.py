"""Python commands in forks of one process that has imported torch and the frameworks, as that takes seconds.

Only where the start itself is not what is tested.
"""

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

PRELOADED = ["torch", "torch._dynamo", "lightning.pytorch", "accelerate", "jsonargparse", "sklearn.datasets"]


def run_python(
    folder: Path, *command: str, ranks: int = 1, nodes: int = 1, timeout_s: float = 300, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run `python COMMAND` in a rendered project, whose package is found without being installed.

    Several ranks have the environment that torchrun would give them on that many nodes; what they print is put
    together.
    """
    here = ranks // nodes
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    shared |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(here)} | changes
    with tempfile.TemporaryDirectory() as outputs, mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        processes = [
            context.Process(
                target=_run,
                args=(
                    folder,
                    command,
                    shared | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank % here}", "GROUP_RANK": f"{rank // here}"},
                    outputs,
                ),
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout_s)
            process.kill()
            process.join()
        stdout, stderr = (
            "".join(Path(outputs, f"{stream}-{rank}").read_text() for rank in range(ranks)) for stream in (1, 2)
        )
    status = next((process.exitcode for process in processes if process.exitcode), 0)
    return subprocess.CompletedProcess(command, status, stdout, stderr)


def _run(folder: Path, command: tuple[str, ...], environment: dict[str, str], outputs: str) -> None:
    os.environ |= environment
    for stream in (1, 2):
        file = os.open(f"{outputs}/{stream}-{environment['RANK']}", os.O_CREAT | os.O_WRONLY)
        os.dup2(file, stream)
        os.close(file)
    os.chdir(folder)
    sys.path.insert(0, str(folder / "src"))
    if command[0] == "-m":
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        runpy.run_path(command[0], run_name="__main__")
