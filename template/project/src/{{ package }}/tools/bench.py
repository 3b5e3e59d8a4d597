"""Measure what each technique gives on this machine, with short runs of the training command.

    python -m <package>.tools.bench
    python -m <package>.tools.bench --only compile,precision --rounds 5 --train.micro_batch 64

From the config (configs/default.yaml, and configs/tuned.yaml if there is one), each technique is disabled alone; and
from a naive config, which has none of them, each is enabled alone. Options of the training command apply to all runs.
"""

if __name__ == "__main__":
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until torch is imported: an exception in there may get lost

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UserError, short_warnings
from ..failure import leave
from . import bench_measure, bench_report, trial
from .bench_measure import Budget, Case, Measured
from .bench_techniques import TECHNIQUES, Facts, Technique

CONFIGS = ("configs/default.yaml", "configs/tuned.yaml")
WARM_UP = 10
SECONDS = 2.0
"""What the measured steps of a run should take, if their number is not given."""
STEPS = (20, 1000)
"""The lowest and highest number of steps, then."""


def ablation(chosen: Sequence[Technique], facts: Facts) -> tuple[list[Case], dict[str, str]]:
    """Return the runs to compare, and why other techniques are skipped.

    The names are `config` and `config - technique`, and `naive` and `naive + technique`.
    """
    possible = [technique for technique in TECHNIQUES if not facts.lacking(technique)]
    skipped = {technique.name: why for technique in chosen if (why := facts.lacking(technique))}
    off = {key: value for technique in possible for key, value in technique.off.items()}
    changes = [technique.change for technique in possible if technique.change]
    cases, naive = [Case("config")], [Case("naive", off, changes)]
    for technique in [it for it in possible if it in chosen]:
        if facts.uses(technique):
            cases.append(Case(f"config - {technique.name}", technique.off, [technique.change] * bool(technique.change)))
        others = [change for change in changes if change != technique.change]
        options = {key: value for key, value in off.items() if key not in technique.off}
        naive.append(Case(f"naive + {technique.name}", options | facts.switched_on(technique), others))
    return [*cases, *naive], skipped


def bench(base: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """Measure, and return what bench.json has.

    Raises:
        UserError: the config is refused, or the budget is too small.
    """
    budget = Budget(args.budget)
    chosen = pick(args.only)
    print("a run to see how long one takes", file=sys.stderr, flush=True)
    probe = bench_measure.run(Case("probe"), base, STEPS[0], WARM_UP, min(bench_measure.LIMIT, budget.left()))
    if probe.outcome == "timeout":
        raise UserError(f"--budget {args.budget:g} is too small: a single run takes longer; give more seconds")
    if probe.outcome != "ok":
        raise UserError(f"the config does not train ({probe.outcome}): {probe.reason}")
    facts = Facts(probe.config)
    rate = bench_measure.speed(probe.rows)
    steps = args.steps or round(min(max(SECONDS * rate / facts.global_batch, STEPS[0]), STEPS[1]))
    cases, skipped = ablation(chosen, facts)
    each = probe.seconds + max(0, steps - STEPS[0]) * facts.global_batch / rate
    needed = bench_measure.MIN_ROUNDS * len(cases) * each
    if needed > budget.left():
        raise UserError(
            f"--budget {args.budget:g} is too small: {len(cases)} runs of about {each:.0f} s, "
            f"{bench_measure.MIN_ROUNDS} times; give {1.5 * needed + probe.seconds:.0f} or more, or fewer techniques "
            "with --only"
        )
    print(f"{len(cases)} runs of {steps} steps, about {each:.0f} s each, {args.rounds} rounds", file=sys.stderr)
    found, status = bench_measure.measure(cases, base, args.rounds, steps, WARM_UP, budget)
    return {
        "options": list(base),
        "status": status,
        "steps": steps,
        "rounds": max(len(it.samples_per_second) for it in found.values()),
        **bench_report.where(facts),
        "skipped": skipped,
        "runs": {name: described(it, facts) for name, it in found.items()},
        "effects": effects(found),
    }


def effects(found: dict[str, Measured]) -> dict[str, dict[str, Any]]:
    """Return the effect of each technique that was measured, by the name of its run."""
    measured: dict[str, dict[str, Any]] = {}
    for name, it in found.items():
        start, sign, _ = name.partition(" - ") if " - " in name else name.partition(" + ")
        if not sign or not it.samples_per_second or not found[start].samples_per_second:
            continue
        pair = found[start].samples_per_second, it.samples_per_second
        measured[name] = vars(bench_measure.effect(*(pair if sign == " + " else reversed(pair))))
    return measured


def described(it: Measured, facts: Facts) -> dict[str, Any]:
    """Return the values of a run; a step's time follows from its samples."""
    if not it.samples_per_second:
        return {"skipped": it.reason or "stopped"}
    values: dict[str, Any] = {key: value for key, value in vars(it).items() if isinstance(value, list) and value}
    values |= {"ended": it.reason} if it.reason else {}
    return values | {"step_ms": [1000 * facts.global_batch / rate for rate in it.samples_per_second]}


def pick(only: str | None) -> list[Technique]:
    """Return the techniques of `--only`, or all.

    Raises:
        UserError: there is none of this name.
    """
    names = [technique.name for technique in TECHNIQUES]
    wanted = names if only is None else [name for name in only.split(",") if name]
    unknown = [name for name in wanted if name not in names]
    if unknown or not wanted:
        raise UserError(f"--only {only}: there is no such technique; choose from {', '.join(names)}")
    return [technique for technique in TECHNIQUES if technique.name in wanted]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options that are not those of the training command."""
    names = ", ".join(technique.name for technique in TECHNIQUES)
    found = argparse.ArgumentParser(
        prog=f"python -m {__package__}.bench",
        description="Measure what each technique gives on this machine: disabled alone in your config, and enabled "
        "alone in a naive one. Other options are those of the training command, for all runs.",
        epilog=f"Techniques: {names}.",
        allow_abbrev=False,
    )
    found.add_argument("--only", metavar="NAME,NAME", help="only these techniques")
    found.add_argument("--rounds", type=number(int, 2), default=3, help="runs of each case (default: 3)")
    found.add_argument("--steps", type=number(int, 5), help="steps of a run (default: as many as take about 2 s)")
    found.add_argument("--budget", type=number(float, 1), default=1200, help="seconds for all (default: 1200)")
    found.add_argument(
        "--output", type=Path, default=Path("runs/bench"), help="folder of the result (default: runs/bench)"
    )
    found.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    found.add_argument("--pages", type=Path, metavar="DIR", help="measure the comparisons in DIR/comparisons.json")
    return found


def number(kind: type, least: float) -> Any:
    """Return what reads a number of an option."""

    def read(text: str) -> Any:
        with suppress(ValueError):
            if least <= (value := kind(text)) < float("inf"):
                return value
        raise argparse.ArgumentTypeError(f"{text} is not a number of {least} or more")

    return read


def main(argv: list[str] | None = None) -> None:
    """Read the command line, measure, and print."""
    args, options = parser().parse_known_args(argv)
    short_warnings()
    trial.end_on_signals()
    try:
        if args.pages is not None:
            from .bench_pages import fill

            fill(args.pages, trial.configs(options, *CONFIGS))
            return
        pick(args.only)
        base = trial.configs(options, *CONFIGS)
        bench_report.writable(args.output)
        busy = trial.busy()
        if busy:
            print(f"warning: {busy}", file=sys.stderr)
        result = bench(base, args) | {"busy": busy}
        bench_report.write(result, args.output)
    except UserError as error:
        leave(error, options)
    print(json.dumps(result) if args.json else bench_report.table(result))
    if not args.json:
        print(f"\nfiles: {args.output / 'bench.json'}, {args.output / 'bench.png'}")
    sys.exit(result["status"])


if __name__ == "__main__":
    main()
