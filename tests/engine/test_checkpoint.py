"""Checkpoints: damage, full and read-only disks, two processes at once, older runs."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, Package, checkpoints, equal, rows, saved

SAME = ["--train.steps=9", "--train.eval_every=3", "--run.keep=10"]


def flip(file: Path) -> None:
    """Change one bit."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, Any] = {
    "one bit": lambda folder: flip(folder / "state.pt"),
    "cut off": lambda folder: os.truncate(folder / "state.pt", 1000),
    "empty": lambda folder: os.truncate(folder / "state.pt", 0),
    "no state": lambda folder: (folder / "state.pt").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "cut-off manifest": lambda folder: os.truncate(folder / "manifest.json", 20),
    "manifest of a list": lambda folder: (folder / "manifest.json").write_text("[]"),
    "binary manifest": lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_skipped_and_the_run_equals_an_undamaged_one(
    p: Package, tmp_path: Path, damage: str
) -> None:
    p.train_here(tmp_path, *SAME)
    whole = saved(tmp_path)
    written = rows(tmp_path)
    DAMAGES[damage](checkpoints(tmp_path)[-1])
    with pytest.warns(UserWarning, match="skipping the damaged checkpoint .*step-00000009"):
        p.train_here(tmp_path, *SAME)
    assert equal(saved(tmp_path), whole)
    assert rows(tmp_path) == written


@pytest.mark.parametrize(
    "left", ["rows", "some rows", "garbage in rows", "lock", "link", "partial", "best"]
)
def test_what_a_crash_or_a_user_left_does_not_stop_a_resume(
    p: Package, tmp_path: Path, left: str
) -> None:
    folder = tmp_path / "a"
    p.train_here(tmp_path, *SAME)
    whole = saved(tmp_path)
    written = rows(tmp_path)
    shutil.rmtree(checkpoints(tmp_path)[-1])
    log = folder / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    if left == "rows":
        log.unlink()
    elif left == "some rows":
        log.write_text("".join(lines[:3]) + lines[3][:20])
    elif left == "garbage in rows":
        log.write_text(
            "".join(
                [
                    *lines,
                    "[]\n",
                    "{}\n",
                    "1\n",
                    '{"step": null}\n',
                ]
            )
        )
    elif left == "lock":
        (folder / ".lock").write_text("garbage")
    elif left == "link":
        (folder / "checkpoints").rename(tmp_path / "elsewhere")
        (folder / "checkpoints").symlink_to(tmp_path / "elsewhere")
    elif left == "partial":
        (folder / "checkpoints/.partial").mkdir()
        (folder / "checkpoints/.partial/state.pt").write_text("half")
    else:
        (folder / "checkpoints/best.json").write_text("{")
    p.train_here(tmp_path, *SAME)
    assert equal(saved(tmp_path), whole)
    assert rows(tmp_path)[-4:] == written[-4:]
    assert not (folder / "checkpoints/.partial").exists()


def test_only_the_newest_checkpoints_and_the_best_one_are_kept(p: Package, tmp_path: Path) -> None:
    p.train_here(
        tmp_path, "--train.steps=12", "--train.eval_every=2", "--run.keep=2", "--optim.lr=3.0"
    )
    best = json.loads((tmp_path / "a/checkpoints/best.json").read_text())
    losses = {row["step"]: row["loss"] for row in rows(tmp_path, "val")}
    assert (best["step"], best["value"]) == min(losses.items(), key=lambda item: item[1])
    assert {int(it.name[5:]) for it in checkpoints(tmp_path)} == {10, 12, best["step"]}


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_checkpoints_after_the_one_that_is_saved_were_damaged_and_go(
    p: Package, tmp_path: Path, keep: int
) -> None:
    """The run was resumed from the newest intact one, and writes one before the damaged one."""
    best = tmp_path / "a/checkpoints/best.json"
    p.train_here(tmp_path, *SAME)
    DAMAGES["cut off"](checkpoints(tmp_path)[-1])
    best.unlink()
    world = p.distributed.World(0, 1, torch.device("cpu"))
    made = p.checkpoint.Checkpoints(tmp_path / "a", keep, world)
    made.save({"step": 8})
    assert [int(it.name[5:]) for it in checkpoints(tmp_path)] == [3, 6, 8][-keep:]
    for step in (10, 11, 12):
        made.save({"step": step})
    assert [int(it.name[5:]) for it in checkpoints(tmp_path)] == [10, 11, 12][-keep:]


@pytest.mark.parametrize("mode", ["min", "null"])
def test_best_validation_is_by_the_monitor(p: Package, tmp_path: Path, mode: str) -> None:
    p.train_here(tmp_path, *SAME, f"--train.monitor_mode={mode}")
    best = min(rows(tmp_path, "val"), key=lambda row: float(row["loss"]))
    assert json.loads((tmp_path / "a/checkpoints/best.json").read_text())["step"] == best["step"]


def test_each_metric_that_is_not_finite_is_named(
    p: Package,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = p.distributed.World(0, 1, torch.device("cpu"))
    made = p.checkpoint.Checkpoints(tmp_path, 1, world)
    made.folder.mkdir()
    made.record_best(3, {"loss": 1.0, "score": float("nan")}, "loss", None)
    assert capsys.readouterr().out == ("warning: score is nan in the validation of step 3\n")
    assert json.loads((made.folder / "best.json").read_text())["step"] == 3


def test_two_processes_that_start_one_run_are_one_run_and_one_line(
    p: Package, tmp_path: Path
) -> None:
    options = ["--train.steps=500", "--train.eval_every=100", "--log.every=50"]
    runs = [p.start(tmp_path, *options) for _ in range(2)]
    ends = sorted((run.finish() for run in runs), key=lambda done: done.returncode)
    assert [done.returncode for done in ends] == [0, 1]
    assert ends[1].stderr.count("\n") == 1
    assert "another process trains" in ends[1].stderr
    assert [row["step"] for row in rows(tmp_path, "train")] == list(range(50, 501, 50))


def test_run_that_another_process_trains_is_not_even_read(p: Package, tmp_path: Path) -> None:
    """Neither its checkpoint, which is damaged here, nor its record, which has other options."""
    p.train_here(tmp_path, *SAME)
    flip(checkpoints(tmp_path)[-1] / "state.pt")
    lock = f"import fcntl, sys; file = open({str(tmp_path / 'a/.lock')!r}, 'a'); "
    lock += "fcntl.lockf(file, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            lock,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout
        other.stdout.readline()
        with pytest.raises(p.errors.UserError, match="another process trains"):
            p.train_here(tmp_path, *SAME, "--optim.lr=0.5")
        other.kill()


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small disk with some options."""
    disk = tmp_path / "disk"

    def make(options: str) -> Path:
        disk.mkdir()
        command = [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            options,
            "tmpfs",
            str(disk),
        ]
        if subprocess.run(command, check=False, capture_output=True).returncode != 0:
            pytest.skip("needs root, to mount a disk: sudo make test")
        return disk

    yield make
    if disk.is_mount():
        subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_is_one_line_and_keeps_the_older_checkpoint(
    package: MakePackage, mount: Callable[[str], Path]
) -> None:
    p = package("mlp")
    disk = mount("size=1100k")
    options = ["--train.steps=9", "--train.eval_every=3", "--run.keep=9"]
    done = p.finish(disk, *options, expect=1)
    assert "No space left" in done.stderr or "cannot write" in done.stderr
    step = saved(disk)["step"]
    assert step in (3, 6)
    with (disk / "more").open("wb") as file, contextlib.suppress(OSError):  # not a byte is left
        while True:
            os.write(file.fileno(), bytes(4096))
    assert p.finish(disk, *options, expect=1).stderr.startswith("error: ")
    assert saved(disk)["step"] == step


@pytest.mark.slow
def test_full_disk_is_one_line_of_two_ranks_with_shards(
    tiny: MakePackage, mount: Callable[[str], Path]
) -> None:
    p = tiny("fsdp")
    disk = mount("size=200k")
    options = ["--train.steps=99", "--train.eval_every=1", "--run.keep=99", "--fsdp.enabled=true"]
    done = p.finish(
        disk,
        *options,
        "--train.batch_size=8",
        ranks=2,
        expect=1,
    )
    assert "No space left" in done.stderr or "cannot write" in done.stderr
    assert p.checkpoint.newest(disk / "a/checkpoints") is not None


def test_read_only_folder_is_one_line(p: Package, mount: Callable[[str], Path]) -> None:
    done = p.finish(mount("ro"), expect=1)
    assert "Read-only file system" in done.stderr


def test_evaluate_gives_the_metrics_of_the_best_validation(
    package: MakePackage, tmp_path: Path
) -> None:
    p = package("mlp", "ema")
    alone = p.distributed.World(0, 1, torch.device("cpu"))
    for name, more in {"plain": [], "ema": ["--ema.enabled=true", "--ema.decay=0.9"]}.items():
        p.train_here(
            tmp_path / name, "--train.steps=20", "--train.eval_every=5", "--optim.lr=0.1", *more
        )
        best = min(rows(tmp_path / name, "val"), key=lambda row: float(row["loss"]))
        found = p.evaluate.evaluate_run(tmp_path / name / "a", alone)
        assert found == pytest.approx({key: best[key] for key in found})
        about = f"step {best['step']}, with the best loss: {best['loss']:.4g}"
        assert p.checkpoint.about_best(tmp_path / name / "a") == about
    none = "the newest checkpoint, as no validation recorded a finite value of train.monitor"
    assert p.checkpoint.about_best(tmp_path) == none
    with pytest.raises(p.errors.UserError, match="is not the folder of a run"):
        p.evaluate.evaluate_run(tmp_path, alone)
    with pytest.raises(p.errors.UserError, match="has no checkpoint"):
        p.checkpoint.load_weights(tmp_path)


def test_teacher_gives_a_model_its_weights(p: Package, tmp_path: Path) -> None:
    p.train_here(tmp_path / "teacher", "--train.steps=9")
    options = [f"--model.teacher={tmp_path}/teacher/a", "--train.steps=1", "--optim.lr=1e-30"]
    p.train_here(tmp_path / "student", *options, "--optim.weight_decay=0")
    weights = saved(tmp_path / "teacher")["model"]
    for name, weight in saved(tmp_path / "student")["model"].items():
        torch.testing.assert_close(weight, weights[name])


def test_checkpoint_runs_no_code(p: Package, tmp_path: Path) -> None:
    p.train_here(tmp_path, *SAME)
    newest = checkpoints(tmp_path)[-1]
    torch.save({"step": 9, "code": subprocess.Popen}, newest / "state.pt")
    sums = {"sha256": {"state.pt": hashlib.sha256((newest / "state.pt").read_bytes()).hexdigest()}}
    (newest / "manifest.json").write_text(json.dumps(sums))
    with pytest.raises(p.errors.UserError, match="state.pt cannot be read"):
        p.train_here(tmp_path, *SAME, "--run.keep=9")


def test_rows_are_flushed_before_the_checkpoint_that_follows_them(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    p.train_here(tmp_path, "--train.steps=3", "--train.eval_every=3")
    assert (
        order.index("metrics.jsonl")
        < order.index("state.pt")
        < order.index(".manifest.json.partial")
    )
    assert (
        order.index(".manifest.json.partial")
        < order.index("checkpoints")
        < order.index(".best.json.partial")
    )


def test_record_names_versions_command_and_commit(p: Package, tmp_path: Path) -> None:
    p.train_here(tmp_path, "--train.steps=2")
    record = json.loads((tmp_path / "a/config.json").read_text())
    assert record["versions"]["torch"] == torch.__version__
    assert record["config"]["train"]["steps"] == 2
    assert {"commit", "command"} <= record.keys()
    lines = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert all(
        0 <= row["data_wait"] <= 1 and row["samples_per_second"] > 0
        for row in lines
        if row["split"] == "train"
    )
