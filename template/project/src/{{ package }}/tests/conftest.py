"""Fixtures and helpers: the project's config for short runs, and a world of one CPU process."""

import functools
import gc
import importlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.spawn import start_processes
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .. import checkpoint, data, loaders, model, open_run
from ..config import Config, as_dict, make_parser, read
from ..contracts import blocks_of, no_compile_reason
from ..distributed import World
from ..loaders import TrainOrder
from ..log import RunLog
from ..phase_times import MEASURED
from ..tools import evaluate
from . import train_in_turn
from .no_synchronization import NoSynchronization

train: Any = importlib.import_module("..train", __package__)
ROOT = Path(__file__).parents[3]
PARENT = __package__.rpartition(".")[0]
PACKAGE = PARENT.rpartition(".")[2]
kept_parser = functools.cache(make_parser)
"""Builds each parser once, as that takes longer than a short run."""
PARSER = kept_parser("test", "")


def _own() -> list[str]:
    """Return the project's data, model and learning rate as options; all other keys keep the code's defaults."""
    values = as_dict(read(PARSER, [f"--config={ROOT}/configs/default.yaml"]))
    kept = {
        f"{section}.{key}": value for section in ("data", "model") for key, value in values.get(section, {}).items()
    }
    kept |= {f"optim.{key}": values["optim"][key] for key in ("lr", "base_batch")}
    options = {key: value if isinstance(value, str) else json.dumps(value) for key, value in kept.items()}
    return [f"--{key}={value}" for key, value in options.items() if key != "data.cache"]


FP32_ON_CPU = ["--run.device=cpu", "--speed.precision=fp32"]
SHORT = ["--train.steps=20", "--train.micro_batch=16", "--train.eval_every=20", "--log.every=5"]
SMALL = [*_own(), *FP32_ON_CPU, *SHORT]
PARSED = PARSER.parse_args(SMALL)


def small(*options: str) -> Config:
    """Return what `read` makes of SMALL and these options, in a fifth of the time."""
    values = PARSED.clone()
    values.update(PARSER.parse_args([*options], defaults=False))
    return Config(**{name: value for name, value in vars(PARSER.instantiate(values)).items() if name != "config"})


OTHER_WIDTH = f"--model.width={2 * getattr(small().model, 'width', 0)}"
"""An option that changes the size of the network; width 0 if the model has no width."""
HAS_CACHE = hasattr(small().data, "cache")
"""Whether the data can be kept on the device."""
HAS_SMOOTHING = hasattr(small().model, "label_smoothing")


def network() -> Any:
    """The project's model."""
    cfg = small()
    return model.build(cfg.model, data.load(cfg.data).spec)


HAS_BLOCKS = bool(blocks_of(network()))
"""Whether the model has the `blocks` that some techniques need; otherwise these are refused."""
IN_TURN = hasattr(network(), "phases")
"""Whether parts of the model are trained in turn, by losses that need not fall."""
NO_COMPILE = bool(no_compile_reason(network()))
"""Whether the model has a reason not to be compiled; then compiling is refused."""


@pytest.fixture
def no_print(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace `print`, where a model is compiled as a whole: one in its forward pass is a graph break."""
    from torch._dynamo.trace_rules import is_builtin_callable

    is_builtin_callable(print)  # the builtins are listed once, and the replacement must be none of them

    def do_nothing(*args: object, **options: object) -> None:
        pass

    monkeypatch.setattr("builtins.print", do_nothing)


UNSUPPORTED: dict[str, str] = {**getattr(train, "UNSUPPORTED", {}), **getattr(train, "UNSUPPORTED_ON_CPU", {})}


def unsupported(options: list[str]) -> str:
    """Return the framework's error for these options; empty if it supports them."""
    for option in options:
        key, _, value = option.removeprefix("--").partition("=")
        why = UNSUPPORTED.get(key) or UNSUPPORTED.get(f"{key}={value}")
        if why:
            return f"{key} is {value}: {why}"
    return ""


def pytest_configure() -> None:
    """Let Ctrl-C reach the programs under test, also where a shell that started pytest in the background ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU, or one of another type; without a GPU and with REQUIRE_GPU=1 it runs, and so fails."""
    found = torch.accelerator.current_accelerator(check_available=True)
    here = found.type if found else ""
    if not here and os.environ.get("REQUIRE_GPU") == "1":
        return
    for item in items:
        mark = item.get_closest_marker("gpu")
        if mark and (not here or mark.args not in ((), (here,))):
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU {' '.join(mark.args)}".rstrip()))


@pytest.fixture
def world() -> World:
    """One process on the CPU."""
    return World(0, 1, torch.device("cpu"))


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Config]:
    """Create configs for short runs in a temporary folder, with options as on the command line."""

    def make(*options: str) -> Config:
        if any(option.startswith("--data.cache=") for option in options) and not HAS_CACHE:
            pytest.skip("DataConfig has no field `cache`: see contracts.py")
        return small(f"--run.dir={tmp_path}", *options)

    return make


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four steps, which the tests of a file share."""
    folder = tmp_path_factory.mktemp("runs")
    cfg = small(f"--run.dir={folder}", "--run.name=a", "--train.steps=4")
    train.train(cfg, World(0, 1, torch.device("cpu")))
    return folder / "a"


@pytest.fixture(autouse=True)
def no_full_collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Skip the garbage collections around a run: among all that the tests import, each takes 0.15 s.

    Loaders that are garbage end their workers here: during a later collection, they would wait 5 s for each.
    """
    monkeypatch.setattr(gc, "collect", lambda generation=2: 0)
    yield
    if multiprocessing.active_children():
        for loader in [found for found in gc.get_objects() if type(found) is _MultiProcessingDataLoaderIter]:
            loader._shutdown_workers()


@pytest.fixture(autouse=True)
def parsers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a parser for all command lines of a program."""
    monkeypatch.setattr(f"{PARENT}.config.make_parser", kept_parser)


VALIDATED = 16
"""Batches of a short validation, summed over ranks."""


@pytest.fixture
def short_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit validations to a few batches."""
    whole = loaders.EvalOrder

    def short(samples: int, micro_batch: int, *place: int) -> loaders.EvalOrder:
        return whole(min(samples, VALIDATED * micro_batch), micro_batch, *place)

    monkeypatch.setattr(f"{PARENT}.loaders.EvalOrder", short)


@pytest.fixture
def steady_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Forbid synchronization from the end of the second step to the end of the last but one."""
    mode = ExitStack()
    guarded: list[int] = []
    step, order = RunLog.step, TrainOrder.__iter__

    def count(self: RunLog) -> None:
        step(self)
        guarded.append(len(guarded) + 1)
        if len(guarded) == 2:
            mode.enter_context(NoSynchronization())
        if len(guarded) == self.console.total_steps - 1:
            mode.close()

    # The host computes the indices: before the run, so that they do not count as synchronization.
    monkeypatch.setattr(TrainOrder, "__iter__", lambda self: iter(list(order(self))))
    monkeypatch.setattr(RunLog, "step", count)
    with mode:
        yield guarded


def run_ranks(ranks: int, options: list[str]) -> subprocess.CompletedProcess[str]:
    """Train in several processes, which the program starts itself."""
    several = [f"--run.processes={ranks}"]
    return subprocess.run(
        [sys.executable, "-m", f"{PACKAGE}.train", *SMALL, *several, *options],
        env={name: value for name, value in os.environ.items() if name not in ("RANK", "OMP_NUM_THREADS")},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def run_ranks_in_turn(ranks: int, runs: list[list[str]], folder: Path, *changes: str) -> None:
    """Train several times in the same processes, with changes that `train_in_turn.py` lists.

    On Linux they are forks of one process, which has imported everything: torchrun would import it again for each.
    """
    multiprocessing.set_forkserver_preload([train_in_turn.__name__, "torch._dynamo"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fixed = [f"--run.dir={folder}"]
    every = [small(*fixed, *options) for options in runs]
    arguments = (ranks, port, every, VALIDATED, changes)
    method = "forkserver" if sys.platform == "linux" else "spawn"
    started: Any = start_processes(train_in_turn.main, arguments, ranks, join=False, start_method=method)
    ended = any(started.join(600) for _ in range(ranks))  # each join waits for a rank to end
    for process in started.processes:
        process.kill()
    assert ended


def main(argv: list[str]) -> None:
    """Call the training program with a command line."""
    open_run.main(train.train, argv)


def read_rows(run: Path, split: str) -> list[dict[str, Any]]:
    """Return the logged metrics of a split, without those that depend on time."""
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if key not in MEASURED} for row in logged if row["split"] == split]


def read_losses(run: Path) -> list[float]:
    """Return the logged training losses."""
    return [row["loss"] for row in read_rows(run, "train")]


def evaluate_run(run: Path) -> dict[str, Any]:
    """Evaluate a run on the CPU, and return the metrics that were written."""
    evaluate.main([str(run), "--device=cpu"])
    found = checkpoint.find(run)
    assert found is not None
    return dict(json.loads((found / "evaluation.json").read_text()))


def load_exported(file: Path) -> Callable[..., Any]:
    """Load an exported model as its users do, by the file's suffix."""
    if file.suffix == ".pt2":
        program: Any = torch.export.load(file).module()
        return lambda *inputs: program(*inputs)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def run(*inputs: torch.Tensor) -> Any:
        feed = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        outputs = [torch.from_numpy(value) for value in session.run(None, feed)]
        return outputs if len(outputs) > 1 else outputs[0]

    return run


def read_weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint."""
    state = checkpoint.read_state(run / "checkpoints" / f"step-{step:08d}")
    found: dict[str, torch.Tensor] = state["model"]
    return found
