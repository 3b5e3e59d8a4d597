"""An update that is interrupted leaves the project unchanged or updated, and the next update succeeds."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from matrix import EVERY
from program import Fastproj
from updating import MakeProject, commit, edit, git, journal, project_state, read_files, stop_update

ENGINE = "src/proj/engine.py"


@pytest.fixture(scope="module")
def updated_once(
    render_release: MakeProject, fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, tuple[object, ...], float]:
    """A project with an edit and an untracked file, its state after an update, and the seconds that took."""
    folder = shutil.copytree(render_release("v0.1.0"), tmp_path_factory.mktemp("edited") / "proj", symlinks=True)
    edit(folder / ENGINE, "return 20\n", "return 20 + 1  # mine\n")
    commit(folder)
    (folder / "scratch.txt").write_text("mine, never added\n")
    before, start = project_state(folder), time.monotonic()
    result = fastproj("update", "--yes", cwd=folder)
    length = time.monotonic() - start
    assert result.returncode == 0, result.stderr
    updated = project_state(folder)
    git(folder, "reset", "-q", "--hard")
    assert project_state(folder) == before
    return folder, updated, length


@pytest.fixture
def edited(updated_once: tuple[Path, tuple[object, ...], float], tmp_path: Path) -> Path:
    """A copy of that project."""
    return shutil.copytree(updated_once[0], tmp_path / "proj", symlinks=True)


@pytest.fixture
def updated(updated_once: tuple[Path, tuple[object, ...], float]) -> tuple[object, ...]:
    """The state after an uninterrupted update."""
    return updated_once[1]


POINTS = [
    ("_stage", 1),
    ("record", 1),
    ("_lock", 1),
    *(("replace", calls) for calls in ((1, 4, 8, 12) if EVERY else (1, 8))),
]
# Also between moving an old file out and the new one in.
POINTS += [("fingerprint", calls) for calls in (range(27, 35) if EVERY else (28, 31, 34))]
FAILING = [("_stage", "1"), ("record", "1"), ("replace", "1"), ("replace", "7"), ("replace", "12")]


@pytest.mark.parametrize(("name", "calls"), POINTS)
def test_kill_at_each_step_is_recovered(
    name: str,
    calls: int,
    edited: Path,
    updated: tuple[object, ...],
    fastproj: Fastproj,
    environment: dict[str, str],
) -> None:
    before = project_state(edited)
    result = stop_update(environment, edited, name, str(calls), "SIGKILL")
    assert result.returncode == -signal.SIGKILL
    recorded = journal(edited)
    assert recorded == (name != "_stage")
    halfway = read_files(edited)
    for path, content in halfway.items():
        assert content in (before[0].get(path), updated[0].get(path)), path  # type: ignore[attr-defined]
    result = fastproj("update", "--yes", cwd=edited)
    assert (result.returncode, "update --continue" in result.stderr) == ((1, True) if recorded else (0, False))
    assert read_files(edited) == (halfway if recorded else updated[0])
    aborted = shutil.copytree(edited, edited.parent / "aborted", symlinks=True)
    if recorded:
        result = fastproj("update", "--continue", cwd=edited)
        assert result.stdout.startswith("Finished the interrupted update to v0.3.0"), result.stderr
        result = fastproj("update", "--abort", cwd=aborted)
        assert result.stdout.startswith("Aborted the update to v0.3.0"), result.stderr
        assert project_state(aborted) == before
        assert not journal(aborted)
    assert project_state(edited) == updated
    assert not (edited / ".git/fastproj").exists()
    assert not (edited / ".git/index.lock").exists()
    if (name, calls) == POINTS[-1]:
        commit(edited)
        assert "is up to date" in fastproj("update", "--yes", cwd=edited).stdout


def test_changes_after_a_kill_are_kept(edited: Path, fastproj: Fastproj, environment: dict[str, str]) -> None:
    assert stop_update(environment, edited, "_lock", "1", "SIGKILL").returncode == -signal.SIGKILL
    (edited / "README.md").write_text("changed after the kill\n")
    (edited / "docs").mkdir()
    (edited / "docs/new.md").write_text("made after the kill\n")
    result = fastproj("update", "--continue", cwd=edited)
    assert result.returncode == 0, result.stderr
    assert "kept, as you changed it since: README.md" in result.stdout
    assert "kept, as you changed it since: docs/new.md" in result.stdout
    assert (edited / "README.md").read_text() == "changed after the kill\n"
    assert (edited / "docs/new.md").read_text() == "made after the kill\n"
    assert (edited / "src/proj/train.py").is_file()


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"] if EVERY else ["SIGTERM"])
@pytest.mark.parametrize("point", [("_stage", "1"), ("replace", "3")], ids=lambda point: point[0])
def test_signal_aborts_before_applying_and_waits_during_it(
    number: str, point: tuple[str, str], edited: Path, updated: tuple[object, ...], environment: dict[str, str]
) -> None:
    before = project_state(edited)
    result = stop_update(environment, edited, *point, number)
    if point[0] == "replace":
        assert result.returncode == 0, result.stderr
        assert project_state(edited) == updated
    else:
        assert result.returncode == 128 + getattr(signal, number)
        assert result.stderr == "fastproj: interrupted; nothing was changed\n"
        assert project_state(edited) == before
    assert not (edited / ".git/fastproj").exists()


@pytest.mark.parametrize("point", FAILING if EVERY else FAILING[1::2])
def test_failed_step_rolls_back(point: tuple[str, str], edited: Path, environment: dict[str, str]) -> None:
    before = project_state(edited)
    result = stop_update(environment, edited, *point, "fail")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "nothing was changed: free some space" in result.stderr
    assert project_state(edited) == before
    assert not (edited / ".git/fastproj").exists()
    assert not (edited / ".git/index.lock").exists()


@pytest.mark.parametrize("limit", [0, 300, 1_500, 4_000] if EVERY else [0, 1_500])
def test_full_disk_changes_nothing(limit: int, edited: Path, environment: dict[str, str], tmp_path: Path) -> None:
    before = project_state(edited)
    (tmp_path / "tmp").mkdir()
    result = subprocess.run(
        [sys.executable, "-m", "fastproj", "update", "--yes"],
        cwd=edited,
        env=environment | {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(tmp_path / "tmp")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stdout
    assert result.stderr.count("\n") == 1, result.stderr
    assert project_state(edited) == before
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_at_random_moments(
    number: signal.Signals,
    edited: Path,
    updated_once: tuple[Path, tuple[object, ...], float],
    fastproj: Fastproj,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """In `make test-all` seventeen per signal: 51 moments in all."""
    before = project_state(edited)
    _, updated, length = updated_once
    chance, moments = random.Random(number), 17 if EVERY else 5  # noqa: S311
    (tmp_path / "tmp").mkdir()
    outcomes = {"as it was": 0, "whole": 0, "pending": 0}
    for moment in range(moments):
        process = subprocess.Popen(
            [sys.executable, "-m", "fastproj", "update", "--yes"],
            cwd=edited,
            env=environment | {"TMPDIR": str(tmp_path / "tmp")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        time.sleep((moment + chance.random()) / moments * length * 1.05)
        process.send_signal(number)
        _, message = process.communicate(timeout=60)
        recorded = journal(edited)
        state = project_state(edited)
        if recorded:
            outcomes["pending"] += 1
        else:
            assert state in (before, updated)
            outcomes["whole" if state == updated else "as it was"] += 1
        if number != signal.SIGKILL:
            assert not recorded
            assert process.returncode in (0, 128 + number, -number), message
            # Python itself drops what a signal raises inside of some of its callbacks, and says so.
            # And before the program begins, while it is imported, an interrupt is Python's own to tell.
            untold = "Traceback" not in message or message.startswith("Exception ignored") or "in main\n" not in message
            assert untold, message
            assert list((tmp_path / "tmp").iterdir()) == []
            assert not (edited / ".git/fastproj").exists()
        if recorded or (state != updated and moment % 16 == 2):
            result = fastproj("update", "--continue" if recorded else "--yes", cwd=edited)
            assert result.returncode == 0, result.stderr
            assert project_state(edited) == updated
        git(edited, "reset", "-q", "--hard")
        assert not os.path.lexists(edited / ".git/index.lock")
        assert project_state(edited) == before
    print(number.name, outcomes)
    assert outcomes["as it was"] >= (3 if EVERY else 1)
