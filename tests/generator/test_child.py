"""The process in which templates are rendered: its limits, its errors and its end."""

import os
import resource
import time
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
    with in_child(lambda: {"a": [1]}) as first, in_child(os.getpid) as second:
        assert (first(), second() != os.getpid()) == ({"a": [1]}, True)
    for error in (FastprojError("wrong"), UsageError("wrong"), OSError(28, "No space left on device", "x")):
        with pytest.raises(type(error)) as raised, in_child(fail(error)) as result:
            result()
        assert str(raised.value) == str(error)
    with pytest.raises(FastprojError, match="KeyError: 'x'"), in_child(fail(KeyError("x"))) as result:
        result()


def test_time_memory_and_files_are_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits = child.LIMITS | {resource.RLIMIT_CPU: 1, resource.RLIMIT_FSIZE: 1000}
    monkeypatch.setattr(child, "LIMITS", limits)
    with pytest.raises(FastprojError, match="could not be rendered in 1 s"), in_child(endless) as result:
        result()
    with (
        pytest.raises(FastprojError, match="more than 2 GiB of memory"),
        in_child(lambda: len("x" * (3 << 30))) as result,
    ):
        result()
    with (
        pytest.raises(OSError, match="File too large"),
        in_child(lambda: (tmp_path / "x").write_bytes(bytes(2000))) as result,
    ):
        result()


def test_child_ends_with_its_context() -> None:
    start = time.monotonic()
    with in_child(lambda: time.sleep(60)):
        pass
    assert time.monotonic() - start < 30
    with pytest.raises(ChildProcessError):
        os.wait()
