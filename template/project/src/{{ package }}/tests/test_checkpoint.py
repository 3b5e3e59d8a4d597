"""Checkpoints are complete or skipped, and never run code."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from .. import checkpoint, errors, resume, run_lock
from ..config import CheckpointConfig
from ..distributed import World
from ..errors import UserError
from ..faults import saving
from ..run_lock import locked
from ..tools.run_record import read_run
from .conftest import PACKAGE

WEIGHTS = {"w": torch.arange(1000.0)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with two intact checkpoints."""
    for step in (1, 2):
        save(tmp_path, step)
    return tmp_path


def save(run: Path, step: int, best: int = 0, keep: int = 2) -> None:
    alone = World(0, 1, torch.device("cpu"))
    state = {"model": WEIGHTS, "step": step}
    about = {"fixed": {"width": 8}, "config": {}, "metrics": {}}
    saving.save(run / "checkpoints", state, about, CheckpointConfig(keep=keep), best, alone)


def test_newest_checkpoint_is_found_and_read(run: Path) -> None:
    found = checkpoint.find(run)
    assert found is not None
    assert checkpoint.read_manifest(found)["step"] == 2
    assert torch.equal(checkpoint.read_state(found)["model"]["w"], WEIGHTS["w"])
    assert checkpoint.find(run / "checkpoints" / "step-00000001") == run / "checkpoints" / "step-00000001"


def test_old_checkpoints_are_pruned(run: Path) -> None:
    save(run, 3)
    assert sorted(os.listdir(run / "checkpoints")) == ["step-00000002", "step-00000003"]


def test_best_checkpoint_is_kept_and_linked(run: Path) -> None:
    for step in range(3, 7):
        save(run, step, best=3)
    assert sorted(os.listdir(run / "checkpoints")) == ["best", "step-00000003", "step-00000005", "step-00000006"]
    assert checkpoint.find(run / "checkpoints" / "best") == run / "checkpoints" / "step-00000003"
    save(run, 7, best=7, keep=1)
    assert sorted(os.listdir(run / "checkpoints")) == ["best", "step-00000007"]


def test_best_is_a_checkpoint_of_its_folder(run: Path) -> None:
    """Whatever the file names."""
    for name in ("..", ".", "", "step-00000001/..", "/tmp", "step-00000001"):  # noqa: S108
        (run / "checkpoints/best").write_text(name)
        assert (checkpoint.best_of(run / "checkpoints") is not None) == (name == "step-00000001")


def test_folder_named_best_is_set_aside(run: Path) -> None:
    """As someone may have made it by copying a checkpoint. It can be read, too."""
    shutil.copytree(run / "checkpoints/step-00000001", run / "checkpoints/best")
    resume.set_aside_after(2, run)
    assert checkpoint.find(run / "checkpoints/best") == run / "checkpoints/best"
    save(run, 3, best=3)
    assert sorted(os.listdir(run / "checkpoints")) == ["abandoned-best", "best", "step-00000002", "step-00000003"]
    assert checkpoint.find(run / "checkpoints/best") == run / "checkpoints/step-00000003"


def test_manifest_without_a_checksum_is_read(run: Path) -> None:
    """As version 0.3 wrote them."""
    newest = run / "checkpoints/step-00000002"
    edit(newest, lambda text: json.dumps({name: kept for name, kept in json.loads(text).items() if name != "sha256"}))
    assert checkpoint.find(run) == newest


def test_damaged_rows_are_left_out_with_a_warning(tmp_path: Path) -> None:
    rows = [json.dumps({"split": "train", "step": step, "loss": 1.0}) for step in (1, 2, 3)]
    file = tmp_path / "metrics.jsonl"
    file.write_bytes("\n".join([rows[0], "[1]", '{"step": "x"}', rows[1], rows[2], rows[2][:9]]).encode() + b"\xff")
    with pytest.warns(UserWarning, match="2 lines of .*metrics.jsonl are damaged, and left out"):
        resume.drop_rows_after(2, file, True)
    assert file.read_text() == "".join(f"{row}\n" for row in rows[:2])
    assert resume.resumed_after(tmp_path) == [2]
    for step, after in ((2, [2]), (1, [1]), (0, [])):
        resume.drop_rows_after(step, file, True)
        assert resume.resumed_after(tmp_path) == after
    file.write_bytes(rows[0].encode() + b"\n\xff\n{}\n")
    with pytest.warns(UserWarning, match="2 lines of .*metrics.jsonl are damaged, and left out"):
        assert [row["step"] for row in read_run(tmp_path).rows] == [1]


def test_best_is_updated_when_its_checkpoint_is_set_aside(run: Path) -> None:
    save(run, 3, best=3)
    resume.set_aside_after(2, run)
    assert sorted(os.listdir(run / "checkpoints")) == ["abandoned-step-00000003", "step-00000002"]
    save(run, 3, best=2)
    assert (run / "checkpoints" / "best").read_text() == "step-00000002\n", "the best before is named again"


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": lambda folder: flip(folder / "state.pt"),
    "truncated": lambda folder: os.truncate(folder / "state.pt", 100),
    "empty": lambda folder: os.truncate(folder / "state.pt", 0),
    "missing": lambda folder: (folder / "state.pt").unlink(),
    "manifest gone": lambda folder: (folder / "manifest.json").unlink(),
    "manifest cut": lambda folder: os.truncate(folder / "manifest.json", 20),
    "manifest edited": lambda folder: edit(folder, lambda text: text.replace('"width": 8', '"width": 9')),
    "manifest without files": lambda folder: edit(folder, lambda _: '{"files": [], "step": 2}'),
    "manifest of a list": lambda folder: edit(folder, lambda _: "[1, 2]"),
}


def edit(folder: Path, change: Callable[[str], str]) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(change(manifest.read_text()))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_skipped_with_a_warning(run: Path, damage: str) -> None:
    DAMAGES[damage](run / "checkpoints" / "step-00000002")
    with pytest.warns(UserWarning, match="skipping the damaged checkpoint .*step-00000002"):
        assert checkpoint.find(run) == run / "checkpoints" / "step-00000001"


def test_disk_that_fails_is_no_damage(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))

    monkeypatch.setattr(checkpoint, "fingerprint", fail)
    with pytest.raises(UserError, match="cannot read .*step-00000002/state.pt .Input/output error.: try again"):
        checkpoint.find(run)


def test_checkpoint_of_another_model_names_the_difference(run: Path) -> None:
    found = run / "checkpoints" / "step-00000002"
    fixed = checkpoint.read_manifest(found)["fixed"]
    resume.check_same(found, fixed, {"width": 8})
    with pytest.raises(UserError, match="width is 8 there and 16 here"):
        resume.check_same(found, fixed, {"width": 16})
    with pytest.raises(UserError, match="is of another model"):
        checkpoint.load_weights(torch.nn.Linear(2, 2), WEIGHTS, found)


def test_full_disk_keeps_older_checkpoints(run: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(UserError, match="cannot save .*step-00000003"):
            save(run, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoint.find(run) == run / "checkpoints" / "step-00000002"
    assert sorted(os.listdir(run / "checkpoints")) == ["step-00000001", "step-00000002"]


def test_warnings_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    errors.short_warnings()
    shown = [warnings.formatwarning("a\n b", kind, "file", 1, "code") for kind in (UserWarning, FutureWarning)]
    assert shown == ["warning: a b\n", "FutureWarning: a b\n"]


class Hostile:
    """Touches a file when unpickled."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.file, "w")


def test_hostile_checkpoint_runs_no_code(run: Path) -> None:
    folder = run / "checkpoints" / "step-00000002"
    torch.save({"model": Hostile(str(run / "touched"))}, folder / "state.pt")
    manifest = checkpoint.read_manifest(folder)
    manifest["files"] = {"state.pt": checkpoint.fingerprint(folder / "state.pt")}
    (folder / "manifest.json").write_text(saving.sealed(manifest))
    with pytest.raises(UserError, match="cannot load"):
        checkpoint.read_state(folder)
    assert not (run / "touched").exists()


HOLD = """
import json, signal, sys
from pathlib import Path
from {} import run_lock

run_lock.BEAT_SECONDS = 0.05
with run_lock.locked(Path(sys.argv[1])):
    if len(sys.argv) > 2:
        Path(sys.argv[1], ".lock").write_text(json.dumps(dict(pid=1, host=sys.argv[2])))
    print("held", flush=True)
    signal.pause()
"""


@pytest.fixture
def hold_the_lock() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Hold a run's lock in another process, which names another host if one is given, until it is killed."""
    with ExitStack() as started:

        def hold(*arguments: str | Path) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", HOLD.format(PACKAGE), *map(str, arguments)]
            holder = started.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            started.callback(holder.kill)
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            return holder

        yield hold


def test_run_is_locked_until_its_process_is_killed(run: Path, hold_the_lock: Callable[..., Any]) -> None:
    holder = hold_the_lock(run)
    with pytest.raises(UserError, match=rf"is in use by process {holder.pid} on .*: wait for it"), locked(run):
        pass
    holder.kill()
    holder.wait()
    with locked(run):
        assert (run / ".lock").read_text()
        with pytest.raises(UserError, match="is in use by this process"), locked(run):
            pass
    assert (run / ".lock").read_text() == ""


def test_lock_of_another_machine_holds_while_it_is_touched(
    run: Path, hold_the_lock: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By closing the file, the holder has released the lock of this machine. A folder that is gone is no error."""
    monkeypatch.setattr(run_lock, "BEAT_SECONDS", 0.05)
    holder = hold_the_lock(run, "elsewhere")
    with pytest.raises(UserError, match="is in use by process 1 on elsewhere"), locked(run):
        pass
    holder.kill()
    holder.wait()
    with locked(run):
        shutil.rmtree(run)
        time.sleep(0.15)
