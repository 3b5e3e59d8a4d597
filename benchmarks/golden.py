"""Record the losses of short runs of every model and option, and compare two recordings bit by bit.

    python benchmarks/golden.py record before.json --revision v0.2.0
    python benchmarks/golden.py record after.json
    python benchmarks/golden.py compare before.json after.json

Checks that refactoring the template does not change results. Each run is a process of its own:
fp32, one thread, 60 steps, each step logged. A case that the revision's template cannot run, as an
option has another name there, is left out, and so is one that only one recording has. The values
depend on the processor and on the build of torch, so make both recordings on one machine; none is
kept in the repository.

Until version 0.3, the rate was scaled by the square root of the global batch divided by 128; the
recipes have the product now. Only the last bit of the rate may differ, so a first look at another
loss is at `lr`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import copier
import yaml
from projects import ROOT, one_thread

STEPS = 60
SAME = [f"--train.steps={STEPS}", "--train.eval_every=30", "--log.every=1"]
TIMES = {
    "seconds",
    "samples_per_second",
    "data_wait",
    "tflops",
    "mfu",
    "slowest_rank",
    "slowest_rank_share",
    "memory_gb",
}
TIMES |= {"prepare", "forward", "backward", "communication", "optimizer"}  # until version 0.3
TWO_RANKS = {"two ranks": [], "two ranks, accumulation": ["--train.gradient_accumulation_steps=2"]}
OPTIONS = {
    "mlp": {
        "accumulation": ["--train.gradient_accumulation_steps=4"],
        "global batch": [
            "--train.global_batch_size=128",
            "--optim.lr_scaling=linear",
            "--optim.base_batch=128",
        ],
        "no clipping": ["--optim.max_grad_norm=null"],
        "clipping": ["--optim.max_grad_norm=0.1"],
        "one worker": ["--loader.num_workers=1"],
        "bf16": ["--speed.precision=bf16"],
        "fp16": ["--speed.precision=fp16"],
        "regression": ["--data.builtin=diabetes"],
    },
    "resnet": {"channels last": ["--speed.channels_last=true"], "shift": ["--data.shift=2"]},
    "lstm": {"series": ["--data.kind=series"]},
}


@dataclass(frozen=True)
class Case:
    """One run."""

    name: str
    framework: str
    model: str
    options: list[str]
    ranks: int = 1


def cases() -> Iterator[Case]:
    """Every pair of framework and model, each framework on two ranks, each option."""
    questions = yaml.safe_load((ROOT / "copier.yml").read_text())
    frameworks = list(questions["frameworks"]["default"])
    models = list(questions["models"]["default"])
    for framework in frameworks:
        for model in models:
            yield Case(f"{framework} {model}", framework, model, [])
        for name, options in TWO_RANKS.items():
            yield Case(f"{framework} mlp: {name}", framework, "mlp", options, 2)
    for model, named in OPTIONS.items():
        for name, options in named.items():
            yield Case(f"{frameworks[0]} {model}: {name}", frameworks[0], model, options)


def record(
    case: Case,
    project: Path,
    number: int,
) -> list[dict[str, Any]] | None:
    """Train; return the logged rows without times, or None if the options are refused."""
    start = [
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={case.ranks}",
        f"--master-port={29600 + number}",
    ]
    options = [
        "--config=configs/default.yaml",
        "--speed.precision=fp32",
        "--speed.compile=off",
        *SAME,
        *case.options,
    ]
    command = [sys.executable, "-m", "proj.train", *options]
    if case.ranks > 1:
        command[1:1] = start
    name = f"golden-{number}"
    done = subprocess.run(
        [*command, f"--run.name={name}"],
        cwd=project,
        env=one_thread(project),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(f"{case.name}: left out: {done.stderr[-500:]}", file=sys.stderr, flush=True)
        return None
    print(case.name, file=sys.stderr, flush=True)
    lines = (project / "runs" / name / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        for key in TIMES & row.keys():
            del row[key]
    return rows


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print the cases that differ, and return how many they are."""
    common = before.keys() & after.keys()
    before = {name: rows for name, rows in before.items() if name in common}
    differing = [name for name in before if before[name] != after[name]]
    for name in differing:
        pairs = zip(before[name], after[name], strict=False)
        different = [pair for pair in pairs if pair[0] != pair[1]]
        print(f"{name}: {different[0] if different else 'another number of rows'}")
    print(f"{len(before) - len(differing)} of {len(before)} recordings are equal to the bit")
    losses = [name for name in before if _losses(before[name]) == _losses(after[name])]
    print(f"{len(losses)} of {len(before)} have losses that are equal to the bit")
    return len(differing)


def _losses(rows: list[dict[str, Any]]) -> list[float]:
    return [row["loss"] for row in rows]


def main() -> None:
    """Read the command line, then record or compare."""
    parser = argparse.ArgumentParser(description="Record and compare the losses of short runs.")
    parser.add_argument("command", choices=["record", "compare"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument(
        "--revision",
        default="HEAD",
        help="the template's git revision; HEAD includes local changes",
    )
    parser.add_argument("--only", default="", help="record only the cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.command == "compare":
        before, after = (json.loads(file.read_text()) for file in args.files)
        before = {name: rows for name, rows in before.items() if args.only in name}
        sys.exit(compare(before, after) > 0)
    chosen = [case for case in cases() if args.only in case.name]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        projects = {}
        for framework, model in dict.fromkeys((case.framework, case.model) for case in chosen):
            target = Path(folder, f"{framework}-{model}", "proj")
            answers = {"project_name": "proj", "framework": framework, "model": model}
            copier.run_copy(
                str(ROOT),
                target,
                answers,
                vcs_ref=args.revision,
                defaults=True,
                quiet=True,
            )
            projects[framework, model] = target
        runs = {}
        for number, case in enumerate(chosen):
            project = projects[case.framework, case.model]
            runs[case.name] = pool.submit(record, case, project, number)
        recordings = {}
        for name, run in runs.items():
            rows = run.result()
            if rows is not None:
                recordings[name] = rows
    args.files[0].write_text(json.dumps(recordings, indent=0) + "\n")


if __name__ == "__main__":
    main()
