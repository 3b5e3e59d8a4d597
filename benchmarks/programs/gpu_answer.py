"""Answer a question or measure a row of `gpu_questions.py`, in a process of its own with the model's project."""

import gc
import importlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import set_start_method
from pathlib import Path
from typing import Any
from unittest import mock

import gpu_loops
import torch
from gpu_questions import Question, Row

CONFIG = "--config=configs/default.yaml"
Losses = list[float]
IMAGES = ("resnet", "vit")


class One(int):
    """The size of a process group of one rank, which `fsdp` takes for several: it does not equal 1."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def answer(asked: Question | Row, project: Path, result: Path) -> None:
    """Write the answer to a JSON file; all that is printed goes to a file beside it."""
    set_start_method("fork", force=True)  # of loader workers, as in a process of its own
    output = result.with_suffix(".out")
    descriptor = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(project)
    sys.path.insert(0, str(project / "src"))
    _set_threads(alone=isinstance(asked, Row))
    try:
        runs = result.with_suffix("")
        found = _ask(asked, runs, output) if isinstance(asked, Question) else _measure(asked, runs)
        answered = {"status": "ok", **found}
    except BaseException as error:  # also SystemExit: whatever ends it is the answer
        kind = "".join(traceback.format_exception(error)).strip().splitlines()
        answered = {"status": "failed", "why": "\n".join(kind[-12:])}
    result.write_text(json.dumps(answered))


def _set_threads(alone: bool) -> None:
    """Use all cores for a row, and some for a question beside others; one in a dry run."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    elif not alone:
        torch.set_num_threads(2)
        inductor: Any = importlib.import_module("torch._inductor.config")
        inductor.compile_threads = 4


def _ask(asked: Question, runs: Path, output: Path) -> dict[str, Any]:
    """Train the reference and the run, and compare them."""
    expected = (
        []
        if asked.reference is None
        else _train(asked.model, asked.reference, runs / "reference")[0]
    )
    if asked.memory < 1:
        peak, total = torch.cuda.max_memory_reserved(), torch.cuda.mem_get_info()[1]
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(asked.memory * peak / total)
    with _silent() if asked.silent else ExitStack():
        losses = _train(asked.model, asked.options, runs / "run", asked.launch)[0]
    assert all(map(torch.isfinite, torch.tensor(losses))), f"a loss is not finite: {losses}"
    assert not asked.falls or losses[-1] < losses[0], f"the loss did not fall: {losses}"
    assert asked.prints in output.read_text(), f"the run did not print {asked.prints!r}"
    found: dict[str, Any] = {"losses": [round(losses[0], 5), round(losses[-1], 5)]}
    if asked.reference is not None:
        assert len(losses) == len(expected), (
            f"{len(losses)} rows of metrics are not {len(expected)}"
        )
        found["difference"] = max(
            abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)
        )
        assert found["difference"] <= asked.tolerance, (
            f"{losses} differ from {expected} by {found['difference']:.2g}"
        )
    return found


@contextmanager
def _silent(warm_up: int = 3) -> Iterator[None]:
    """Let loading and preparing a batch fail if they wait for the GPU; `debug.synchronization` covers the rest."""
    log, meter = (
        importlib.import_module("proj.log").Log,
        importlib.import_module("proj.metrics").Meter,
    )
    wait_for, read = log.wait_for, meter.read
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
    """Train on synthetic data; return speed, spread and memory without the first two blocks of steps."""
    if asked.loop == "ceiling":
        return gpu_loops.ceiling()
    cuda = torch.cuda.is_available()
    every = 10 if cuda and asked.steps >= 30 else 1
    length: tuple[str, ...] = (
        f"--train.steps={asked.steps}",
        f"--train.eval_every={asked.steps}",
        f"--log.every={every}",
    )
    if not cuda:
        length = DRY if asked.model == "resnet" else (*DRY, "--model.depth=1")
    data = ("--data.shift=0",) if asked.model in IMAGES else ()
    options = (*asked.options, *data, *length)
    own_load = importlib.import_module("proj.data").load

    def load(cfg: Any) -> Any:
        return _synthetic(asked.model, cfg, own_load, 224 if cuda else 32)

    if asked.loop:
        speeds = gpu_loops.measure(
            asked.loop, _arguments(asked.model, options, runs / "run"), load, every
        )
        result = {}
    else:
        rows = _train_only(asked.model, (*options, "--mfu.enabled=true"), runs / "run", load)
        speeds = [row["samples_per_second"] for row in rows]
        kept = rows[2:] or rows
        names = {"data_wait", "tflops", "mfu"} & kept[0].keys()
        result = {name: statistics.median(row[name] for row in kept) for name in sorted(names)}
        result["first_row_seconds"] = rows[0]["seconds"]
    speeds = speeds[2:] or speeds
    speed = statistics.median(speeds)
    result |= {"samples_per_second": speed, "spread": (max(speeds) - min(speeds)) / speed}
    context = next(
        (int(it.split("=")[1]) for it in asked.options if it.startswith("--data.context=")), 0
    )
    if context and cuda:
        result["tokens_per_second"] = speed * context
    return result | {"memory_gb": torch.cuda.max_memory_allocated() / 1e9 if cuda else 0.0}


def _train_only(
    model: str, options: tuple[str, ...], folder: Path, load: Callable[[Any], Any]
) -> list[dict[str, Any]]:
    """Train on these data without a checkpoint and a validation, and return the rows."""
    importlib.import_module("proj.train")
    with ExitStack() as stack:
        for name in ("save", "save_best"):
            stack.enter_context(mock.patch(f"proj.checkpoint.Checkpoints.{name}"))
        stack.enter_context(mock.patch("proj.train.evaluate", return_value={"loss": 0.0}))
        stack.enter_context(mock.patch("proj.data.load", load))
        return _train(model, options, folder)[1]


DRY = ("--train.steps=3", "--train.eval_every=3", "--log.every=1", "--train.micro_batch=2")
"""Options of a row without a GPU, where nothing is measured."""


def _synthetic(model: str, cfg: Any, load: Callable[[Any], Any], size: int) -> Any:
    """Return random images or tokens, as many as need no disk; real text for the LSTM."""
    data, generator = importlib.import_module("proj.data"), torch.Generator().manual_seed(0)
    if model in IMAGES:
        count = 1024 if size > 200 else 12
        images = torch.randint(256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
        labels = torch.randint(1000, (count,), generator=generator)
        classes = [str(number) for number in range(1000)]
        samples = [
            (image, str(label)) for image, label in zip(images, labels.tolist(), strict=True)
        ]
        train = data.Images(samples[: count * 3 // 4], classes, cfg)
        val = data.Images(samples[count * 3 // 4 :], classes, cfg)
        return train, val, data.Spec(3, size, tuple(classes), (0.5,) * 3, (0.25,) * 3)
    if model == "gpt":
        context, vocabulary = (cfg.context, 50304) if size > 200 else (32, 256)
        tokens = torch.randint(
            vocabulary, (256 * context + 1,), dtype=torch.int32, generator=generator
        )
        return (
            data.Windows(tokens, context),
            data.Windows(tokens[: 32 * context + 1], context),
            data.Spec(vocabulary, context),
        )
    return load(cfg)


def _arguments(model: str, options: tuple[str, ...], folder: Path) -> list[str]:
    text = ("--data.path=text.txt",) if model in ("gpt", "lstm") else ()
    return [CONFIG, *text, *options, f"--run.dir={folder}", "--run.name=run"]


def _train(
    model: str, options: tuple[str, ...], folder: Path, launch: str = ""
) -> tuple[Losses, list[dict[str, Any]]]:
    """Train with options; return the loss of each row of metrics, and the rows."""
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
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["split"] == "train"]
    return [row["loss"] for row in rows], rows


def _train_here(given: list[str], launch: str) -> None:
    names = ("train", "config", "components", "distributed", "errors")
    train, config, components, distributed, errors = (
        importlib.import_module(f"proj.{name}") for name in names
    )
    cfg = config.parse(components.Config, given)
    device = distributed.find_device(cfg.run.device)
    world = distributed.World(0, 1, device)
    if launch == "one-rank":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        torch.distributed.init_process_group(init_method=address, rank=0, world_size=1)
        world = distributed.World(0, One(1), device)
    if launch == "stop":
        try:
            train.train(config.parse(components.Config, [*given, "--run.hours=1e-9"]), world)
        except errors.Stopped:
            train.train(cfg, world)
        else:
            raise AssertionError("the run did not stop")
        return
    train.train(cfg, world)
