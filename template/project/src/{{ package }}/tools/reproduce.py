"""Start a run again as it was: say what differs today, train with the same options, and compare the metrics.

    python -m <package>.tools.reproduce runs/first --dry-run    # only says what differs
    python -m <package>.tools.reproduce runs/first --run.name again

The options, and the number of processes, are those in the run's newest checkpoint. Start it in the folder in which the
run was started, as paths may be relative.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from .. import checkpoint, techniques
from ..config import Config, as_dict, from_dict
from ..console import shown
from ..environment import PACKAGE, environment, versions
from ..errors import UserError
from ..failure import leave
from ..faults import provenance
from ..faults.repository import Repository
from ..phase_times import MEASURED

PROGRAM = f"{__package__.rpartition('.')[0]}.train"
NOTHING = "-"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that the new run gets as the old one had them; no others, as some name libraries to load."""
WIDTH = 30

Differences = list[tuple[str, str, str]]
"""What differs, as it was, and as it is now."""


def reproduce(path: Path, name: str | None, dry_run: bool) -> int:
    """Say what differs, start the run again unless `dry_run`, compare the metrics, and return the exit status.

    Raises:
        UserError: there is no good checkpoint, the data cannot be read, or the run cannot be started here.
    """
    found = checkpoint.find(path)
    if found is None:
        raise UserError(f"{path} has no good checkpoint, which says how the run came about: give another run")
    folder, manifest = found.parent.parent, checkpoint.read_manifest(found)
    record = _mapping(manifest.get("provenance"))
    options, differences = todays_options(_mapping(manifest.get("config")))
    cfg = from_dict(options)
    differences = compare(record, today(cfg)) + differences if record else [("provenance", "not recorded", NOTHING)]
    for what, then, now in [("", "then", "now"), *differences] if differences else ():
        print(f"{_cut(what):{WIDTH}}{_cut(then):{WIDTH}}{_cut(now)}".rstrip())
    if not differences:
        print("nothing differs: code, versions, machine, environment, data and options are the same")
    _say_way_back(record, differences, folder)
    ranks, here = (record.get(key, 1) for key in ("ranks", "ranks_here"))
    if not isinstance(ranks, int) or ranks != here:
        raise UserError(
            f"the run had {ranks} processes, {here} on each machine: start them with your launcher, with --config "
            f"{shown(folder / 'config.json')} and another --run.name"
        )
    run = {**options["run"], "dir": str(folder.parent), "name": name or f"{folder.name}-reproduced"}
    run |= {"resume": as_dict(Config())["run"]["resume"], "processes": ranks if ranks > 1 else None}
    log = {**options["log"], "tracker": "none", "tensorboard": None}
    status = 0 if dry_run else start({**options, "run": run, "log": log}, record)
    if not dry_run and status == 0:
        print(compare_rows(folder, folder.parent / run["name"]))
    return status


def todays_options(config: dict[str, Any]) -> tuple[dict[str, Any], Differences]:
    """Return the options of a run that exist today, and those that one of the two versions does not have."""
    known, differences = as_dict(Config()), Differences()
    options = {name: dict(_mapping(keys)) for name, keys in config.items()}  # Lightning's projects have one more
    for section, keys in known.items():
        had = options.setdefault(section, {})
        for key in [key for key in had if key not in keys]:
            differences.append((f"{section}.{key}", _text(had.pop(key)), NOTHING))
        differences += [(f"{section}.{key}", NOTHING, _text(keys[key])) for key in keys if key not in had]
    return options, differences


def today(cfg: Config) -> dict[str, Any]:
    """Return what a run with this config would record now."""
    repository = Repository(PACKAGE)
    found = torch.accelerator.current_accelerator(check_available=True)
    device = found if found is not None and cfg.run.device != "cpu" else torch.device("cpu")
    return {
        "code": provenance.code(),
        "versions": versions(),
        "machine": provenance.machine(device),
        "environment": environment(),
        "data": provenance.fingerprint(techniques.load(cfg.data)),
        "git": repository.read()[0],
    }


def compare(then: dict[str, Any], now: dict[str, Any]) -> Differences:
    """Return what differs between two records."""
    differences = Differences()
    for name in ("commit", "diff", "untracked"):
        was, is_now = (_git(_mapping(record.get("git")), name) for record in (then, now))
        differences += [(name, was, is_now)] if was != is_now else []
    for name in ("code", "data"):
        if then.get(name) != now[name]:
            differences.append((name, _text(then.get(name))[:12], _text(now[name])[:12]))
    for section in ("versions", "machine", "environment"):
        before, after = _mapping(then.get(section)), now[section]
        for key in {**before, **after}:
            if before.get(key) != after.get(key):
                differences.append((key, _text(before.get(key, NOTHING)), _text(after.get(key, NOTHING))))
    return differences


def start(options: dict[str, Any], record: dict[str, Any]) -> int:
    """Train in a child process, and return its exit status; the options are in a file, and no shell reads them."""
    environment = {key: value for key, value in os.environ.items() if key not in THREADS}
    before = _mapping(record.get("environment"))
    environment |= {key: before[key] for key in THREADS if str(before.get(key)).isdecimal()}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.json")
        file.write_text(json.dumps(options), encoding="utf-8")
        command = [sys.executable, "-m", PROGRAM, "--config", str(file)]
        print(shlex.join(command), flush=True)
        child = subprocess.Popen(command, env=environment)

        def pass_on(number: int, _: FrameType | None) -> None:
            if number not in (signal.SIGINT, signal.SIGHUP):  # which a terminal has sent to the child as well
                child.send_signal(number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, pass_on)
        status = child.wait()
    return 128 - status if status < 0 else status


def compare_rows(old: Path, new: Path) -> str:
    """Return how the metrics of two runs compare: those of each row that both have."""
    before, after = _rows(old), _rows(new)
    both = [key for key in before if key in after]
    for split, step in both:
        for metric, value in before[split, step].items():
            other = after[split, step].get(metric)
            if metric not in MEASURED and repr(other) != repr(value):  # NaN is not equal to itself
                return f"first difference: {split} {metric} at step {step}, {value} then and {other} now"
    return f"equal to the bit: all metrics in {len(both)} rows" if both else "not compared: no row of the same step"


def _rows(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        return {(row["split"], row["step"]): row for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {folder / 'metrics.jsonl'} ({error}): the metrics are not compared") from error


def _say_way_back(record: dict[str, Any], differences: Differences, folder: Path) -> None:
    """Say how to get the code of the run."""
    names, git = {name for name, *_ in differences}, _mapping(record.get("git"))
    commit, file = _text(git.get("commit")), _text(_mapping(git.get("diff")).get("file"))
    if names & {"commit", "diff"} and commit.isalnum() and git.get("commit"):
        kept = folder / Path(file).name
        apply = f", then git apply {shlex.quote(str(kept.absolute()))}" if kept.suffix == ".diff" else ""
        print(f"the code of then: git checkout {commit[:12]}{apply}")


def _git(git: dict[str, Any], name: str) -> str:
    """Return one value of the record of a repository, in short."""
    value = git.get(name)
    if name == "diff":
        return _text(_mapping(value).get("sha256"))[:12] if value else "nothing uncommitted"
    if name == "untracked":
        return ", ".join(map(_text, value)) if isinstance(value, list) and value else NOTHING
    return _text(value)[:12] if value else _text(git.get("why", "not recorded"))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    """Return a value as text that a terminal prints as it is."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if text.isprintable() else ascii(text)


def _cut(text: str) -> str:
    return text if len(text) < WIDTH else f"{text[: WIDTH - 5]}..."


def main(argv: list[str] | None = None) -> None:
    """Read the command line, and exit with the status of the training."""
    options = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description="Start a run again as it was.")
    options.add_argument("path", type=Path, help="folder of a run, or of one of its checkpoints")
    options.add_argument("--run.name", dest="name", help="name of the new run; default: that of the old, -reproduced")
    options.add_argument("--dry-run", action="store_true", help="only say what differs today")
    args = options.parse_args(argv)
    try:
        status = reproduce(args.path, args.name, args.dry_run)
    except UserError as error:
        leave(error, [])
    sys.exit(status)


if __name__ == "__main__":
    main()
