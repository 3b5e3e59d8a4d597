"""Time a training step with our loops and with those of others, on the CPU with one thread.

    python benchmarks/peers.py                       # all models, 5 rounds: about 20 minutes on two cores
    python benchmarks/peers.py mlp --rounds 2
    python benchmarks/peers.py --keep                # also writes benchmarks/peers.json

All loops of a model have the same initial weights, samples, batches, schedule and steps, and validate once, after the
last step. They must end with the same loss of the validation, within 1e-4. Dropout and augmentation are off, and the
clipping never changes a gradient, so that the bare step, which has neither, computes the same. Each run is a process
of its own; each round runs every loop once, so that a slow phase of the machine affects all of them. Prints the median
of all blocks of steps in microseconds of CPU time per step, the lowest and highest, the ratio to the bare step (its
median over the rounds), and the ratio of the lowest ones, which other work on the machine changes least.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from machine import machine
from peer_cases import CASES, MLP, Case, lightning_options

PROGRAMS = Path(__file__).parent / "programs"
RESULT = Path(__file__).with_name("peers.json")
WARM_UP = 2
"""Blocks of steps to skip, of 12."""
TOLERANCE = 1e-4
PACKAGES = ("torch", "lightning", "accelerate", "transformers")


def main() -> None:
    """Run the rounds, and print and keep the tables."""
    parser = argparse.ArgumentParser(description="Time a training step with our loops and with those of others.")
    parser.add_argument("models", nargs="*", help=f"{', '.join(case.model for case in CASES)}; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="write the result to peers.json")
    args = parser.parse_args()
    cases = [case for case in CASES if case.model in args.models or not args.models]
    times: dict[str, dict[str, list[list[float]]]] = {case.model: {} for case in cases}
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for case in cases:
                measure(case, Path(folder), number, times[case.model])
            loads.append(round(os.getloadavg()[1], 1))
            if args.keep:
                keep(times, loads)
    for model, found in times.items():
        for peer, (median, low, high, ratio, of_lowest) in table(found).items():
            print(f"{model:10}{peer:26}{median:9.0f} us  ({low:.0f} to {high:.0f})  {ratio:.2f}  {of_lowest:.2f}")


def keep(times: dict[str, dict[str, list[list[float]]]], loads: list[float]) -> None:
    """Write peers.json."""
    columns = ["median", "lowest", "highest", "ratio", "ratio of the lowest"]
    found: dict[str, Any] = {
        "machine": f"{machine()}, one thread",
        "versions": {name: version(name) for name in PACKAGES},
    }
    found |= {"load of each round": loads, "columns": columns}
    tables = {model: table(peers) for model, peers in times.items()}
    RESULT.write_text(json.dumps(found | {"models": tables}, indent=1) + "\n")


def measure(case: Case, folder: Path, number: int, times: dict[str, list[list[float]]]) -> None:
    """Run each loop of a case once; check that they end with the same loss."""
    losses = {}
    for peer in ("bare", "tutorial", "core", *case.peers):
        framework = "lightning" if peer.lower().startswith("lightning") else "accelerate" * (peer == "accelerate")
        project = render(folder, case.model, framework or "pytorch")
        found, losses[peer] = run_peer(case, peer, project, f"{peer}-{number}")
        times.setdefault(peer, []).append(found[WARM_UP:])
    low, high = min(losses.values()), max(losses.values())
    shown = ", ".join(f"{peer} {loss:.6f}" for peer, loss in losses.items())
    print(f"{case.model}, round {number + 1}: loss {shown}", file=sys.stderr, flush=True)
    assert high - low <= TOLERANCE * abs(high), f"{case.model}: the losses differ"


def run_peer(case: Case, peer: str, project: Path, name: str) -> tuple[list[float], float]:
    """Train with a loop; return the microseconds per step of each block, and the loss of the validation."""
    steps = 12 * case.every
    own = {
        "run.device": "cpu",
        "speed.precision": "fp32",
        "loader.workers": 0,
        "optim.clip": 1e9,
        "log.every": case.every,
    }
    own |= {"train.steps": steps, "train.eval_every": steps, **case.options}
    options = ["--config=configs/default.yaml", *(f"--{key}={value}" for key, value in own.items())]
    if peer == "Lightning, all defaults":
        sizes = map(str, (steps, case.every, MLP["train.micro_batch"], MLP["model.width"], MLP["optim.lr"]))
        return printed(run(project, str(PROGRAMS / "lightning_module.py"), *sizes))
    if peer == "lightning":
        run(project, "-m", "proj.train", *lightning_options(case, steps), f"--trainer.logger.version={name}")
    elif peer in ("core", "accelerate"):
        run(project, "-m", "proj.train", *options, f"--run.name={name}")
    elif peer == "hf":
        return printed(run(project, str(PROGRAMS / "hf_trainer.py"), case.model, *options))
    else:
        return printed(run(project, str(PROGRAMS / "loops.py"), peer, case.model, *options))
    rows = [json.loads(line) for line in (project / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    batch = json.loads((project / "runs" / name / "config.json").read_text())["config"]
    samples = batch["train"]["micro_batch"] if "train" in batch else batch["data"]["batch_size"]
    train = [samples * 1e6 / row["samples_per_second"] for row in rows if row["split"] == "train"]
    return train, next(row["loss"] for row in rows if row["split"] == "val")


def printed(output: str) -> tuple[list[float], float]:
    """Read the last line that a program has printed."""
    found = json.loads(output.splitlines()[-1])
    return found["times"], found["loss"]


def render(folder: Path, model: str, framework: str) -> Path:
    """Render a model with a framework, once, and return the project's folder."""
    output = folder / model / framework
    if not output.exists():
        output.mkdir(parents=True)
        answers = ["--model", model, "--framework", framework, "--gpus", "0", "--yes", "--no-git"]
        new = [sys.executable, "-m", "fastproj", "new", "proj", *answers, "--output", str(output)]
        subprocess.run(new, check=True, stdout=subprocess.DEVNULL)
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:20]
        (output / "proj/text.txt").write_bytes(b"".join(file.read_bytes() for file in files))
    return output / "proj"


def run(project: Path, *command: str) -> str:
    """Run a Python program in a project with one thread, and return its output."""
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "cpu_clock.py"), *command],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}: {done.stderr[-3000:]}")
    return done.stdout


def table(times: dict[str, list[list[float]]]) -> dict[str, list[float]]:
    """Return median, lowest, highest and ratios of each loop."""
    middles = {peer: [statistics.median(blocks) for blocks in rounds] for peer, rounds in times.items()}
    every = {peer: [block for blocks in rounds for block in blocks] for peer, rounds in times.items()}
    found = {}
    for peer, blocks in every.items():
        numbers = [round(it(blocks), 1) for it in (statistics.median, min, max)]
        ratio = statistics.median(a / b for a, b in zip(middles[peer], middles["bare"], strict=True))
        found[peer] = [*numbers, round(ratio, 3), round(min(blocks) / min(every["bare"]), 3)]
    return found


if __name__ == "__main__":
    main()
