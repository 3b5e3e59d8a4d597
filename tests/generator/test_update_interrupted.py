"""An update that a signal, a full disk or a kill interrupts loses nothing."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from matrix import EVERY
from program import LIMIT_S, Fastproj
from updating import MakeProject, commit, edit, git, project_state, read_files

ENGINE = "src/proj/engine.py"


@pytest.fixture(scope="module")
def updated_once(
    render_release: MakeProject, fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, tuple[object, ...], float]:
    """A project with an edit and an untracked file, its state after an update, and its seconds."""
    folder = shutil.copytree(
        render_release("v0.1.0"), tmp_path_factory.mktemp("edited") / "proj", symlinks=True
    )
    edit(folder / ENGINE, "return 20\n", "return 20 + 1  # mine\n")
    commit(folder)
    (folder / "scratch.txt").write_text("mine, never added\n")
    before = project_state(folder)
    start = time.monotonic()
    fastproj("update", cwd=folder)
    length = time.monotonic() - start
    updated = project_state(folder)
    git(folder, "reset", "-q", "--hard")
    assert project_state(folder) == before
    return folder, updated, length


@pytest.fixture
def edited(updated_once: tuple[Path, tuple[object, ...], float], tmp_path: Path) -> Path:
    """A copy of that project."""
    (tmp_path / "tmp").mkdir()
    return shutil.copytree(updated_once[0], tmp_path / "proj", symlinks=True)


@contextmanager
def updating(
    folder: Path, environment: dict[str, str], limit: int = -1
) -> Iterator[subprocess.Popen[str]]:
    """Start an update in a process group of its own, with at most `limit` bytes per file."""
    with subprocess.Popen(
        [sys.executable, "-m", "fastproj", "update"],
        cwd=folder,
        env=environment | {"TMPDIR": str(folder.parent / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process


def recover(folder: Path, before: tuple[object, ...]) -> None:
    """Do what the documentation says about a kill."""
    (folder / ".git/index.lock").unlink(missing_ok=True)
    git(folder, "reset", "-q", "--hard")
    git(folder, "clean", "-qfdx", "-e", "scratch.txt")
    assert project_state(folder) == before


@pytest.fixture
def writing(edited: Path) -> Path:
    """A file that appears when git writes the first file of the update.

    It waits for another one.
    """
    marker = edited.parent / "writing"
    git(edited, "config", "filter.slow.clean", "cat")
    git(
        edited,
        "config",
        "filter.slow.smudge",
        # not where the undo is tried on a copy
        f'if [ "$PWD" = "{edited}" ]; then touch {marker}; '
        f"until [ -e {marker}.ends ]; do sleep 0.01; done; fi; cat",
    )
    (edited / ".git/info").mkdir(exist_ok=True)
    (edited / ".git/info/attributes").write_text("README.md filter=slow\n")
    return marker


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ],
)
def test_signal_while_git_writes_waits_for_the_end(
    number: signal.Signals,
    edited: Path,
    writing: Path,
    updated_once: tuple[Path, tuple[object, ...], float],
    environment: dict[str, str],
) -> None:
    """Also for git, which Ctrl-C in a terminal reaches too."""
    with updating(edited, environment) as process:
        while not writing.exists():
            time.sleep(0.01)
        os.killpg(process.pid, number)
        writing.with_name("writing.ends").touch()
        output, message = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, message) == (0, "")
    assert output.startswith("Updated")
    assert project_state(edited) == updated_once[1]
    assert list((edited.parent / "tmp").iterdir()) == []


def test_kill_while_git_writes_loses_nothing(
    edited: Path, writing: Path, environment: dict[str, str], fastproj: Fastproj
) -> None:
    before = project_state(edited)
    with updating(edited, environment) as process:
        while not writing.exists():
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    writing.with_name("writing.ends").touch()
    assert read_files(edited)["scratch.txt"] == ("-", b"mine, never added\n")
    assert "index.lock" in fastproj("update", cwd=edited, status=1).stderr
    recover(edited, before)
    fastproj("update", cwd=edited)
    assert "# mine" in (edited / ENGINE).read_text()


@pytest.mark.parametrize("limit", [0, 300, 1_500, 4_000] if EVERY else [0, 1_500])
def test_full_disk_changes_nothing(
    limit: int,
    edited: Path,
    environment: dict[str, str],
) -> None:
    before = project_state(edited)
    with updating(edited, environment, limit) as process:
        output, message = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output) == (1, "")
    assert message.count("\n") == 1, message
    assert project_state(edited) == before
    assert list((edited.parent / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGKILL,
    ],
)
def test_signals_at_random_moments(
    number: signal.Signals,
    edited: Path,
    updated_once: tuple[Path, tuple[object, ...], float],
    environment: dict[str, str],
) -> None:
    """In `make test-all` seventeen per signal: 51 moments in all."""
    before = project_state(edited)
    _, updated, length = updated_once
    chance = random.Random(number)  # noqa: S311
    moments = 17 if EVERY else 3
    outcomes = {"as it was": 0, "whole": 0, "partly": 0}
    for moment in range(moments):
        with updating(edited, environment) as process:
            time.sleep((moment + chance.random()) / moments * length * 1.2)
            process.send_signal(number)
            _, message = process.communicate(timeout=LIMIT_S)
        state = project_state(edited)
        outcomes["whole" if state == updated else "as it was" if state == before else "partly"] += 1
        if number != signal.SIGKILL:
            assert state in (before, updated)
            # Python itself drops what a signal raises inside of some of its callbacks, and says so.
            # And before the program begins, while it is imported, an interrupt is Python's own to
            # tell.
            of_python = message.startswith("Exception ignored") or "in main\n" not in message
            assert "Traceback" not in message or of_python, message
            assert process.returncode in (0, 128 + number, -number) or (
                "Traceback" in message and of_python
            ), message
            assert list((edited.parent / "tmp").iterdir()) == []
        recover(edited, before)
    print(number.name, outcomes)


def test_second_update_at_once_is_refused(
    edited: Path, writing: Path, environment: dict[str, str]
) -> None:
    with updating(edited, environment) as first:
        while not writing.exists():
            time.sleep(0.01)
        with updating(edited, environment) as second:
            output, message = second.communicate(timeout=LIMIT_S)
        writing.with_name("writing.ends").touch()
        assert first.communicate(timeout=LIMIT_S)[1] == ""
    assert (second.returncode, output) == (1, "")
    assert message.startswith(
        f"fastproj: another git is running in {edited}: wait for it, or remove"
    ), message
    assert first.returncode == 0


@pytest.mark.parametrize("place", [ENGINE, "docs/new.md"])
def test_file_that_is_saved_during_an_update_is_kept(
    place: str, edited: Path, fastproj: Fastproj, tmp_path: Path
) -> None:
    """In a file that the update changes, or where it adds one.

    The editor saves just before git writes.
    """
    (tmp_path / "bin").mkdir()
    save = f'mkdir -p "{(edited / place).parent}"; echo "# saved now" >> "{edited / place}"'
    script = f'#!/bin/sh\ncase " $* " in *" read-tree "*" -m "*) {save};; esac\n'
    script += f'exec {shutil.which("git")} "$@"\n'
    (tmp_path / "bin/git").write_text(script)
    (tmp_path / "bin/git").chmod(0o755)
    result = fastproj("update", cwd=edited, PATH=f"{tmp_path}/bin:{os.environ['PATH']}", status=1)
    assert "nothing was changed" in result.stderr
    assert (edited / place).read_text().endswith("# saved now\n")
    assert not git(edited, "diff", "--staged", "--name-only")
