"""Run `fastproj` in forks of this process, which has imported it and copier.

Each line of stdin is a request, the arguments of `run` and `timeout_s`; the answer is the exit
status or `null`.
"""

import contextlib
import json
import os
import resource
import runpy
import signal
import sys
import time
import traceback
from importlib import import_module
from typing import Any, NoReturn

from fastproj.__main__ import main

MODULES = [
    "cli",
    "show",
    "creating.hardware",
    "creating.project",
    "template.clone",
    "updating.components",
]
MODULES += ["updating.apply", "updating.update"]
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def run(
    arguments: list[str], cwd: str, environment: dict[str, str], outputs: list[str], memory: int
) -> NoReturn:
    """Do what a new process would, and exit.

    A first argument that ends in `.py` is a program to run instead.
    """
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, file in enumerate(
        [os.open(os.devnull, os.O_RDONLY), *(os.open(path, FLAGS) for path in outputs)]
    ):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0)  # noqa: SIM115
    sys.stdout = open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w")  # noqa: SIM115
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    status: Any = 1
    try:
        if arguments[:1] and arguments[0].endswith(".py"):
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
        sys.argv[1:] = arguments
        main()
    except SystemExit as error:
        status = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def wait(child: int, timeout_s: float) -> int | None:
    """Return the exit status of a process, or end it and its children if it takes longer."""
    deadline = time.monotonic() + timeout_s
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.003)
    return os.waitstatus_to_exitcode(ended[1])


for module in ["copier", *(f"fastproj.{it}" for it in MODULES)]:
    import_module(module)
for line in sys.stdin:
    request = json.loads(line)
    timeout_s = request.pop("timeout_s")
    if (process := os.fork()) == 0:
        run(**request)
    print(json.dumps(wait(process, timeout_s)), flush=True)
