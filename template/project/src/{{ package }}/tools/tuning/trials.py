"""Trials that are compared in turn, within a budget, and kept in a file, so that a second start takes them up."""

import hashlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import UserError
from .. import trial
from .found import ROUNDS, Compared, Finding, Measured, Options, as_options, number

FILE = "trials.jsonl"
SECONDS = 2.5
"""What a trial measures, after its warm-up."""
FIRST_LIMIT = 180.0
"""Seconds that the first trial has, whatever the budget: it shows how long the others take."""


class BudgetError(Exception):
    """The budget is too small for a further trial."""


class Trials:
    """Makes trials of the training command with the options of the tool's command line."""

    def __init__(self, base: Iterable[str], folder: Path, budget: float, key: Mapping[str, Any]) -> None:
        """`key` is what a kept trial must share with those of today: code, machine, files of options."""
        self.base, self.folder, self.key = [*base], folder, {**key, "base": [*base]}
        self.began = time.monotonic()
        self.deadline = self.began + budget
        self.stage, self.new, self.needs = "start", 0, 0.0
        self.last: tuple[Options, Measured] = {}, Measured("failed", "", 0.0)
        """The values that were measured last."""
        self.host_memory_gb = math.inf
        self.speed = math.nan
        """Samples per second, about, which says how many steps a trial takes."""
        self.ranks, self.train = 1, dict[str, Any]()
        """Ranks, and the section of the config, which say how many samples a step has."""
        self.findings: list[Finding] = []
        """What the stages have found so far, in order."""
        self.kept = _read(folder / FILE)
        self.resumed = len(self.kept) > 2
        """Whether there is more than what every start begins with."""

    def left(self) -> float:
        """Return the seconds of the budget that are left."""
        return self.deadline - time.monotonic()

    def remember(self, what: Mapping[str, Any], make: Callable[[], Mapping[str, Any]], needs: float) -> dict[str, Any]:
        """Return what a former start has kept about this, or make it, which takes about `needs` seconds.

        Raises:
            BudgetError: less is left.
            UserError: the file cannot be written.
        """
        name = hashlib.sha256(json.dumps([self.key, what], sort_keys=True, default=str).encode()).hexdigest()
        if name not in self.kept:
            if self.left() < needs:
                raise BudgetError
            self.kept[name] = {**make()}
            self.new += 1
            file = self.folder / FILE
            try:
                with file.open("a+b") as stream:
                    stream.seek(max(0, stream.tell() - 1))
                    cut = stream.read() not in (b"", b"\n")  # a former start was killed while it wrote
                    row = json.dumps({"trial": name, "what": what, "found": self.kept[name]})
                    stream.write(b"\n" * cut + row.encode() + b"\n")
            except OSError as error:
                raise UserError(f"cannot write {file} ({error.strerror}): give another --output") from error
        return self.kept[name]

    def measure(self, values: Options, turn: str = "") -> Measured:
        """Run the base config with other values; `turn` tells trials of the same values apart.

        Raises:
            BudgetError: too little of the budget is left.
            UserError: the first trial fails, but not for lack of memory.
        """
        seconds = self.samples_per_step(values) / self.speed if self.train and self.speed > 0 else math.inf
        steps = 8 if math.isinf(seconds) else min(max(round_up(SECONDS / seconds, 4), 4), 4000)
        every = steps // 4
        warmup = every * math.ceil(4 / every)
        options = as_options(values)

        def make() -> dict[str, Any]:
            limit = max(self.left(), FIRST_LIMIT) if self.stage == "start" else min(self.left(), _longest(self.needs))
            found = trial.run(
                [*self.base, *options],
                steps=steps,
                warmup=warmup,
                every=every,
                validate=True,
                limit=limit,
                memory_gb=self.host_memory_gb if self.stage in ("start", "batch") else math.inf,
            )
            if found.outcome == "timeout" and limit < _longest(self.needs) and self.stage != "start":
                raise BudgetError
            if found.outcome in ("failed", "timeout") and self.stage == "start":  # it may have another end next time
                raise UserError(f"the config does not run: {found.reason or 'it ended without a word'}")
            wait = found.median("data_wait")
            return {
                **asdict(Measured(found.outcome, found.reason, found.seconds, found.median(), found.memory_gb)),
                "data_wait": None if math.isnan(wait) else wait,
            }

        former = self.new
        what = {"options": options, "steps": steps, "turn": turn}
        found = Measured(**self.remember(what, make, self.needs if self.stage != "start" else -math.inf))
        if self.new > former:
            self.say(values, found)
            self.needs = (time.monotonic() - self.began) / self.new + 1.0
        self.last = values, found
        return found

    def ask(self, config: Mapping[str, Any], **request: Any) -> Any:
        """Return the answer of `probe.py` about a run with this config.

        Raises:
            BudgetError: too little of the budget is left.
            UserError: it fails, with its reason.
        """

        def make() -> dict[str, Any]:
            with tempfile.TemporaryDirectory(prefix="tune-") as temporary:
                asked, answer, errors = (Path(temporary, name) for name in ("asked", "answer", "errors"))
                asked.write_text(json.dumps({"config": config, **request}), encoding="utf-8")
                with trial.started(f"{__package__}.probe", [str(asked), str(answer)], errors) as child:
                    limit = max(self.left(), FIRST_LIMIT)
                    try:
                        child.wait(limit)
                    except subprocess.TimeoutExpired:
                        raise UserError(f"the data took longer than {limit:.0f} s to load") from None
                if not answer.exists():
                    lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                    raise UserError((lines or ["the data cannot be measured"])[-1].removeprefix("error: "))
                return {"answer": json.loads(answer.read_text(encoding="utf-8"))}

        needs = self.needs if "loaders" in request else -math.inf
        return self.remember({"asked": request, "config": config}, make, needs)["answer"]

    def samples_per_step(self, values: Options) -> int:
        train = {**self.train, **{name.removeprefix("train."): it for name, it in values.items()}}
        return int(train["global_batch"] or self.ranks * train["micro_batch"] * train["accumulate"])

    def compare(
        self, base: Options, other: Options, label: str = "", worth: float = 1.0, rounds: int = ROUNDS
    ) -> Compared:
        """Measure two settings in turn; end after a round in which the other one is below `worth` times as fast.

        Both are measured anew, as a machine's speed changes with time, but for the very last measurement. `label`
        tells comparisons of the same settings apart.
        """
        reason, last = "", self.last
        pairs: list[tuple[Measured, Measured]] = []
        for turn in range(rounds):
            name = f"{label}{as_options(other)} {turn}"
            ours = last[1] if turn == 0 and last[0] == base and last[1].ok else None
            theirs = self.measure(other, name) if turn % 2 else None
            ours = ours or self.measure(base, name)
            theirs = theirs or self.measure(other, name)
            if not ours.ok:
                raise UserError(
                    f"the config that was measured before fails now: {ours.outcome}: {ours.reason}; "
                    f"to measure it again, delete {self.folder / FILE}"
                )
            reason = "" if theirs.ok else f"{theirs.outcome}: {theirs.reason}".removeprefix("failed: ")
            pairs += [(ours, theirs)] if theirs.ok else []
            if reason or theirs.speed < worth * ours.speed:
                break
        speeds = [ours.speed for ours, _ in pairs], [theirs.speed for _, theirs in pairs]
        return Compared(*speeds, reason, pairs[0][1].seconds - pairs[0][0].seconds if pairs else 0.0)

    def say(self, values: Options, found: Measured) -> None:
        """Show on stderr that a trial has ended."""
        what = " ".join(it.removeprefix("--") for it in as_options(values)) or "the config as it is"
        memory = f"{found.memory_gb:.2f} GB" if found.memory_gb else ""
        result = f"{number(found.speed):>7} samples/s {memory:>8} " if found.ok else f"{found.outcome}, "
        self.tell(f"{result} {what}{'' if found.ok else f': {found.reason}'}")

    def tell(self, text: str) -> None:
        """Show a line of progress on stderr."""
        line = f"{time.monotonic() - self.began:5.0f} s  {self.stage:6} {text}"
        print(line if len(line) <= 80 else f"{line[:77]}...", file=sys.stderr, flush=True)


def _longest(needs: float) -> float:
    """Return the seconds after which a trial is given up: it may compile, or read all samples."""
    return 60.0 + 10 * needs


def round_up(value: float, multiple: int) -> int:
    """Return the least multiple that is at least `value`."""
    return math.ceil(value / multiple) * multiple


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Return the trials of former starts, but for lines that are damaged."""
    found = {}
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        try:
            row = json.loads(line)
            found[row["trial"]] = dict(row["found"])
        except (ValueError, KeyError, TypeError):
            continue
    return found
