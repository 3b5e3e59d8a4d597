"""Interrupt runs at random moments until they are complete, and compare them with an uninterrupted one.

    python benchmarks/soak.py 300
    python benchmarks/soak.py 300 --ranks 2 --busy 2 --framework accelerate

Each run is started, gets SIGKILL, SIGTERM, SIGINT or SIGUSR1 after a random time, also while it starts or saves, and is
started again. With several ranks, one of them or all get it. Weights, optimizer and rows must be equal to the bit.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from faults import open_project, read_results, write_page, write_results

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STOPPED = 75
STEPS, EVERY = 300, 5
OPTIONS = [f"--train.steps={STEPS}", "--train.eval_every=50", f"--checkpoint.every={EVERY}", "--log.every=3"]
"""A checkpoint every few milliseconds, so that many signals arrive while one is written; rows between them."""


def spin() -> None:
    """Use a core."""
    while True:
        pass


def is_expected(status: int | None, number: int, hit: bool, others: bool, met: bool) -> bool:
    """Whether a rank may end so: by the signal, stopped by it, done before it, or after another rank's end.

    Until the ranks have met, one waits for another that was killed for longer than this program does.
    """
    own = {-number, 128 + number, 0} if number == signal.SIGKILL else {-number, 128 + number, STOPPED, 0}
    return status in own if hit and not others else status is not None or not met


class Soak:
    """A run that is interrupted and resumed in a folder until it is complete."""

    def __init__(self, runs: Any, folder: Path, ranks: int, chance: random.Random) -> None:
        self.runs, self.folder, self.ranks, self.chance = runs, folder, ranks, chance
        self.counts: Counter[str] = Counter()
        self.stopped = 0
        """The step at which the run was stopped."""
        self.problems: list[str] = []

    def options(self, name: str) -> list[str]:
        """Return the options of a run."""
        return [*self.runs.OPTIONS, *OPTIONS, f"--run.dir={self.folder}", f"--run.name={name}"]

    def whole(self) -> float:
        """Train without an interruption; return the seconds."""
        begin = time.perf_counter()
        with self.runs.started("train", self.options("whole"), self.ranks, self.folder / "whole.txt") as processes:
            statuses = self.runs.wait(processes)
        if any(statuses):
            sys.exit(f"without an interruption, the run ended with {statuses}: see {self.folder}/whole.txt")
        return time.perf_counter() - begin

    def once(self, name: str, longest: float) -> bool:
        """Start or resume a run, and interrupt it; return whether it is complete."""
        output, number = self.folder / f"{name}.txt", self.chance.choice(SIGNALS)
        output.unlink(missing_ok=True)
        hit = list(range(self.ranks)) if self.chance.random() < 0.5 else [self.chance.randrange(self.ranks)]
        before = last_step(self.folder / name)
        with self.runs.started("train", self.options(name), self.ranks, output) as processes:
            time.sleep(self.chance.uniform(0.1, longest))
            sent = [rank for rank in hit if processes[rank].exitcode is None]
            for rank in sent:
                with suppress(ProcessLookupError):
                    os.kill(processes[rank].pid, number)
            statuses = self.runs.wait(processes)
        printed = output.read_text(errors="replace") if output.exists() else ""
        resumed = re.search(r"^resumed +at step (\d+)", printed, re.MULTILINE)
        stopped = re.search(r"^stopped at step (\d+)", printed, re.MULTILINE)
        begun, signal_name = int(resumed[1]) if resumed else 0, signal.Signals(number).name
        if resumed is not None and before - begun > 2 * EVERY:
            self.problems.append(f"{name}: {before - begun} steps lost")
        if self.stopped and resumed is not None and begun != self.stopped:
            self.problems.append(f"{name}: stopped at {self.stopped}, resumed at {begun}")
        self.stopped = int(stopped[1]) if stopped else self.stopped if resumed is None else 0
        for rank, status in enumerate(statuses):
            begun_at_all = bool(printed)  # before that, the signal ends this program's own part of the process
            met = re.search(r"^run ", printed, re.MULTILINE) is not None
            if begun_at_all and not is_expected(status, number, rank in sent, len(sent) < self.ranks, met):
                self.problems.append(f"{name}: {signal_name} to {sent} gave {statuses}: {printed[-600:]}")
                break
        if self.runs.orphans(processes):
            self.problems.append(f"{name}: processes are left after {signal_name}")
        if sent:
            self.counts["interruptions"] += 1
            self.counts[f"{signal_name} {'stopped' if stopped else 'killed' if any(statuses) else 'done'}"] += 1
            self.counts["saving"] += any(self.folder.glob(f"{name}/checkpoints/.*partial"))
        return not any(statuses)

    def run(self, name: str, longest: float) -> None:
        """Interrupt a run until it is complete, and compare it."""
        self.stopped = 0
        while not self.once(name, longest):
            if len(self.problems) > 5:
                return
        for difference in self.runs.differences(self.folder / name, self.folder / "whole"):
            self.problems.append(f"{name}: {difference}")
        if not self.problems:
            shutil.rmtree(self.folder / name)


def last_step(run: Path) -> int:
    """Return the last step of which a run has a whole row."""
    file = run / "metrics.jsonl"
    for line in reversed(file.read_text().splitlines() if file.exists() else []):
        with suppress(ValueError, KeyError):
            return int(json.loads(line)["step"])
    return 0


def main() -> None:
    """Interrupt as often as asked, and print counts."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("interruptions", type=int)
    options.add_argument("--ranks", type=int, default=1)
    options.add_argument("--busy", type=int, default=0, help="busy loops beside the runs")
    options.add_argument("--framework", default="pytorch")
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    open_project(args.framework)
    runs: Any = __import__("proj.tools.fault_runs", fromlist=["started"])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        runs.preload()
        soak = Soak(runs, Path(folder), args.ranks, random.Random(args.seed))  # noqa: S311  # no secret
        soak.whole()  # also starts the process of which the others are forks
        shutil.rmtree(Path(folder, "whole"))
        longest = soak.whole()
        for _ in range(args.busy):
            busy = multiprocessing.get_context("fork").Process(target=spin, daemon=True)
            busy.start()
            stack.callback(busy.terminate)
        number = 0
        while soak.counts["interruptions"] < args.interruptions and len(soak.problems) < 5:
            number += 1
            soak.run(f"run{number}", longest * (1 if args.busy else 0.5))
            print(f"run {number}: {dict(soak.counts)}", flush=True)
            print("".join(f"    {problem}\n" for problem in soak.problems), end="", flush=True)
    kept, counts = read_results(), soak.counts
    ended = {way: sum(counts[name] for name in counts if name.endswith(way)) for way in ("killed", "stopped")}
    about = {"interruptions": counts["interruptions"], "runs": number, "saving": counts["saving"], **ended}
    kept.setdefault("soak", {})[f"{args.framework} {args.ranks} {args.busy}"] = about | {"problems": soak.problems}
    write_results(kept)
    write_page()
    sys.exit(int(bool(soak.problems)))


if __name__ == "__main__":
    main()
