"""`fastproj new` interrupted, killed, or run twice at once: the project is complete or absent."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from matrix import EVERY
from program import LIMIT_S, PROGRAMS
from updating import git


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGKILL,
    ],
)
def test_signal_leaves_a_complete_project_or_none(
    number: signal.Signals, environment: dict[str, str], tmp_path: Path
) -> None:
    delays = [0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.1, 1.3]
    for attempt, delay in enumerate(delays if EVERY else delays[2::3]):
        output = tmp_path / str(attempt)
        (output / "tmp").mkdir(parents=True)
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fastproj",
                "new",
                "proj",
                "--yes",
                "--output",
                str(output),
            ],
            env=environment | {"TMPDIR": str(output / "tmp")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        time.sleep(delay)
        process.send_signal(number)
        _, message = process.communicate(timeout=LIMIT_S)
        if (output / "proj").exists():
            assert git(output / "proj", "status", "--porcelain") == ""
            assert (output / "proj/src/proj/train.py").is_file()
        if number == signal.SIGKILL:
            continue
        assert process.returncode in (0, 128 + number, -number), message
        # Before the program begins, while it is imported, an interrupt is Python's own to tell.
        assert "Traceback" not in message or "in main\n" not in message, message
        told = "fastproj: interrupted; no incomplete project is left\n"
        assert process.returncode <= 0 or message.endswith(told)
        assert {path.name for path in output.iterdir()} <= {"tmp", "proj"}
        assert list((output / "tmp").iterdir()) == []


def test_two_at_once_create_one_complete_project(
    environment: dict[str, str], tmp_path: Path
) -> None:
    both = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fastproj",
                "new",
                "proj",
                "--yes",
                "--output",
                str(tmp_path),
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    messages = [process.communicate(timeout=LIMIT_S)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 1], messages
    assert [path.name for path in tmp_path.iterdir()] == ["proj"]
    assert git(tmp_path / "proj", "status", "--porcelain") == ""


def interrupted(name: str, environment: dict[str, str], cwd: Path) -> tuple[int, str]:
    """Run a program that interrupts itself: the number of its lines, and those that left traces."""
    program = [sys.executable, str(PROGRAMS / name), str(signal.SIGTERM.value)]
    done = subprocess.run(
        program, env=environment, cwd=cwd, capture_output=True, text=True, check=True
    )
    lines, left = done.stdout.split(maxsplit=1)
    return int(lines), left


def test_signal_at_each_line_leaves_no_scratch_folder(
    environment: dict[str, str], tmp_path: Path
) -> None:
    lines, left = interrupted("interrupt_everywhere.py", environment, tmp_path)
    assert (lines > 20, left) == (True, "[]\n")


def test_signal_at_each_line_leaves_no_git_running(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """One that goes on creates the scratch folder again."""
    lines, left = interrupted("interrupt_git.py", environment, tmp_path)
    assert (lines > 100, left) == (True, "[]\n")


def test_signal_at_each_line_of_an_import_leaves_it_usable(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """An exception there kept a lock of importlib, for which another thread waits for ever."""
    lines, harmed = interrupted("interrupt_import.py", environment, tmp_path)
    assert (lines > 50, harmed) == (True, "[]\n")


def test_ignored_hangup_stays_ignored(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [
            "nohup",
            sys.executable,
            str(PROGRAMS / "interrupt_itself.py"),
            str(signal.SIGHUP.value),
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "not interrupted\n"), done.stderr
