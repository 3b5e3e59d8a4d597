"""A tracker has each row of metrics.jsonl once, and can neither stop a run nor delay it."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args
from unittest.mock import MagicMock

import pytest

from .. import trackers
from ..config import Config, LogConfig, as_dict, from_dict
from ..console import Console
from ..distributed import World
from ..errors import UserError
from ..log import RunLog
from ..tools import report
from ..trackers import Follower, follow
from .conftest import PACKAGE, PARENT, small, train

FAKE = """
import json, os, sys, time
url = None
def init(**arguments):
    INIT
    json.dump({"id": arguments["id"], "config": arguments["config"]}, open("about.json", "w"))
    return sys.modules[__name__]
def log(values, step):
    print(json.dumps([step, values]), file=open("received.jsonl", "a"), flush=True)
def finish():
    FINISH
class Settings:
    def __init__(self, **values): pass
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a package instead of wandb, which writes what it receives into the current folder."""

    def install(init: str = "pass", finish: str = "pass") -> None:
        (tmp_path / "packages").mkdir(exist_ok=True)
        (tmp_path / "packages/wandb.py").write_text(FAKE.replace("INIT", init).replace("FINISH", finish))

    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "packages"), str(Path(__file__).parents[2]), path])
    )
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trackers, "OPEN_SECONDS", 10.0)
    yield install
    for process in trackers._finishing:
        process.kill()
        process.wait()
    trackers._finishing.clear()


def open_log(folder: Path, tracker: str, first_step: int = 0) -> RunLog:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"train": {"steps": 6}, "log": {"every": 1}}))
    cfg = small(f"--log.tracker={tracker}").log
    return RunLog(folder, cfg, Console(True, 6, 3, "img", "loss"), first_step, True)


def log_resumed_run(folder: Path, tracker: str) -> dict[tuple[str, int], float]:
    """Log a run that ends after step 5, and is resumed at step 3; return the values of metrics.jsonl."""
    for first, last in ((0, 5), (3, 6)):
        opened = open_log(folder, tracker, first)
        for step in range(first + 1, last + 1):
            opened.row("train", step, {"loss": 1 / step, "lr": 0.5})
            if step % 3 == 0:
                opened.row("val", step, {"loss": float("nan") if step == 6 else 2 / step})
        opened.close()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = {
        (f"{row['split']}/{name}", row["step"]): row[name] for row in rows for name in ("loss", "lr") if name in row
    }
    assert len(values) == 14
    return values


def same(found: list[tuple[str, int, float]], expected: dict[tuple[str, int], float]) -> None:
    """Each value is there once, in the precision of float32."""
    assert sorted(place[:2] for place in found) == sorted(expected)
    for name, step, value in found:
        assert value == pytest.approx(expected[name, step], rel=1e-6, nan_ok=True)


def read_tensorboard(run: Path) -> Iterator[tuple[str, int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: Any = EventAccumulator(str(run / "tensorboard"), {"scalars": 0}, purge_orphaned_data=False)
    found.Reload()
    assert {*found.Tags()["tensors"]} == {"config", "environment"}
    for tag in found.Tags()["scalars"]:
        yield from ((tag, event.step, event.value) for event in found.Scalars(tag))


def read_trackio(run: Path) -> Iterator[tuple[str, int, float]]:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    name = json.loads((run / "tracker-trackio.json").read_text())["name"]
    (found,) = [it for it in trackio.Api().runs(PACKAGE) if it.name == name]
    assert found.config["config"]["train"] == {"steps": 6}
    for row in SQLiteStorage.get_logs(PACKAGE, name, run_id=found.id):
        for key in row.keys() - {"step", "timestamp"}:
            yield key, row["step"], float(row[key])


def read_mlflow(run: Path) -> Iterator[tuple[str, int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{run.parent}/mlflow.db")
    identity = json.loads((run / "tracker-mlflow.json").read_text())["id"]
    found = client.get_run(identity)
    assert found.data.params["train.steps"] == "6"
    for key in found.data.metrics:
        yield from ((key, it.step, it.value) for it in client.get_metric_history(identity, key))


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "mlflow"])
def test_tracker_has_each_row_of_a_resumed_run_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip(name)
    monkeypatch.setattr(trackers, "OPEN_SECONDS", 60.0)
    expected = log_resumed_run(tmp_path / "a", name)
    assert (tmp_path / "a/tracker.log").exists()
    same(list(globals()[f"read_{name}"](tmp_path / "a")), expected)


def test_runs_that_begin_at_once_open_the_store_of_mlflow_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a database, which the first of them makes; a second that makes it at that time would break it."""
    opened = []

    class Client(MagicMock):
        def update_run(self, identity: str, status: str) -> None:
            with pytest.raises(BlockingIOError), follow.only_one("mlflow", tmp_path, wait=False):
                pass
            opened.append(status)

    for name in ("mlflow", "mlflow.entities", "mlflow.exceptions", "mlflow.tracking"):
        monkeypatch.setitem(sys.modules, name, MagicMock(MlflowClient=Client, MlflowException=KeyError))
    monkeypatch.delitem(sys.modules, f"{PARENT}.trackers.mlflow", raising=False)
    tracker = import_module(f"{PARENT}.trackers.mlflow").Tracker
    monkeypatch.delitem(sys.modules, f"{PARENT}.trackers.mlflow")
    tracker(follow.Followed("mlflow", tmp_path / "a", {}, {}))
    assert opened == ["RUNNING"]


def received(file: Path) -> list[tuple[str, int, float]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [(name, step, value) for step, values in lines for name, value in values.items()]


def test_rows_reach_a_tracker_when_its_run_is_killed(tmp_path: Path, fake: Callable[..., None]) -> None:
    """It then reads the file to its end; a row that is there in part, or damaged, is left out."""
    fake()
    expected = log_resumed_run(tmp_path / "a", "wandb")
    same(received(tmp_path / "received.jsonl"), expected)
    about = json.loads((tmp_path / "about.json").read_text())
    assert about["id"] == json.loads((tmp_path / "a/tracker-wandb.json").read_text())["id"]
    assert about["config"]["train"] == {"steps": 6}
    assert about["config"]["provenance"]["versions"]["python"]
    part = tmp_path / "part"
    part.write_bytes(b'{"split": "train", "step": 7,')
    with part.open("rb") as lines, part.open("ab") as writer:
        assert list(follow.whole_rows(lines)) == []
        writer.write(b' "loss": 1.5}\n')
        writer.flush()
        assert list(follow.whole_rows(lines)) == [("train", 7, {"loss": 1.5})]
    with (tmp_path / "a/metrics.jsonl").open("a") as file:
        file.write('{"split": "train"\n{"split": "train", "step": 7, "loss": 1.5}\n{"split": "train", "st')
    follower = Follower("wandb", tmp_path / "a")
    os.close(follower.pipe)  # as the system does
    assert follower.process.wait(30) == 0
    same(received(tmp_path / "received.jsonl"), {**expected, ("train/loss", 7): 1.5})


def test_tracker_that_hangs_or_fails_is_left_behind(
    tmp_path: Path, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("OPEN_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(trackers, name, 0.5)
    fake(init="time.sleep(60)")
    opened = open_log(tmp_path / "hangs", "wandb")
    os.kill(opened.tracker.process.pid, signal.SIGSTOP)
    start = time.monotonic()
    for step in range(70_000):  # more than the pipe holds
        opened.tracker.row("train", step, {})
    assert time.monotonic() - start < 5
    os.kill(opened.tracker.process.pid, signal.SIGCONT)
    start = time.monotonic()
    opened.close()
    assert time.monotonic() - start < 5
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert text.startswith("warning: log.tracker=wandb is still sending, and is ended in 60 s: metrics.jsonl has all")
    fake(init="raise ConnectionError('no \\n network')")
    opened = open_log(tmp_path / "fails", "wandb")
    opened.tracker.process.wait()
    for step in range(1, 3):
        opened.row("train", step, {"loss": 0.5})
    opened.close()
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert text.startswith("warning: log.tracker=wandb has failed (ConnectionError: no network): metrics.jsonl has all")
    assert len((tmp_path / "fails/metrics.jsonl").read_text().splitlines()) == 2


def test_tracker_that_is_not_installed_is_refused_before_training(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of its name, which wandb itself makes, is no package."""
    (tmp_path / "here/wandb").mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(tmp_path / "here")])
    with pytest.raises(UserError, match=r"log.tracker=wandb needs a package: pip install -e '.\[wandb\]'"):
        train.train(config("--log.tracker=wandb", "--run.name=a"), world)
    assert not (tmp_path / "a").exists()
    trackers.check("json")


def test_configs_with_the_former_option_are_read() -> None:
    assert small("--log.tensorboard=true").log == small("--log.tracker=tensorboard").log
    assert small("--log.tensorboard=false", "--log.tracker=wandb").log.tracker == "wandb"
    older = as_dict(small())
    del older["log"]["tracker"]
    assert set(trackers.NAMES) == {*get_args(LogConfig.__dataclass_fields__["tracker"].type)} - {"none"}
    assert from_dict({**older, "log": {**older["log"], "tensorboard": True}}).log.tracker == "tensorboard"
    with pytest.raises(UserError, match=r"log.tensorboard is true: log.tracker is wandb, and a run has one tracker"):
        small("--log.tensorboard=true", "--log.tracker=wandb")


def test_pushed_runs_are_there_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    rows = [{"split": "train", "step": step, "loss": 1 / step} for step in range(1, 8)]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with follow.only_one("tensorboard", tmp_path / "b", wait=True):
        both = [str(tmp_path / "a"), str(tmp_path / "b"), "--push=tensorboard"]
        for options in (both, [*both, "--json"]):
            with (
                pytest.warns(UserWarning, match="b is still being sent to tensorboard: .*; it is left out"),
                pytest.raises(SystemExit) as ended,
            ):
                report.main(options)
            assert ended.value.code == 1
        text, found = capsys.readouterr().out.splitlines()
        assert text == f"tensorboard has the 7 rows of {tmp_path / 'a'}"
        assert [*json.loads(found)["failed"]] == [str(tmp_path / "b")]
        with pytest.raises(
            SystemExit, match="error: .*b is still being sent to tensorboard: try again when the run has"
        ):
            report.main([str(tmp_path / "b"), "--push=tensorboard"])
    same(list(read_tensorboard(tmp_path / "a")), {("train/loss", step): 1 / step for step in range(1, 8)})
