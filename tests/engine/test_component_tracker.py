"""The trackers after a kill, on two ranks, and where they cannot write.

What the model tracks there.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from engine import MakePackage, equal, rows, saved
from program import PROGRAMS
from warm import run_python

ON = ["--train.steps=8", "--train.eval_every=3", "--tensorboard.enabled=true"]
TRACKED = '''

def tracked(net: Net) -> dict[str, Tensor]:
    """Return a sum over the ranks, which every rank must join."""
    total = torch.ones(())
    if dist.is_initialized():
        dist.all_reduce(total)
    return {"ranks": total}


Net.tracked = tracked
'''
COMPONENTS = ("tracker", "tensorboard")


def scalars(folder: Path, split: str) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard shows of a run."""
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder / "a/tensorboard" / split), {"scalars": 0}).Reload()
    shown = {}
    for tag in found.Tags()["scalars"]:
        shown[tag] = [(event.step, event.value) for event in found.Scalars(tag)]
    return shown


def check_rows(folder: Path, split: str) -> None:
    """Check that TensorBoard shows each row of the run once, and no other."""
    expected = rows(folder, split)
    shown = scalars(folder, split)
    for name in expected[0].keys() - {"split", "step"}:
        assert [step for step, _ in shown[name]] == [row["step"] for row in expected]
        assert [value for _, value in shown[name]] == pytest.approx(
            [row[name] for row in expected], rel=1e-6
        )


def rename_event_files(folder: Path) -> None:
    """Make the files older.

    TensorBoard reads them in the order of their names, which have the time in seconds.
    """
    for file in folder.glob("a/tensorboard/*/events.out.tfevents.*"):
        second = file.name.split(".")[3]
        file.rename(file.with_name(file.name.replace(second, str(int(second) - 10))))


def test_killed_run_has_each_step_once(package: MakePackage, tmp_path: Path) -> None:
    p = package("mlp", *COMPONENTS)
    program = [str(PROGRAMS / "signal_at_step.py"), "9", "5", p.name, *p.arguments(tmp_path, *ON)]
    run_python(p.root, *program, status=-9)
    assert saved(tmp_path)["step"] == 3
    assert [step for step, _ in scalars(tmp_path, "train")["loss"]][:3] == [1, 2, 3]
    rename_event_files(tmp_path)
    p.train_here(tmp_path, *ON)
    check_rows(tmp_path, "train")
    check_rows(tmp_path, "val")


def test_other_rows_after_a_resume_replace_the_old_ones(
    package: MakePackage, tmp_path: Path
) -> None:
    p = package("mlp", *COMPONENTS)
    p.train_here(tmp_path, *ON)
    (tmp_path / "a/checkpoints/step-00000008/manifest.json").write_text("damaged")
    rename_event_files(tmp_path)
    with pytest.warns(UserWarning, match="damaged"):
        p.train_here(tmp_path, *ON, "--optim.lr=0.1", "--run.allow_changes=true")
    check_rows(tmp_path, "train")
    check_rows(tmp_path, "val")


def test_one_rank_writes_what_all_ranks_track(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny(*COMPONENTS).tiny(tmp_path)
    with (p.root / "src" / p.name / "model.py").open("a") as file:
        file.write(TRACKED)
    done = p.finish(tmp_path, *ON, "--train.batch_size=8", ranks=2)
    assert "warning" not in done.stderr
    check_rows(tmp_path, "train")
    assert scalars(tmp_path, "val")["ranks"] == [(3, 2.0), (6, 2.0), (8, 2.0)]
    assert len([*tmp_path.glob("a/tensorboard/train/events*")]) == 1


def test_folder_that_cannot_be_written_is_one_line(
    package: MakePackage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    p = package("mlp", *COMPONENTS)
    (tmp_path / "with/a").mkdir(parents=True)
    (tmp_path / "with/a/tensorboard").write_text("a file")
    p.train_here(tmp_path / "with", *ON)
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(warned) == 1
    assert warned[0].startswith(
        "warning: tensorboard failed and is off until the end of this run: "
    )
    p.train_here(tmp_path / "without", *ON[:2])
    assert rows(tmp_path / "with") == rows(tmp_path / "without")
    assert equal(saved(tmp_path / "with")["model"], saved(tmp_path / "without")["model"])


def test_steps_that_were_sent_before_are_not_sent_again(
    package: MakePackage, tmp_path: Path
) -> None:
    """By a file in the run's folder, as W&B, MLflow and Trackio cannot drop rows.

    One that is damaged is ignored.
    """
    p = package("mlp", *COMPONENTS)
    module = importlib.import_module(f"{p.name}.components.tracker")
    sent: list[tuple[str, int]] = []

    class Recorder(module.Tracker):  # type: ignore[misc, name-defined]
        name = "json"

        def open(
            self,
            folder: Path,
            kept: dict[str, Any],
            about: dict[str, Any],
        ) -> None:
            kept.setdefault("id", len(sent))

        def send(self, row: Any) -> None:
            sent.append((row.split, row.step))

    p.train_here(tmp_path, *ON[:2])
    run = p.run.Run(p.options(), *[None] * 5)
    run.world = p.distributed.World(0, 1, "cpu")
    run.folder = tmp_path / "a"
    run.model = object()
    for step, new in [(4, True), (6, True), (4, False), (7, True)]:
        # as after a kill
        tracker = Recorder(None, run.world)
        before = len(sent)
        run.step = step
        tracker.on_log(run, {"loss": 1.0})
        tracker.on_train_end(run)
        assert (len(sent) > before) == new
    assert json.loads((tmp_path / "a/tracker-json.json").read_text()) == {
        "id": 0,
        "sent": {"train": 7},
    }
    (tmp_path / "a/tracker-json.json").write_text('{"id": 0, "se')
    tracker = Recorder(None, run.world)
    tracker.on_log(run, {"loss": 1.0})
    tracker.on_train_end(run)
    assert sent[-1] == ("train", 7)
