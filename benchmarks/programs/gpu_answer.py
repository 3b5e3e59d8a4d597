"""Answer a question or measure a row of `gpu_questions.py`, in a process of its own."""

import gc
import importlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from multiprocessing import set_start_method
from pathlib import Path
from typing import Any
from unittest import mock

import gpu_loops
import torch
from gpu_questions import Question, Row
from peer_setup import module
from projects import read_rows

CONFIG = "--config=configs/default.yaml"
IMAGES = ("resnet", "vit")


class One(int):
    """The size of a process group of one rank: `fsdp` takes it for several, as it is not 1."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def answer(
    asked: Question | Row,
    project: Path,
    result: Path,
) -> None:
    """Write the answer to a JSON file; all that is printed goes to a file beside it."""
    set_start_method("fork", force=True)  # of loader workers, as in a process of its own
    output = result.with_suffix(".out")
    descriptor = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(project)
    sys.path.insert(0, str(project / "src"))
    _set_threads(alone=isinstance(asked, Row))
    runs = result.with_suffix("")
    try:
        answered = _measure(asked, runs) if isinstance(asked, Row) else _ask(asked, runs, output)
        answered["status"] = "ok"
    except BaseException as error:  # also SystemExit: whatever ends it is the answer
        lines = "".join(traceback.format_exception(error)).strip().splitlines()
        answered = {"status": "failed", "why": "\n".join(lines[-12:])}
    result.write_text(json.dumps(answered))


def _set_threads(alone: bool) -> None:
    """Use all cores for a row, and some for a question beside others; one in a dry run."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    elif not alone:
        torch.set_num_threads(2)
        inductor: Any = importlib.import_module("torch._inductor.config")
        inductor.compile_threads = 4


def _ask(
    asked: Question,
    runs: Path,
    output: Path,
) -> dict[str, Any]:
    """Train the reference and the run, and compare them."""
    expected = None
    if asked.reference is not None:
        expected = _losses(_train(asked.model, asked.reference, runs / "reference"))
    if asked.memory < 1:
        _limit_memory(asked.memory)
    with _silent() if asked.silent else nullcontext():
        losses = _losses(_train(asked.model, asked.options, runs / "run", asked.launch))

    assert all(map(math.isfinite, losses)), f"a loss is not finite: {losses}"
    assert not asked.falls or losses[-1] < losses[0], f"the loss did not fall: {losses}"
    assert asked.prints in output.read_text(), f"the run did not print {asked.prints!r}"
    first = round(losses[0], 5)
    last = round(losses[-1], 5)
    result: dict[str, Any] = {"losses": [first, last]}
    if expected is not None:
        result["difference"] = _difference(losses, expected, asked.tolerance)
    return result


def _losses(rows: list[dict[str, Any]]) -> list[float]:
    return [row["loss"] for row in rows]


def _limit_memory(share: float) -> None:
    """Leave this process a share of the GPU memory that it has used so far."""
    peak = torch.cuda.max_memory_reserved()
    total = torch.cuda.mem_get_info()[1]
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(share * peak / total)


def _difference(
    losses: list[float],
    expected: list[float],
    tolerance: float,
) -> float:
    """Return the largest relative difference of a loss, which must be within the tolerance."""
    rows = len(losses)
    assert rows == len(expected), f"{rows} rows of metrics are not {len(expected)}"
    largest = 0.0
    for loss, other in zip(losses, expected, strict=True):
        largest = max(largest, abs(loss - other) / abs(other))
    assert largest <= tolerance, f"{losses} differ from {expected} by {largest:.2g}"
    return largest


@contextmanager
def _silent(warm_up: int = 3) -> Iterator[None]:
    """Let loading and preparing a batch fail if they wait for the GPU.

    The component debug covers the rest of a step.
    """
    log = module("log").Log
    meter = module("metrics").Meter
    wait_for = log.wait_for
    read = meter.read
    steps = itertools.count()

    def wait_silently(own: Any, batches: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error" if next(steps) >= warm_up else "default")
        return wait_for(own, batches)

    def read_aloud(*given: Any) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        return read(*given)

    with (
        mock.patch.object(log, "wait_for", wait_silently),
        mock.patch.object(meter, "read", read_aloud),
    ):
        yield


def _measure(asked: Row, runs: Path) -> dict[str, Any]:
    """Train on synthetic data; return speed, spread and memory.

    The first two blocks of steps do not count.
    """
    if asked.loop == "ceiling":
        return gpu_loops.ceiling()
    cuda = torch.cuda.is_available()
    every = 10 if cuda and asked.steps >= 30 else 1
    options = _row_options(asked, every, cuda)
    load = _synthetic_data(asked.model, cuda)
    result: dict[str, Any] = {}
    if asked.loop:
        arguments = _arguments(asked.model, options, runs / "run")
        speeds = gpu_loops.measure(asked.loop, arguments, load, every)
    else:
        options.append("--mfu.enabled=true")
        rows = _train_only(asked.model, options, runs / "run", load)
        speeds = [row["samples_per_second"] for row in rows]
        result = _medians(rows)
    speeds = speeds[2:] or speeds
    speed = statistics.median(speeds)
    result["samples_per_second"] = speed
    result["spread"] = (max(speeds) - min(speeds)) / speed
    result["memory_gb"] = 0.0
    if cuda:
        result["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        for option in asked.options:
            name, _, value = option.partition("=")
            if name == "--data.context":
                result["tokens_per_second"] = speed * int(value)
    return result


def _row_options(
    asked: Row,
    every: int,
    cuda: bool,
) -> list[str]:
    """Return the options of a row, which is short without a GPU."""
    options = list(asked.options)
    if asked.model in IMAGES:
        options.append("--data.shift=0")
    if cuda:
        options.append(f"--train.steps={asked.steps}")
        options.append(f"--train.eval_every={asked.steps}")
        options.append(f"--log.every={every}")
        return options
    options += DRY
    if asked.model != "resnet":
        options.append("--model.depth=1")
    return options


def _synthetic_data(model: str, cuda: bool) -> Callable[[Any], Any]:
    """Return what replaces `data.load`: random images or tokens, and real text for the LSTM."""
    if model in IMAGES:
        size = 224 if cuda else 32
        return lambda cfg: _random_images(cfg, size)
    if model == "gpt":
        if cuda:
            return lambda cfg: _random_tokens(cfg.context, vocabulary=50304)
        return lambda cfg: _random_tokens(context=32, vocabulary=256)
    load: Callable[[Any], Any] = module("data").load
    return load


def _medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return medians over the blocks but the first two, and the time of the first one."""
    medians: dict[str, float] = {}
    kept = rows[2:] or rows
    for name in ("data_wait", "mfu", "tflops"):
        if name in kept[0]:
            medians[name] = statistics.median(row[name] for row in kept)
    medians["first_row_seconds"] = rows[0]["seconds"]
    return medians


def _train_only(
    model: str,
    options: Sequence[str],
    folder: Path,
    load: Callable[[Any], Any],
) -> list[dict[str, Any]]:
    """Train on these data without a checkpoint and a validation, and return the rows."""
    module("train")
    with (
        mock.patch("proj.checkpoint.Checkpoints.save"),
        mock.patch("proj.checkpoint.Checkpoints.record_best"),
        mock.patch("proj.train.evaluate", return_value={"loss": 0.0}),
        mock.patch("proj.data.load", load),
    ):
        return _train(model, options, folder)


DRY = ("--train.steps=3", "--train.eval_every=3", "--log.every=1", "--train.batch_size=2")
"""Options of a row without a GPU, where nothing is measured."""


def _random_images(cfg: Any, size: int) -> Any:
    """Return data sets of random images, as many as need no disk."""
    data = module("data")
    count = 1024 if size > 200 else 12
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(
        256,
        (count, 3, size, size),
        dtype=torch.uint8,
        generator=generator,
    )
    labels = torch.randint(1000, (count,), generator=generator)
    samples = []
    for image, label in zip(images, labels.tolist(), strict=True):
        samples.append((image, str(label)))
    classes = [str(number) for number in range(1000)]
    train = data.Images(samples[: count * 3 // 4], classes, cfg)
    val = data.Images(samples[count * 3 // 4 :], classes, cfg)
    mean = (0.5,) * 3
    deviation = (0.25,) * 3
    return train, val, data.Spec(3, size, tuple(classes), mean, deviation)


def _random_tokens(context: int, vocabulary: int) -> Any:
    """Return data sets of windows of random tokens."""
    data = module("data")
    count = 256 * context + 1
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(
        vocabulary,
        (count,),
        dtype=torch.int32,
        generator=generator,
    )
    train = data.Windows(tokens, context)
    val = data.Windows(tokens[: 32 * context + 1], context)
    return train, val, data.Spec(vocabulary, context)


def _arguments(
    model: str,
    options: Sequence[str],
    folder: Path,
) -> list[str]:
    text = ("--data.path=text.txt",) if model in ("gpt", "lstm") else ()
    return [CONFIG, *text, *options, f"--run.dir={folder}", "--run.name=run"]


def _train(
    model: str,
    options: Sequence[str],
    folder: Path,
    launch: str = "",
) -> list[dict[str, Any]]:
    """Train with options; return the rows of metrics."""
    given = _arguments(model, options, folder)
    if launch == "two":
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
        ]
        source = {"PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([*command, "-m", "proj.train", *given], check=True, env=os.environ | source)
    else:
        _train_here(given, launch)
    return read_rows(folder / "run", "train")


def _train_here(given: list[str], launch: str) -> None:
    train = module("train").train
    distributed = module("distributed")
    cfg = _parse(given)
    device = distributed.find_device(cfg.run.device)
    world = distributed.World(0, 1, device)
    if launch == "one-rank":
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        torch.distributed.init_process_group(store=store, rank=0, world_size=1)
        world = distributed.World(0, One(1), device)
    if launch == "stop":
        stopped = False
        try:
            train(_parse([*given, "--run.hours=1e-9"]), world)
        except module("errors").Stopped:
            stopped = True
        assert stopped, "the run did not stop"
    train(cfg, world)


def _parse(given: list[str]) -> Any:
    return module("config").parse(module("components").Config, given)
