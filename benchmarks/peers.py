"""Time a training step with our loops and with those of others, on the CPU with one thread.

    python benchmarks/peers.py                       # all models, 2 rounds: 10 to 20 minutes
    python benchmarks/peers.py mlp --rounds 2
    python benchmarks/peers.py --keep                # also writes benchmarks/peers.json
    python benchmarks/peers.py vit gpt --compiled    # with torch.compile

All loops of a model have the same initial weights, samples, batches, schedule and steps, and
validate once, after the last step. They must end with the same loss of the validation, within 1e-4;
the bare step does not clip and is left out. Dropout and augmentation are off. The loops of
`programs/loops.py` make a step in turn (the mlp's 50), in one process, so that each pair of blocks
meets the same machine. glibc's malloc keeps freed memory there: otherwise one loop or another has
more page faults, by chance. All of them have the AdamW of `optim.py`. Accelerate, Lightning and
Hugging Face's Trainer are processes of their own.

Prints for each loop the median of all blocks in microseconds of CPU time per step, and the median
of its ratios to the bare step, to the measured step (bare, with clipping and metrics) and to the
tutorial's loop, with the interval that contains 95% of the medians of resampled pairs of blocks.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from machine import keep
from peer_cases import CASES, MLP, Case, lightning_options

PROGRAMS = Path(__file__).parent / "programs"
RESULT = Path(__file__).with_name("peers.json")
WARM_UP = 2
"""Blocks of steps to skip."""
TOLERANCE = 1e-4
KEPT = str(2**32)
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": KEPT, "MALLOC_MMAP_THRESHOLD_": KEPT}
"""Settings with which glibc gives no memory back to the system."""
BASES = ("bare", "measured", "tutorial")
Times = dict[str, list[float]]


def main() -> None:
    """Run the rounds, and print and keep the tables."""
    parser = argparse.ArgumentParser(
        description="Time a training step with our loops and with those of others."
    )
    parser.add_argument(
        "models", nargs="*", help=f"{', '.join(case.model for case in CASES)}; all by default"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--compiled", action="store_true", help="compile the network in the loops of one process"
    )
    parser.add_argument(
        "--keep", action="store_true", help="write the result of these models to peers.json"
    )
    args = parser.parse_args()
    cases = [case for case in CASES if case.model in args.models or not args.models]
    times: dict[str, Times] = {case.model: {} for case in cases}
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for case in cases:
                found = measure(case, Path(folder), number, args.compiled)
                for peer, blocks in found.items():
                    times[case.model].setdefault(peer, []).extend(blocks)
            loads.append(round(os.getloadavg()[1], 1))
            if args.keep:
                keep_tables(times, loads, args.compiled)
    for model, found in times.items():
        for peer, (median, *ratios) in table(found).items():
            shown = "".join(
                f"  {ratio[0]:.3f} ({ratio[1]:.3f} to {ratio[2]:.3f})" for ratio in ratios
            )
            print(f"{model:10}{peer:24}{median:9.0f} us{shown}")


def keep_tables(times: dict[str, Times], loads: list[float], compiled: bool) -> None:
    """Write the tables of these models to peers.json, which keeps the others."""
    columns = ["median, us"] + [
        f"ratio to {base}: median, lower and upper end of 95%" for base in BASES
    ]
    found: dict[str, Any] = {"columns": columns, "models": {}, "compiled": {}}
    if RESULT.exists():
        found |= {key: json.loads(RESULT.read_text())[key] for key in ("models", "compiled")}
    for model, peers in times.items():
        found["compiled" if compiled else "models"][model] = {
            "load of each round": loads,
            "loops": table(peers),
        }
    keep(RESULT, found)


def measure(case: Case, folder: Path, number: int, compiled: bool) -> Times:
    """Run each loop of a case once; check that they end with the same loss."""
    own = {
        "run.device": "cpu",
        "speed.precision": "fp32",
        "loader.workers": 0,
        "log.every": case.every,
    }
    own |= {"train.steps": case.steps, "train.eval_every": case.steps, **case.options}
    own |= {"speed.compile": "model"} if compiled else {}
    options = ["--config=configs/default.yaml", *(f"--{key}={value}" for key, value in own.items())]
    loops = [*BASES, "core", *(name for name in case.loops if name != "timm" or find_spec("timm"))]
    turn = str(case.turn)
    command = [
        str(PROGRAMS / "loops.py"),
        ",".join(loops),
        case.model,
        turn,
        *options,
        f"--run.name={number}",
    ]
    printed = run(render(folder, case.model, "pytorch"), *command)
    times, losses = printed["times"], printed["losses"]
    for peer in () if compiled else case.peers:
        times[peer], losses[peer] = run_peer(case, peer, folder, options, f"{peer}-{number}")
    compared = [loss for peer, loss in losses.items() if peer != "bare"]
    shown = ", ".join(f"{peer} {loss:.6f}" for peer, loss in losses.items())
    print(f"{case.model}, round {number + 1}: loss {shown}", file=sys.stderr, flush=True)
    assert max(compared) - min(compared) <= TOLERANCE * abs(max(compared)), (
        f"{case.model}: the losses differ"
    )
    return {peer: blocks[WARM_UP:] for peer, blocks in times.items()}


def run_peer(
    case: Case, peer: str, folder: Path, options: list[str], name: str
) -> tuple[list[float], float]:
    """Train with another framework; return the microseconds per step of each block, and the loss of the validation."""
    clock = str(PROGRAMS / "cpu_clock.py")
    framework = "lightning" if peer.lower().startswith("lightning") else "accelerate"
    project = render(folder, case.model, "pytorch" if peer == "hf" else framework)
    if peer == "Lightning, all defaults":
        sizes = map(
            str,
            (case.steps, case.every, MLP["train.micro_batch"], MLP["model.width"], MLP["optim.lr"]),
        )
        found = run(project, clock, str(PROGRAMS / "lightning_module.py"), *sizes)
        return found["times"], found["loss"]
    if peer == "hf":
        found = run(project, clock, str(PROGRAMS / "hf_trainer.py"), case.model, *options)
        return found["times"], found["loss"]
    if peer == "lightning":
        options = [*lightning_options(case), f"--trainer.logger.version={name}"]
        run(project, clock, "-m", "proj.train", *options, prints_json=False)
    else:
        run(project, clock, "-m", "proj.train", *options, f"--run.name={name}", prints_json=False)
    rows = [
        json.loads(line)
        for line in (project / "runs" / name / "metrics.jsonl").read_text().splitlines()
    ]
    samples = case.options["train.micro_batch"]
    train = [samples * 1e6 / row["samples_per_second"] for row in rows if row["split"] == "train"]
    return train, next(row["loss"] for row in rows if row["split"] == "val")


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


def run(project: Path, *command: str, prints_json: bool = True) -> Any:
    """Run a Python program in a project with one thread, and return what its last line has."""
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"} | MALLOC
    done = subprocess.run(
        [sys.executable, *command],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1]) if prints_json else None


def table(times: Times) -> dict[str, list[Any]]:
    """Return each loop's median and its ratios to the loops in `BASES`, each with an interval."""
    return {
        peer: [round(statistics.median(blocks), 1), *(ratio(blocks, times[base]) for base in BASES)]
        for peer, blocks in times.items()
    }


def ratio(blocks: list[float], base: list[float]) -> list[float]:
    """Return the median of the ratios of pairs of blocks, and the interval of 95% of the medians of resampled pairs."""
    pairs = [own / other for own, other in zip(blocks, base, strict=True)]
    draw = random.Random(0)  # noqa: S311
    medians = sorted(statistics.median(draw.choices(pairs, k=len(pairs))) for _ in range(1000))
    return [round(it, 4) for it in (statistics.median(pairs), medians[25], medians[974])]


if __name__ == "__main__":
    main()
