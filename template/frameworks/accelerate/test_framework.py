"""What users of Accelerate expect of it."""

import importlib
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from accelerate.utils import (
    AutocastKwargs,
    DynamoBackend,
    InitProcessGroupKwargs,
    ProfileKwargs,
    ProjectConfiguration,
)

from .. import accelerator as own
from ..accelerator import DECIDED, LAUNCHED_WITH, check_launch
from ..config import Config
from ..distributed import World
from ..errors import UserError
from ..open_run import open_run
from ..run import Run
from .conftest import OTHER_WIDTH, read_rows, read_weights

train: Any = importlib.import_module("..train", __package__)
STEPS = ["--train.steps=8", "--train.eval_every=4", "--log.every=1"]


class Recorder(GeneralTracker):  # type: ignore[misc]  # Accelerate has no annotations
    """A tracker that keeps what it receives."""

    name = "recorder"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, Any]]] = []
        self.config: dict[str, Any] = {}
        self.finished = 0

    @property
    def tracker(self) -> list[tuple[int | None, dict[str, Any]]]:
        return self.rows

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.config = values

    def log(self, values: dict[str, Any], step: int | None = None, **options: Any) -> None:
        self.rows.append((step, values))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def with_extras(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what extras.py returns."""

    def set_extras(arguments: Any) -> None:
        monkeypatch.setattr(own, "extras", lambda run: arguments)

    return set_extras


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


class Loop:
    """Adds calls to the training loop: at the end of each step, and before the first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: Callable[[Accelerator], object] = lambda accelerator: None
        self.after_step: Callable[[Accelerator, int], object] = lambda accelerator, step: None
        self.run: Any = None
        opened, end_step = own.open_accelerator, Run.end_step

        @contextmanager
        def open_accelerator(run: Run) -> Iterator[Accelerator]:
            with opened(run) as self.accelerator:
                self.run, prepare = run, self.accelerator.prepare

                def prepare_and_call(*objects: Any) -> Any:
                    prepared = prepare(*objects)
                    self.before(self.accelerator)
                    return prepared

                self.accelerator.prepare = prepare_and_call
                yield self.accelerator

        def end_step_and_call(run: Run, *arguments: Any) -> None:
            end_step(run, *arguments)
            self.after_step(self.accelerator, run.progress.step)

        monkeypatch.setattr(train, "open_accelerator", open_accelerator)
        monkeypatch.setattr(Run, "end_step", end_step_and_call)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    """What is called in the training loop."""
    return Loop(monkeypatch)


def test_load_state_continues_bit_identical(
    config: Callable[..., Config], world: World, tmp_path: Path, loop: Loop, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the run's own folder, where what was later is dropped, and in a new one; also between two rows of metrics."""
    options = [
        *STEPS,
        "--log.every=2",
        "--train.accumulate=2",
        "--train.ema=0.9",
        "--train.patience=9",
        "--optim.weight_decay=0.1",
    ]
    loop.after_step = lambda accelerator, step: step == 5 and accelerator.save_state(tmp_path / "state")
    train.train(config("--run.name=whole", *options), world)
    best = loop.run.progress.best
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    optimizer = torch.load(tmp_path / "state/optimizer.bin")
    optimizer["param_groups"][0]["weight_decay"] = 1.0
    torch.save(optimizer, tmp_path / "state/optimizer.bin")
    loop.after_step = lambda accelerator, step: None
    loop.before = lambda accelerator: accelerator.load_state(tmp_path / "state")
    capsys.readouterr()
    train.train(config("--run.name=cut", "--run.resume=auto", *options), world)
    assert f"resumed     at step 5, from {tmp_path}/state" in capsys.readouterr().out.replace("\n            ", " ")
    assert (tmp_path / "cut/checkpoints/abandoned-step-00000008").is_dir()
    train.train(config("--run.name=new", *options), world)
    for split in ("train", "val"):
        whole = read_rows(tmp_path / "whole", split)
        assert read_rows(tmp_path / "cut", split) == whole
        assert read_rows(tmp_path / "new", split) == [row for row in whole if row["step"] > 5]
    weights = read_weights(tmp_path / "whole", 8)
    assert all(torch.equal(value, weights[name]) for name, value in read_weights(tmp_path / "cut", 8).items())
    assert all(torch.equal(value, weights[name]) for name, value in read_weights(tmp_path / "new", 8).items())
    assert loop.run.progress.best == best


def test_unsuitable_state_is_refused_before_anything_is_loaded(
    config: Callable[..., Config], world: World, tmp_path: Path, loop: Loop
) -> None:
    loop.after_step = lambda accelerator, step: accelerator.save_state(tmp_path / "state")
    options = ["--train.steps=1", "--train.eval_every=1"]
    train.train(config("--run.name=first", *options), world)
    saved = read_weights(tmp_path / "first", 1)
    seed = str(config().run.seed + 1)
    loop.before = lambda accelerator: accelerator.load_state(tmp_path / "state")
    with pytest.raises(UserError, match=rf"^{tmp_path}/state is of another model or run \(run.seed is"):
        train.train(config("--run.name=other", f"--run.seed={seed}", *options), world)
    now = loop.run.parts.model.state_dict()
    assert any(not torch.equal(value, saved[name]) for name, value in now.items())
    if not OTHER_WIDTH.endswith("=0"):
        with pytest.raises(UserError, match=r"is of another model or run \(model.width is"):
            train.train(config("--run.name=wide", OTHER_WIDTH, *options), world)
    state = tmp_path / "state/custom_checkpoint_0.pkl"
    for number, content in enumerate(
        (pickle.dumps(Hostile(tmp_path / "executed"), 2), b"", pickle.dumps({"step": 1}, 2), None)
    ):
        state.unlink() if content is None else state.write_bytes(content)
        with pytest.raises(UserError, match=rf"^{tmp_path}/state has no state of a run: give a folder that save_state"):
            train.train(config(f"--run.name=bad{number}", *options), world)
    assert not (tmp_path / "executed").exists()

    def save_within_a_step(accelerator: Accelerator) -> None:
        loop.run.seed_batch()
        accelerator.save_state(tmp_path / "within")

    loop.before = save_within_a_step
    with pytest.raises(UserError, match="^accelerator.save_state is called within a step: call it after run.end_step"):
        train.train(config("--run.name=within", *options), world)


def test_trackers_receive_every_row_and_are_finished(
    config: Callable[..., Config], world: World, tmp_path: Path, with_extras: Callable[..., None], loop: Loop
) -> None:
    tracker = Recorder()
    with_extras({"log_with": ["tensorboard", tracker], "project_name": "digits"})
    train.train(config("--run.name=a", *STEPS), world)
    written = [*read_rows(tmp_path / "a", "train"), *read_rows(tmp_path / "a", "val")]
    for row in written:
        split, step = row.pop("split"), row.pop("step")
        logged = [values for at, values in tracker.rows if at == step and f"{split}/loss" in values]
        assert len(logged) == 1
        assert {name: logged[0][f"{split}/{name}"] for name in row} == row
    assert len(tracker.rows) == len(written)
    assert (tracker.config["train.steps"], tracker.config["run.name"], tracker.finished) == (8, "a", 1)
    assert all(isinstance(value, bool | int | float | str | None) for value in tracker.config.values())
    assert list((tmp_path / "a/accelerate/digits").glob("events.out.*"))

    def interrupt(accelerator: Accelerator, step: int) -> None:
        raise KeyboardInterrupt

    loop.after_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        train.train(config("--run.name=b", *STEPS), world)
    assert tracker.finished == 2


def unusable(name: str) -> GeneralTracker:
    """Return a tracker that does not start."""

    class Unusable(Recorder):
        def start(self) -> None:
            raise ImportError(f"{name}\nis missing")

    return Unusable()


REFUSED: list[tuple[Any, str]] = [
    (None, "extras.py: extras returns None: return a dict of arguments"),
    ({"log_wiht": "tensorboard"}, "extras.py: Accelerator has no argument log_wiht; did you mean log_with?"),
    ({"project_configs": {}}, "extras.py: Accelerator has no argument project_configs; did you mean project_config?"),
    ({"log_with": "tensorbord"}, "Accelerate refuses what extras.py returns: Unsupported logging capability"),
    ({"log_with": ["all", "wandb"]}, "extras.py: log_with is wandb, which is not installed: pip install wandb"),
    ({"log_with": unusable("it")}, "Accelerate refuses what extras.py returns: it is missing"),
    ({"log_with": Recorder(), "project_config": {}}, "Accelerate refuses what extras.py returns: 'dict' object has"),
    ({"project_config": ProjectConfiguration("here", automatic_checkpoint_naming=True)}, "extras.py: automatic_check"),
    ({"kwargs_handlers": [ProfileKwargs(), ProfileKwargs()]}, "Accelerate refuses .* only pass one"),
    ({"kwargs_handlers": [AutocastKwargs()]}, "extras.py sets AutocastKwargs: use speed.precision"),
    ({"kwargs_handlers": InitProcessGroupKwargs()}, "extras.py sets InitProcessGroupKwargs: use distributed.py, which"),
    ({"kwargs_handlers": [3]}, "extras.py: kwargs_handlers has 3, which is no ProfileKwargs"),
    *(({name: 1}, f"extras.py sets {name}: use {way}") for name, way in DECIDED.items() if name[0].islower()),
]


def test_what_the_config_decides_and_wrong_arguments_are_refused(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, with what to use instead; what is left to the user is accepted."""
    monkeypatch.setattr(own, "get_available_trackers", list)
    with open_run(config("--run.name=here"), world) as run:
        monkeypatch.chdir(tmp_path)
        for arguments, message in REFUSED:
            monkeypatch.setattr(own, "extras", lambda _, returned=arguments: returned)
            with pytest.raises(UserError, match=f"^{message}") as refused, own.open_accelerator(run):
                pass
            assert "\n" not in str(refused.value)
        monkeypatch.setattr(own, "extras", lambda _: {"kwargs_handlers": [ProfileKwargs(with_flops=True)]})
        with own.open_accelerator(run) as accelerator:
            assert accelerator.profile_handler.with_flops


def test_config_overrides_accelerate_launch(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Loop
) -> None:
    """What it cannot override is refused by name."""
    train.train(config("--run.name=plain", *STEPS), world)
    for name, value in {
        "DYNAMO_BACKEND": "EAGER",
        "MIXED_PRECISION": "bf16",
        "GRADIENT_ACCUMULATION_STEPS": "4",
    }.items():
        monkeypatch.setenv(f"ACCELERATE_{name}", value)
    train.train(config("--run.name=launched", *STEPS), world)
    assert read_rows(tmp_path / "launched", "train") == read_rows(tmp_path / "plain", "train")
    assert loop.accelerator.state.dynamo_plugin.backend == DynamoBackend.NO
    for variable, (name, argument) in LAUNCHED_WITH.items():
        with monkeypatch.context() as launch:
            launch.setenv(f"ACCELERATE_USE_{variable}", "true")
            with pytest.raises(UserError, match=f"^accelerate launch asks for {name}: .*{DECIDED[argument]}$"):
                train.train(config("--run.name=refused"), world)
    assert not (tmp_path / "refused").exists()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    check_launch(world)
    with pytest.raises(UserError, match=r"^accelerate launch asks for the CPU, and the run is on cuda: use run.device"):
        check_launch(World(0, 1, torch.device("cuda")))
