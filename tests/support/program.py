"""The program as tests run it, and commands in a rendered project."""

import atexit
import fcntl
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from matrix import EVERY, ROOT

PROGRAMS = Path(__file__).with_name("programs")
"""Programs that tests start in processes of their own."""
Done = subprocess.CompletedProcess[str]


Fastproj = Callable[..., Done]
"""Runs the program, and checks its exit status: `status=0`, or `None` for any.

The fixture `fastproj` gives it.
"""


def checked(result: Done, status: int | None) -> Done:
    """Check an exit status, and that an error is one line."""
    printed = result.stdout + result.stderr
    assert status in (None, result.returncode), f"{result.returncode}: {printed}"
    assert status not in (1, 2) or result.stderr.count("\n") == 1, printed
    return result


@contextmanager
def once(folder: Path) -> Iterator[bool]:
    """Hold a lock of all workers, and say whether a folder is to be made."""
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not folder.exists()


def render_once(
    fastproj: Fastproj,
    place: Path,
    name: str,
    *answers: str,
) -> Path:
    """Render a project in a folder, once for all workers."""
    place.mkdir(exist_ok=True)
    with once(place / name) as first:
        if first:
            fastproj("new", name, *answers, "--yes", "--output", str(place))
    return place / name


Project = Callable[..., Path]
"""Renders a combination of framework, model and hardware; the fixture `project` gives it."""


LIMIT_S = 300.0
"""Seconds after which a process hangs, also on a machine that is busy with other work."""


def run_in(
    folder: Path,
    *command: str,
    status: int | None = 0,
    **changes: str,
) -> Done:
    """Run a command in a rendered project; pytest's own limit ends it if it hangs."""
    with started(folder, *command, **changes) as process:
        stdout, stderr = process.communicate()
    done = subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
    assert status in (None, done.returncode), f"{done.returncode}: {stdout}{stderr}"
    return done


@contextmanager
def started(
    folder: Path,
    *command: str,
    **changes: str,
) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a rendered project, whose package is found without being installed.

    The end of the context ends it, with all that it has started.
    """
    search = {"PYTHONPATH": str(folder / "src"), "PYTHON": sys.executable}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | search | changes,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        end(process)


def finish(process: subprocess.Popen[str], limit_s: float = LIMIT_S) -> tuple[str, str]:
    """Wait until a process ends, and return its output; end it if it hangs."""
    try:
        return process.communicate(timeout=limit_s)
    except BaseException:
        end(process)
        raise


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process and its process group.

    Wait until ranks, which are in sessions of their own, notice it.
    """
    with suppress(
        ProcessLookupError
    ):  # no process of the group is left, or it has no group of its own
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe and not pipe.closed]
    if pipes:
        with suppress(subprocess.TimeoutExpired):
            # until the last process that may write to them has ended
            process.communicate(timeout=60)
    process.wait()


def is_running(process: int) -> bool:
    """Whether a process, by its ID, runs and has not ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False


AT_EXIT = """
import atexit, os, pathlib, sys

def check():
    threads = [file.read_text().strip() for file in pathlib.Path("/proc/self/task").glob("*/comm")]
    if "pt_gloo_runloop" in threads:
        print("threads of the process group outlive it:", threads, file=sys.stderr, flush=True)
        os._exit(9)

atexit.register(check)
"""
"""A `sitecustomize.py` for tests: such threads abort the end of Python now and then."""


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the content of each file outside git's folder."""
    files = [file for file in folder.rglob("*") if file.is_file() and ".git" not in file.parts]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def run_on_full_device(
    folder: Path, environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run the program in a folder, with a stdout to which nothing can be written."""
    with open("/dev/full", "w") as full:
        return subprocess.run(
            [sys.executable, "-m", "fastproj", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )


def run_fastproj(
    arguments: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    timeout_s: float = LIMIT_S,
    memory: int = 0,
    prefix: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run the program, or a file of `programs/` that does, in a process of its own.

    It is a fork of one that has imported copier, which takes half the time of most commands. Python
    starts for other settings of Python's, for a command with a prefix, and in `make test-all`.

    Raises:
        subprocess.TimeoutExpired: it took longer, and was killed.
    """
    if EVERY or prefix or _of_python(environment) != _of_python(os.environ):
        command = [
            *prefix,
            sys.executable,
            *([] if arguments[:1] and arguments[0].endswith(".py") else ["-m", "fastproj"]),
        ]
        with subprocess.Popen(
            [*command, *arguments],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)))
            if memory
            else None,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)
    server = _server()
    assert server.stdin
    assert server.stdout
    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"{folder}/out", f"{folder}/err"]
        request = {
            "arguments": arguments,
            "cwd": str(cwd),
            "environment": dict(environment),
            "outputs": outputs,
        }
        print(
            json.dumps(request | {"timeout_s": timeout_s, "memory": memory}),
            file=server.stdin,
            flush=True,
        )
        status = json.loads(server.stdout.readline())
        stdout, stderr = (Path(output).read_text(errors="replace") for output in outputs)
    if status is None:
        raise subprocess.TimeoutExpired(["fastproj", *arguments], timeout_s, stdout, stderr)
    return subprocess.CompletedProcess(["fastproj", *arguments], status, stdout, stderr)


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Python reads when it starts."""
    return {
        key: value
        for key, value in environment.items()
        if key.startswith(("LANG", "LC_", "PYTHON"))
    }


@cache
def _server() -> subprocess.Popen[str]:
    """Start the process that is forked; it ends with its stdin."""
    server = [sys.executable, str(PROGRAMS / "serve_fastproj.py")]
    started = subprocess.Popen(
        server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    atexit.register(started.communicate)
    return started


def documented_keys(command: str) -> set[str]:
    """Return the keys of a command in the table of the docs; without those of inner objects."""
    page = (ROOT / "docs/reference/commands.md").read_text()
    rows = re.findall(
        r"^\| (`.*?) \| (`.*) \|$",
        page.partition("## JSON")[2],
        re.MULTILINE,
    )
    (keys,) = [keys for names, keys in rows if f"`{command}`" in names]
    outer = re.sub(r"\([^)]*\)|, each with[^;]*|, as in [^,]*", "", keys)
    return set(re.findall(r"`(\w+)`", outer))
