"""Cause faults in short runs of this project, resume these, and compare them with a run that nothing interrupted.

Each kind of fault, in two minutes; or some kinds, with more at a time:

    python -m <package>.tools.faults
    python -m <package>.tools.faults sigkill torn-file --parallel 4

Weights, optimizer and every row of metrics must be equal to the bit. The runs are in a temporary folder.
"""

import argparse
import json
import math
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from ..errors import STOPPED, UserError
from .fault_cases import COVER, SAVING, Case, Result, expected_status, unexpected
from .fault_runs import (
    EVERY,
    GRACE,
    OPTIONS,
    TOLERANCE,
    differences,
    launch,
    orphans,
    preload,
    resume_stopped,
    started,
    wait,
)

STEPS = {"start": 0, "teardown": 0}
"""Optimizer steps before a fault, by its moment."""


class Trial:
    """Runs of cases in a folder, and the uninterrupted runs that they are compared with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wholes: dict[str, Lock] = {}
        preload()

    def options(self, case: Case, name: str, ranks: int) -> list[str]:
        """Return the options of a run."""
        sharded = case.strategy == "fsdp" and ranks > 1
        own = [
            f"--dist.strategy={'fsdp' if sharded else 'ddp'}",
            f"--loader.workers={int(case.fault == 'worker-killed')}",
        ]
        return [*OPTIONS, *own, f"--run.dir={self.folder}", f"--run.name={name}"]

    def whole(self, case: Case) -> Path:
        """Return the folder of the uninterrupted run.

        Raises:
            UserError: it did not end well.
        """
        name = f"whole-{case.strategy}"
        with self.wholes.setdefault(name, Lock()):
            if not (self.folder / name).exists():
                statuses, printed = self.train(case, name, case.ranks)
                if statuses != [0] * case.ranks:
                    raise UserError(f"without a fault, a run ended with {statuses}: {printed[-500:]}")
        return self.folder / name

    def train(self, case: Case, name: str, ranks: int) -> tuple[list[int | None], str]:
        """Train without a fault; return the statuses, and what was printed."""
        output = self.folder / f"{name}.trained.txt"
        with started("train", self.options(case, name, ranks), ranks, output) as processes:
            statuses = wait(processes)
        return statuses, output.read_text(encoding="utf-8", errors="replace")

    def run(self, case: Case) -> Result:
        """Cause the fault, resume the run, and check both."""
        try:
            return self._run(case)
        except Exception as error:  # of a check, which found something else than it expects: the other cases go on
            return Result([], problems=[f"{type(error).__name__}: {error}"])

    def _run(self, case: Case) -> Result:
        whole, begin, name = self.whole(case), time.perf_counter(), "-".join(map(str, vars(case).values()))
        output, record = self.folder / f"{name}.txt", self.folder / f"{name}.jsonl"
        own = [case.fault, case.moment, f"--rank={case.rank}", f"--step={STEPS.get(case.moment, 5)}"]
        own += [f"--record={record}", "--", *self.options(case, name, case.ranks)]
        if case.launched:
            hang = ["--hold=3600"] if case.fault == "gil-held" else []
            status, left = launch([*own[:2], *hang, *own[2:], "--run.hang_minutes=0.1"], case.ranks, output, name)
            result = Result([status])
        else:
            with started("tools.inject", own, case.ranks, output) as processes:
                if case.fault == "sigstop":
                    resume_stopped(record, processes)
                alone = 2.0 if case.moment == "start" else GRACE  # the other ranks wait for it, for minutes
                result, left = Result(wait(processes, alone)), orphans(processes)
        result.problems += [f"process {pid} is left" for pid in left]
        result.said = output.read_text(encoding="utf-8", errors="replace")
        result.problems += unexpected(case, result)
        if not record.exists():
            return Result(result.statuses, problems=["the fault did not occur"])
        lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
        if len({line["rank"] for line in lines}) != (case.ranks if case.rank == "all" else 1):
            result.problems.append(f"the fault occurred on {len(lines)} ranks")
        printed = result.said
        if any(result.statuses):
            statuses, printed = self.train(case, name, case.restart or case.ranks)
            if statuses != [0] * len(statuses):
                result.problems.append(f"the resumed run ended with {statuses}: {printed[-500:]}")
                return result
        if case.launched or any(result.statuses):
            resumed = re.search(r"^resumed +at step (\d+)", printed, re.MULTILINE)
            result.lost = max(0, max(line["step"] for line in lines) - int(resumed[1] if resumed else 0))
        harmless = expected_status(case) in (0, STOPPED) and not case.launched
        if result.lost > (0 if harmless else EVERY * (1 + (case.moment in SAVING))):
            result.problems.append(f"{result.lost} steps were lost")
        tolerance = TOLERANCE if case.restart else math.inf if case.fault == "out-of-memory" else 0.0
        result.problems += differences(self.folder / name, whole, tolerance)
        result.seconds = time.perf_counter() - begin
        return result


def main(argv: list[str] | None = None) -> None:
    """Read the command line, run the cases and print a table."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.faults", description=__doc__.splitlines()[0])
    parser.add_argument("faults", nargs="*", help="kinds of faults; all by default")
    parser.add_argument("--parallel", type=int, default=2, help="cases at a time; 2 by default")
    args = parser.parse_args(argv)
    cases = [case for case in COVER if not args.faults or case.fault in args.faults]
    if not cases or not {*args.faults} <= {case.fault for case in COVER}:
        parser.error(f"faults are {', '.join(dict.fromkeys(case.fault for case in COVER))}")
    print(f"{'fault':15}{'moment':15}{'rank':5}{'strategy':14}{'status':>10}{'lost':>6}{'seconds':>9}")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.parallel) as pool:
        trial, problems = Trial(Path(folder)), 0
        for case, result in zip(cases, pool.map(trial.run, cases), strict=True):
            statuses = ",".join(map(str, result.statuses))
            print(f"{case!s:49}{statuses:>10}{result.lost:6}{result.seconds:9.1f}", flush=True)
            for problem in result.problems:
                print(f"    {problem}")
            problems += bool(result.problems)
    equal = "every resumed run equals the uninterrupted one" if not problems else f"{problems} with a problem"
    print(f"{len(cases)} faults: {equal}")
    sys.exit(int(problems > 0))


if __name__ == "__main__":
    main()
