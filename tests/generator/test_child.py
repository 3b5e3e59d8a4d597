"""The process in which templates are rendered: its limits, its errors and its end."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fastproj.shared import child
from fastproj.shared.child import in_child
from fastproj.shared.errors import FastprojError, UsageError


def endless() -> None:
    while True:
        pass


def fail(error: Exception) -> Callable[[], None]:
    def task() -> None:
        raise error

    return task


def test_result_and_errors_arrive() -> None:
    assert in_child(lambda: {"a": [1]}) == {"a": [1]}
    assert in_child(os.getpid) != os.getpid()
    for error in (FastprojError("wrong"), UsageError("wrong"), OSError(28, "No space left on device", "x")):
        with pytest.raises(type(error)) as raised:
            in_child(fail(error))
        assert str(raised.value) == str(error)
    with pytest.raises(FastprojError, match="KeyError: 'x'"):
        in_child(fail(KeyError("x")))


def test_time_memory_and_files_are_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits = child.LIMITS | {resource.RLIMIT_CPU: 1, resource.RLIMIT_FSIZE: 1000}
    monkeypatch.setattr(child, "LIMITS", limits)
    with pytest.raises(FastprojError, match="could not be rendered in 1 s"):
        in_child(endless)
    with pytest.raises(FastprojError, match="more than 2 GiB of memory"):
        in_child(lambda: len("x" * (3 << 30)))
    with pytest.raises(OSError, match="File too large"):
        in_child(lambda: (tmp_path / "x").write_bytes(bytes(2000)))


INTERRUPTED = """
import os, subprocess, time
from fastproj.shared.child import in_child
killer = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -INT {os.getpid()}"])
start = time.monotonic()
try:
    in_child(lambda: time.sleep(60))
except KeyboardInterrupt:
    killer.wait()
    print("interrupted", time.monotonic() - start < 30)
try:
    os.wait()
except ChildProcessError:
    print("no child is left")
"""


def test_child_ends_with_an_interrupt(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.stderr) == ("interrupted True\nno child is left\n", "")
