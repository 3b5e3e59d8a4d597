"""A search for good options with Optuna, which starts the training command once per trial.

python -m <package>.components.sweep search.yaml --metric accuracy --trials 20
    -- launch/local.sh --run.name {name}    (all in one line)

search.yaml has a range or a list of values per option:

    optim.lr: {low: 1.0e-4, high: 1.0e-2, log: true}

The same command continues a sweep that was killed, or joins one that runs: several machines can
share runs/.
"""

import argparse
import json
import math
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from ..errors import UserError, one_line


def suggest(
    trial: Any,
    option: str,
    space: Any,
) -> Any:
    """Return the trial's value of an option: one of a list, or a number of a range."""
    if isinstance(space, list):
        return trial.suggest_categorical(option, space)
    try:
        low = space["low"]
        high = space["high"]
        log = space.get("log", False)
        if isinstance(low, int) and isinstance(high, int):
            return trial.suggest_int(option, low, high, log=log)
        return trial.suggest_float(option, float(low), float(high), log=log)
    except (KeyError, TypeError, ValueError) as error:
        needed = f"{option} needs a list of values, or low, high and log, and not {space}"
        raise UserError(f"{needed}: {error}") from None


def validations(name: str, metric: str) -> dict[int, float]:
    """Return the metric of each validation of a run, by step."""
    file = Path("runs", name, "metrics.jsonl")
    if not file.exists():
        return {}
    text = file.read_text(encoding="utf-8")
    whole_lines = text.rpartition("\n")[0]
    values = {}
    for line in whole_lines.splitlines():
        row = json.loads(line)
        if row["split"] != "val":
            continue
        if metric not in row:
            known = ", ".join(sorted(row))
            raise UserError(f"a validation has no {metric}: use one of {known}")
        values[row["step"]] = row[metric]
    return values


def train(
    trial: Any,
    name: str,
    command: list[str],
    log: Path,
    metric: str,
) -> TrialState:
    """Train with a trial's options, and end the run if Optuna prunes it."""
    with log.open("a") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output)
    last_step = -1
    try:
        while True:
            status = child.poll()  # asked first, so that the last validation is read too
            for step, value in validations(name, metric).items():
                if step > last_step:
                    last_step = step
                    if math.isfinite(value):  # else Optuna could not compare it
                        trial.report(value, step)
            if status is not None:
                return TrialState.FAIL if status or last_step < 0 else TrialState.COMPLETE
            if trial.should_prune():
                return TrialState.PRUNED
            time.sleep(0.2)
    finally:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(90)  # seconds to save a checkpoint
        child.kill()


def sweep(args: argparse.Namespace) -> None:
    """Run trials until the study has enough, and write the best options to best.yaml."""
    space = yaml.safe_load(args.search.read_text(encoding="utf-8"))
    if not isinstance(space, dict) or "{name}" not in " ".join(args.command):
        raise UserError(
            "a sweep needs options in its file, and {name} in its command, for the name of the run"
        )
    folder = Path("runs", args.name)
    folder.mkdir(parents=True, exist_ok=True)
    best = folder / "best.yaml"
    journal = JournalFileBackend(str(folder / "journal.log"))
    study = optuna.create_study(
        storage=JournalStorage(journal),
        study_name=args.name,
        direction=args.direction,
        load_if_exists=True,
    )
    resume_killed(study)
    ended = [TrialState.COMPLETE, TrialState.PRUNED]
    while len(study.get_trials(states=ended)) < args.trials:
        run_trial(study, space, folder, args)
        if study.get_trials(states=[TrialState.COMPLETE]):
            best_run = study.best_trial.user_attrs["run"]
            title = f"# {args.metric} {study.best_value:.6g} of {best_run}\n"
            best.write_text(title + yaml.safe_dump(study.best_params), encoding="utf-8")
    if not best.exists():
        raise UserError(f"no trial ended with a finite {args.metric}, so there is no {best}")


def resume_killed(study: optuna.Study) -> None:
    """Queue the trials of a sweep that was killed: their runs keep their names and resume."""
    for trial in study.get_trials(states=[TrialState.RUNNING]):
        attrs = trial.user_attrs
        is_here = attrs.get("host") == socket.gethostname()
        if is_here and not Path("/proc", str(attrs["pid"])).exists():
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params, user_attrs={"run": attrs["run"]})


def run_trial(
    study: optuna.Study,
    space: dict[str, Any],
    folder: Path,
    args: argparse.Namespace,
) -> None:
    """Train with the options of one trial, and record how it ended."""
    trial = study.ask()
    name = trial.user_attrs.get("run", f"{args.name}-{trial.number}")
    trial.set_user_attr("run", name)
    trial.set_user_attr("pid", os.getpid())
    trial.set_user_attr("host", socket.gethostname())
    options = []
    for option, values in space.items():
        options.append(f"--{option}={suggest(trial, option, values)}")
    print(name, *options, flush=True)
    command = [word.replace("{name}", name) for word in args.command] + options
    log = folder / f"{name}.log"
    state = train(trial, name, command, log, args.metric)
    if state == TrialState.FAIL:
        study.tell(trial, state=state)
        raise UserError(f"the run failed: see {log}")
    *_, result = validations(name, args.metric).values()
    if not math.isfinite(result):
        state = TrialState.PRUNED  # never the best
    study.tell(trial, result if state == TrialState.COMPLETE else None, state=state)
    print(f"{name} {state.name.lower()}: {args.metric} {result:.6g}", flush=True)


def main(
    arguments: list[str] | None = None,
) -> None:
    """Search with the options of the command line."""
    parser = argparse.ArgumentParser(description="Search for good options with Optuna.")
    parser.add_argument("search", type=Path, help="YAML file: a range or list per option")
    parser.add_argument("--metric", required=True, help="validation metric")
    parser.add_argument("--direction", choices=["minimize", "maximize"], default="maximize")
    parser.add_argument("--trials", type=int, default=20, help="trials to end or prune, in all")
    parser.add_argument("--name", default="sweep", help="name of the sweep and its folder")
    parser.add_argument("command", nargs="+", help="after --: the training command, with {name}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the run is ended too
    with one_line(), suppress(KeyboardInterrupt):
        sweep(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
