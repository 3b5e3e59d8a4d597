"""Measure claims of the speed guides that a CPU can show, and write them to benchmarks/claims.json.

    .venv/bin/python benchmarks/claims.py                   # all, about 15 minutes on two cores
    .venv/bin/python benchmarks/claims.py one_cycle clipping

Each measurement trains rendered projects, with three seeds, on the data that they come with.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine
from projects import one_thread, read_rows, render_project

RESULTS = Path(__file__).with_name("claims.json")
SEEDS = (0, 1, 2)
CONSTANT = ["--optim.div_factor=1", "--optim.final_div_factor=1", "--optim.cycle_momentum=false"]
"""1cycle with these options has a constant rate."""
TARGET = 0.98
"""Accuracy that `one_cycle` waits for."""
WITHOUT_BATCH_NORM = {
    "padding=kernel // 2, bias=False)": "padding=kernel // 2)",
    "nn.BatchNorm2d(outputs)": "nn.Identity()",
    'layers[-1][1].get_parameter("weight")': 'layers[-1][0].get_parameter("weight")',
}
"""Changes of resnet's model.py."""
WORK = Path(tempfile.mkdtemp(prefix="claims-"))


@cache
def project(model: str, variant: str = "") -> Path:
    """Render the project of a model."""
    output = WORK / f"{model}{variant}"
    output.mkdir()
    return render_project(output, "p", model)


def train(folder: Path, seed: int, *options: str) -> list[dict[str, Any]]:
    """Train in fp32 with one thread; return the validations, none if the loss was not finite."""
    run = Path(tempfile.mkdtemp(dir=WORK))
    command = [
        sys.executable,
        "-m",
        "p.train",
        "--config=configs/default.yaml",
        f"--run.dir={run}",
        "--run.name=a",
        f"--run.seed={seed}",
        "--run.device=cpu",
        "--speed.precision=fp32",
        "--log.every=100000",
        *options,
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env=one_thread(folder),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        return []
    return read_rows(run / "a", "val")


def one_cycle() -> dict[str, Any]:
    """Steps of resnet until 98% accuracy: the shortest 1cycle run, and constant rates."""
    folder = project("resnet")
    steps: dict[str, list[int | None]] = defaultdict(list)
    for seed in SEEDS:
        shortest = None
        for epochs in (4, 6, 8, 12, 16, 24, 32):
            rows = train(folder, seed, f"--train.epochs={epochs}")
            shortest = first_step(rows[-1:])
            if shortest is not None:
                break
        steps["1cycle, peak 8e-3"].append(shortest)

        for rate in (2e-3, 8e-3):
            rows = train(folder, seed, *CONSTANT, f"--optim.lr={rate}", "--train.epochs=48")
            steps[f"constant {rate:g}"].append(first_step(rows))
    return {"target": TARGET, "steps": steps}


def first_step(rows: list[dict[str, Any]]) -> int | None:
    """Return the step of the first validation that reaches the target, if one does."""
    for row in rows:
        if row["accuracy"] >= TARGET:
            return int(row["step"])
    return None


def clipping() -> dict[str, Any]:
    """Bits per byte of the LSTM after 300 steps, with and without clipping of the gradient norm."""
    results: dict[str, list[float | None]] = defaultdict(list)
    for seed, rate, clip in product(SEEDS, (1e-2, 3e-2), ("1.0", "null")):
        rows = train(
            project("lstm"),
            seed,
            f"--optim.lr={rate}",
            f"--optim.max_grad_norm={clip}",
            "--train.steps=300",
            "--train.eval_every=300",
            "--data.val_fraction=0.02",
        )
        value = rows[-1]["bits_per_byte"] if rows else None
        results[f"rate {rate:g}, clip {clip}"].append(value)
    return {"bits_per_byte": results}


def batch_norm() -> dict[str, Any]:
    """Accuracy of resnet after 12 epochs, with BatchNorm and without, at several peak rates."""
    plain = project("resnet", "-plain")
    model = plain / "src/p/model.py"
    text = model.read_text()
    for old, new in WITHOUT_BATCH_NORM.items():
        assert old in text, old
        text = text.replace(old, new)
    model.write_text(text)

    folders = {"BatchNorm": project("resnet"), "none": plain}
    results: dict[str, list[float | None]] = defaultdict(list)
    for seed, name, rate in product(SEEDS, folders, (5e-4, 2e-3, 8e-3)):
        rows = train(folders[name], seed, f"--optim.lr={rate}", "--train.epochs=12")
        value = rows[-1]["accuracy"] if rows else None
        results[f"{name}, rate {rate:g}"].append(value)
    return {"accuracy": results}


LARGEST = """
import os, resource, sys, torch
from p import data, model
from p.config import parse
from p.components import Config
cfg = parse(Config, ["--config=configs/default.yaml", *sys.argv[3:]])
train_set, _, spec = data.load(cfg.data)
net = model.build(cfg.model, spec)
prepare = data.Prepare(spec, cfg.data)
optimizer = torch.optim.AdamW(net.parameters())

def step(size):
    batch = prepare(train_set.__getitems__([0] * size), True, torch.default_generator)
    with torch.autocast("cpu", torch.bfloat16, enabled=sys.argv[1] == "bf16"):
        loss, _ = net(*batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

step(8)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

def fits(size):
    child = os.fork()  # each trial starts with the same memory
    if child == 0:
        limit = used + int(sys.argv[2]) * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        try:
            step(size)
        except (RuntimeError, MemoryError):
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0

low, high = 8, 16
while fits(high):
    low, high = high, 2 * high
while high - low > max(8, low // 32):
    middle = (low + high) // 16 * 8
    low, high = (middle, high) if fits(middle) else (low, middle)
print(low)
"""


def largest_batch() -> dict[str, Any]:
    """Largest micro-batch whose training step fits 256 MiB beside the model, in fp32 and bf16."""
    samples: dict[str, int] = {}
    for model, precision in product(("resnet", "gpt"), ("fp32", "bf16")):
        folder = project(model)
        command = [sys.executable, "-c", LARGEST, precision, "256"]
        printed = subprocess.check_output(
            command,
            cwd=folder,
            env=one_thread(folder),
            text=True,
        )
        samples[f"{model}, {precision}"] = int(printed)
    return {"samples": samples}


def from_numpy() -> dict[str, Any]:
    """Milliseconds to make a tensor of an array of 64 MiB, in interleaved rounds."""
    array = np.zeros((4096, 4096), np.float32)
    ways: dict[str, Callable[[Any], Any]] = {
        "from_numpy": torch.from_numpy,
        "as_tensor": torch.as_tensor,
        "tensor, a copy": torch.tensor,
    }
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(30):
        for name, make in ways.items():
            begin = time.perf_counter()
            make(array)
            times[name].append(1000 * (time.perf_counter() - begin))
    results = {}
    for name, values in times.items():
        results[name] = [min(values), statistics.median(values), max(values)]
    return {"milliseconds": results}


CLAIMS: dict[str, Callable[[], dict[str, Any]]] = {
    "one_cycle": one_cycle,
    "clipping": clipping,
    "batch_norm": batch_norm,
    "largest_batch": largest_batch,
    "from_numpy": from_numpy,
}


def main() -> None:
    """Measure what was named, and write it."""
    known = ", ".join(CLAIMS)
    parser = argparse.ArgumentParser(description="Measure claims of the speed guides.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{known}; all by default")
    for name in parser.parse_args().names or CLAIMS:
        claim = CLAIMS[name]
        results = json.loads(RESULTS.read_text())
        results[name] = {"what": claim.__doc__, "machine": machine(), **claim()}
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        print(name, json.dumps(results[name], indent=2))


if __name__ == "__main__":
    main()
