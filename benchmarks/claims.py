"""Measure claims of the speed guides that a CPU can show, and write them to benchmarks/claims.json.

    .venv/bin/python benchmarks/claims.py                   # all, about 15 minutes on two cores
    .venv/bin/python benchmarks/claims.py one_cycle clipping

Each measurement trains rendered projects, with three seeds, on the data that they come with.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("claims.json")
SEEDS = (0, 1, 2)
CONSTANT = ["--optim.div_factor=1", "--optim.final_div_factor=1", "--optim.cycle_momentum=false"]
"""1cycle with these options has a constant rate."""
WORK = Path(tempfile.mkdtemp(prefix="claims-"))


@cache
def project(model: str, variant: str = "") -> Path:
    """Render the project of a model."""
    output = WORK / f"{model}{variant}"
    output.mkdir()
    command = [
        sys.executable,
        "-m",
        "fastproj",
        "new",
        "p",
        "--model",
        model,
        "--gpus",
        "0",
        "--yes",
        "--no-git",
    ]
    subprocess.run([*command, "--output", str(output)], check=True, stdout=subprocess.DEVNULL)
    return output / "p"


def train(folder: Path, seed: int, *options: str) -> list[dict[str, Any]]:
    """Train in fp32 with one thread; return the rows of validation, none if the loss was not finite."""
    run = Path(tempfile.mkdtemp(dir=WORK))
    fixed = [
        "--config=configs/default.yaml",
        f"--run.dir={run}",
        "--run.name=a",
        f"--run.seed={seed}",
    ]
    fixed += ["--run.device=cpu", "--speed.precision=fp32", "--log.every=100000"]
    variables = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "p.train", *fixed, *options]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        return []
    rows = [json.loads(line) for line in (run / "a/metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["split"] == "val"]


def one_cycle() -> dict[str, Any]:
    """Optimizer steps of resnet until 98% accuracy: the shortest 1cycle run, and a constant rate at any validation."""
    folder, target = project("resnet"), 0.98
    lengths = (4, 6, 8, 12, 16, 24, 32)
    found: dict[str, list[int | None]] = {}
    for seed in SEEDS:
        runs = (train(folder, seed, f"--train.epochs={epochs}") for epochs in lengths)
        ends = (rows[-1] for rows in runs if rows)
        reached = next((row["step"] for row in ends if row["accuracy"] >= target), None)
        found.setdefault("1cycle, peak 8e-3", []).append(reached)
        for rate in (2e-3, 8e-3):
            rows = train(folder, seed, *CONSTANT, f"--optim.lr={rate}", "--train.epochs=48")
            reached = next((row["step"] for row in rows if row["accuracy"] >= target), None)
            found.setdefault(f"constant {rate:g}", []).append(reached)
    return {"target": target, "steps": found}


def clipping() -> dict[str, Any]:
    """Bits per byte of the LSTM after 300 steps, with and without clipping of the gradient norm."""
    found: dict[str, list[float | None]] = {}
    for seed in SEEDS:
        for rate in (1e-2, 3e-2):
            for clip in ("1.0", "null"):
                options = [
                    f"--optim.lr={rate}",
                    f"--optim.clip={clip}",
                    "--train.steps=300",
                    "--train.eval_every=300",
                ]
                rows = train(project("lstm"), seed, *options, "--data.val_fraction=0.02")
                value = rows[-1]["bits_per_byte"] if rows else None
                found.setdefault(f"rate {rate:g}, clip {clip}", []).append(value)
    return {"bits_per_byte": found}


def batch_norm() -> dict[str, Any]:
    """Accuracy of resnet after 12 epochs, with BatchNorm and without, at several peak rates."""
    plain = project("resnet", "-plain")
    model = plain / "src/p/model.py"
    text = model.read_text()
    for old, new in {
        "padding=kernel // 2, bias=False)": "padding=kernel // 2)",
        "nn.BatchNorm2d(outputs)": "nn.Identity()",
        'layers[-1][1].get_parameter("weight")': 'layers[-1][0].get_parameter("weight")',
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    model.write_text(text)
    found: dict[str, list[float | None]] = {}
    for seed in SEEDS:
        for name, folder in {"BatchNorm": project("resnet"), "none": plain}.items():
            for rate in (5e-4, 2e-3, 8e-3):
                rows = train(folder, seed, f"--optim.lr={rate}", "--train.epochs=12")
                found.setdefault(f"{name}, rate {rate:g}", []).append(
                    rows[-1]["accuracy"] if rows else None
                )
    return {"accuracy": found}


LARGEST = """
import os, resource, sys, torch
from p import data, model
from p.config import parse
from p.components import Config
cfg = parse(Config, ["--config=configs/default.yaml", *sys.argv[3:]])
train_set, _, spec = data.load(cfg.data)
net, prepare = model.build(cfg.model, spec), data.Prepare(spec, cfg.data)
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
        resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]) * 2**20, resource.RLIM_INFINITY))
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
    """Largest micro-batch of which a training step fits 256 MiB beside the model, in fp32 and with bf16 autocast."""
    found: dict[str, int] = {}
    for model in ("resnet", "gpt"):
        folder = project(model)
        for precision in ("fp32", "bf16"):
            variables = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-c", LARGEST, precision, "256"]
            found[f"{model}, {precision}"] = int(
                subprocess.check_output(command, cwd=folder, env=variables, text=True)
            )
    return {"samples": found}


def from_numpy() -> dict[str, Any]:
    """Milliseconds to make a tensor of an array of 64 MiB, in interleaved rounds."""
    array = np.zeros((4096, 4096), np.float32)
    ways: dict[str, Callable[[Any], Any]] = {
        "from_numpy": torch.from_numpy,
        "as_tensor": torch.as_tensor,
    }
    ways["tensor, a copy"] = torch.tensor
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(30):
        for name, make in ways.items():
            begin = time.perf_counter()
            make(array)
            times[name].append(1000 * (time.perf_counter() - begin))
    return {
        "milliseconds": {
            name: [min(it), statistics.median(it), max(it)] for name, it in times.items()
        }
    }


CLAIMS = {it.__name__: it for it in (one_cycle, clipping, batch_norm, largest_batch, from_numpy)}


def main() -> None:
    """Measure what was named, and write it."""
    options = argparse.ArgumentParser(description="Measure claims of the speed guides.")
    options.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(CLAIMS)}; all by default"
    )
    for name in options.parse_args().names or CLAIMS:
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[name] = {"what": CLAIMS[name].__doc__, "machine": machine(), **CLAIMS[name]()}
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        print(name, json.dumps(results[name], indent=2))


if __name__ == "__main__":
    main()
