"""Checkpoints that a thread writes have the state at which they were saved, and fail no later than at the next step."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from .. import checkpoint
from ..config import CheckpointConfig, Config
from ..distributed import World
from ..faults import host_copy, saver, saving
from ..faults.saver import Saver
from ..run import Run
from ..train import train
from .conftest import SMALL, main, read_rows, read_weights

ABOUT: dict[str, Any] = {"fixed": {}, "config": {}, "metrics": {}}


@contextmanager
def held() -> Iterator[threading.Event]:
    """Hold each write of a state until the event is set."""
    release, write = threading.Event(), saving.write

    def late(*arguments: Any) -> Any:
        assert release.wait(30)
        return write(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "write", late)
        yield release


def make(folder: Path, world: World, **options: Any) -> Saver:
    return Saver(folder / "checkpoints", CheckpointConfig(**options), world, lambda _: None)


def test_state_is_copied_before_it_changes(tmp_path: Path, world: World) -> None:
    """With shared memory, strides, attributes and whatever is not a tensor; the copy's memory is used again."""
    weights = torch.arange(24.0).view(2, 3, 4).transpose(1, 2)
    module: Any = torch.nn.Linear(2, 2).state_dict()
    state: dict[str, Any] = {
        "step": 1,
        "tied": [weights, weights.detach()],
        "module": module,
        "row": {"loss": (weights[0], 3)},
    }
    state |= {"names": {"a", "b"}, "empty": torch.zeros(0)}
    before = [value.clone() for value in (weights, module["weight"])]
    subject = make(tmp_path, world)
    with held() as release, subject:
        subject.save(state, ABOUT, 0)
        weights.zero_()
        module["weight"].zero_()
        state["names"].clear()
        release.set()
        subject.wait()
        memory = set(map(torch.Tensor.data_ptr, subject.host_copy.memory.values()))
        loaded: Any = checkpoint.read_state(tmp_path / "checkpoints/step-00000001")
        subject.save(state, ABOUT, 0)
        assert set(map(torch.Tensor.data_ptr, subject.host_copy.memory.values())) == memory
    assert torch.equal(loaded["tied"][0], before[0])
    assert torch.equal(loaded["module"]["weight"], before[1])
    assert loaded["tied"][0].data_ptr() == loaded["tied"][1].data_ptr()
    assert loaded["module"]._metadata == module._metadata
    assert (loaded["names"], loaded["row"]["loss"][1]) == ({"a", "b"}, 3)


def test_saves_do_not_overlap_and_steps_go_on(config: Callable[..., Config], world: World, tmp_path: Path) -> None:
    """Training goes on while a checkpoint is written, waits with the next, and at the end for the last."""
    steps: list[tuple[int, int]] = []
    begin_step = Run.begin_step
    options = ["--run.name=a", "--train.steps=6", "--checkpoint.every=3", "--checkpoint.keep=9"]

    def note(self: Run) -> None:
        steps.append((self.progress.step, len(checkpoint.all_checkpoints(tmp_path / "a/checkpoints"))))
        if self.progress.step == 5:
            release.set()
        begin_step(self)

    with held() as release, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "begin_step", note)
        train(config(*options), world)
    assert steps == [(step, 0) for step in range(6)]
    names = [path.name for path in checkpoint.all_checkpoints(tmp_path / "a/checkpoints")]
    assert names == ["step-00000003", "step-00000006"]
    waiting = [*options[1:], "--run.name=b", "--checkpoint.asynchronous=false"]
    train(config(*waiting), world)
    for step in (3, 6):
        ours, theirs = read_weights(tmp_path / "a", step), read_weights(tmp_path / "b", step)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("steps", [6, 3])
def test_failed_write_ends_the_run_in_one_line(
    config: Callable[..., Config], world: World, tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next step, or at the end of the run."""
    monkeypatch.setattr(saving, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    monkeypatch.setattr(saver.Saver, "save", waited(saver.Saver.save))
    options = [*SMALL, "--run.name=a", f"--train.steps={steps}", "--checkpoint.every=3", f"--run.dir={tmp_path}"]
    with pytest.raises(SystemExit, match=r"^error: cannot save .*/step-00000003 .*: free some space") as end:
        main(options)
    assert "\n" not in str(end.value)
    assert read_rows(tmp_path / "a", "train")[-1]["step"] == 3
    assert list((tmp_path / "a/checkpoints").iterdir()) == []


def waited(save: Callable[..., None]) -> Callable[..., None]:
    def call(self: Saver, *arguments: Any) -> None:
        save(self, *arguments)
        assert self.thread is not None
        self.thread.join()

    return call


def test_copy_that_does_not_fit_into_memory_is_not_made(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copy, "free_memory", lambda: 7000.0)
    subject = make(tmp_path, world)
    with pytest.warns(UserWarning, match="training waits for each checkpoint"):
        subject.save({"step": 1, "w": torch.zeros(1000)}, ABOUT, 0)
    subject.save({"step": 2, "w": torch.zeros(1000)}, ABOUT, 0)  # a second warning would be an error
    assert subject.thread is None
    assert len(checkpoint.all_checkpoints(tmp_path / "checkpoints")) == 2


def test_thread_rests_until_it_is_waited_for(monkeypatch: pytest.MonkeyPatch, world: World, tmp_path: Path) -> None:
    """Its rest is a multiple of its work, so that steps on the same cores are hardly slower."""
    monkeypatch.setattr(saver, "REST", 1e5)
    monkeypatch.setattr(saving, "CHUNK", 2**16)
    subject = make(tmp_path, world)
    with subject:
        subject.save({"step": 1, "w": torch.zeros(2**22)}, ABOUT, 0)
        assert subject.thread is not None
        subject.thread.join(0.3)
        assert subject.thread.is_alive()
    make(tmp_path, world, asynchronous=False).save({"step": 2, "w": torch.zeros(2**22)}, ABOUT, 0)
    assert checkpoint.find(tmp_path) is not None


def test_free_memory_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copy, "CGROUP", tmp_path)
    machine = host_copy.free_memory()
    files = {"max": "3000000\n", "current": "2500000\n", "stat": "anon 1000000\nfile 1500000\n"}
    for name, text in files.items():
        (tmp_path / f"memory.{name}").write_text(text)
    if sys.platform == "linux":
        assert 2**20 < machine < float("inf")
        assert host_copy.free_memory() == 2_000_000
        (tmp_path / "memory.max").write_text("max\n")
        assert host_copy.free_memory() > 2**20
