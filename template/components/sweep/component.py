"""A search for good options with Optuna, which starts the training command once per trial.

python -m <package>.components.sweep search.yaml --metric accuracy --trials 20 -- launch/local.sh
--run.name {name} search.yaml has a range or a list of values per option:  optim.lr: {low: 1.0e-4,
high: 1.0e-2, log: true} The same command continues a sweep that was killed, or joins one that runs:
several machines can share runs/.
"""

import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from ..errors import UserError, one_line


def suggest(trial: Any, option: str, space: Any) -> Any:
    """Return the trial's value of an option: one of a list, or a number of a range."""
    if isinstance(space, list):
        return trial.suggest_categorical(option, space)
    try:
        low, high = (
            it if isinstance(it, int) else float(it) for it in (space["low"], space["high"])
        )
        suggest_number = trial.suggest_int if isinstance(low + high, int) else trial.suggest_float
        return suggest_number(option, low, high, log=space.get("log", False))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{option} needs a list of values, or low, high and log, and not {space}: {error}"
        ) from None


def validations(name: str, metric: str) -> dict[int, float]:
    """Return the metric of each validation of a run, by step."""
    file = Path("runs", name) / "metrics.jsonl"
    whole_lines = (
        file.read_text(encoding="utf-8").rpartition("\n")[0].splitlines() if file.exists() else []
    )
    rows = [row for row in map(json.loads, whole_lines) if row["split"] == "val"]
    if rows and metric not in rows[0]:
        raise UserError(f"a validation has no {metric}: use one of {', '.join(sorted(rows[0]))}")
    return {row["step"]: row[metric] for row in rows}


def train(trial: Any, name: str, command: list[str], log: Path, metric: str) -> TrialState:
    """Train with a trial's options, and end the run if Optuna prunes it."""
    ends_with_us = (
        (lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM)) if sys.platform == "linux" else None
    )
    with log.open("a") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=ends_with_us)
    reported = -1
    try:
        while True:
            ended = child.poll() is not None  # asked first, so that the last validation is read too
            for step, value in [it for it in validations(name, metric).items() if it[0] > reported]:
                trial.report(value, reported := step)
            if ended:
                return TrialState.FAIL if child.returncode or reported < 0 else TrialState.COMPLETE
            if trial.should_prune():
                return TrialState.PRUNED
            time.sleep(0.2)
    finally:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(90)  # seconds to save a checkpoint
        child.kill()


def sweep(given: argparse.Namespace) -> None:
    """Run trials until the study has enough, and write the best options to best.yaml."""
    space, host = yaml.safe_load(given.search.read_text(encoding="utf-8")), socket.gethostname()
    if not isinstance(space, dict) or not any("{name}" in word for word in given.command):
        raise UserError(
            "a sweep needs options in its file, and {name} in its command, for the name of the run"
        )
    (folder := Path("runs", given.name)).mkdir(parents=True, exist_ok=True)
    log = JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    study = optuna.create_study(
        storage=log, study_name=given.name, direction=given.direction, load_if_exists=True
    )
    for trial in study.get_trials(
        states=[TrialState.RUNNING]
    ):  # of a killed sweep: the run keeps its name and resumes
        name, owner, pid = trial.user_attrs.get("run", ("", "", 0))
        if owner == host and not Path(f"/proc/{pid}").exists():
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params, user_attrs={"run": (name, "", 0)})
    while len(study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED])) < given.trials:
        trial = study.ask()
        name = trial.user_attrs.get("run", (f"{given.name}-{trial.number}",))[0]
        trial.set_user_attr("run", (name, host, os.getpid()))
        chosen = [
            f"--{option}={suggest(trial, option, values)}" for option, values in space.items()
        ]
        print(name, *chosen, flush=True)
        command = [*(word.replace("{name}", name) for word in given.command), *chosen]
        state = train(trial, name, command, folder / f"{name}.log", given.metric)
        values = [*validations(name, given.metric).values()]
        study.tell(trial, values[-1] if state == TrialState.COMPLETE else None, state=state)
        if state == TrialState.FAIL:
            raise UserError(f"the run failed: see {folder / name}.log")
        print(f"{name} {state.name.lower()}: {given.metric} {values[-1]:.6g}", flush=True)
        if study.get_trials(states=[TrialState.COMPLETE]):
            text = f"# {given.metric} {study.best_value:.6g} of {study.best_trial.user_attrs['run'][0]}\n"
            (folder / "best.yaml").write_text(
                text + yaml.safe_dump(study.best_params), encoding="utf-8"
            )


def main(arguments: list[str] | None = None) -> None:
    """Search with the options of the command line."""
    parser = argparse.ArgumentParser(description="Search for good options with Optuna.")
    parser.add_argument(
        "search", type=Path, help="YAML file: a range or a list of values per option"
    )
    parser.add_argument("--metric", required=True, help="validation metric")
    parser.add_argument("--direction", choices=["minimize", "maximize"], default="maximize")
    parser.add_argument(
        "--trials", type=int, default=20, help="trials that end or are pruned, in all"
    )
    parser.add_argument("--name", default="sweep", help="name of the sweep and its folder")
    parser.add_argument("command", nargs="+", help="after --: the training command, with {name}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the run is ended too
    with one_line(), suppress(KeyboardInterrupt):
        sweep(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
