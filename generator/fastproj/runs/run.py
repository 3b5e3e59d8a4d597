"""Finding and reading runs: metrics.jsonl, which may still grow, and config.json."""

import json
import shlex
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import FastprojError, printable
from ..template.answers import ANSWERS_FILE
from .frameworks import Framework, framework
from .options import Options, flat

Row = dict[str, Any]
"""A line of metrics.jsonl: `split` is train or val, `step` counts optimizer steps."""
METRICS = "metrics.jsonl"
CONFIG = "config.json"
MEASURED = ("step", "seconds", "samples_per_second", "data_wait", "skipped")
"""Values of a row that are neither negative nor NaN nor infinite."""
LARGEST = 1e15
"""Of these values: integers up to it are exact, and dates and times can be computed."""


@dataclass(frozen=True, eq=False)  # so that runs are keys
class Run:
    """What the files of one run say."""

    name: str
    folder: Path
    rows: list[Row]
    options: Options
    """By the framework's names."""
    versions: dict[str, str]
    commit: str
    command: str
    starts: list[Any]
    """Steps at which it was started or resumed."""
    total_steps: int | None
    """Steps of the whole run, if config.json has them."""
    age: float
    """Seconds since the newest row was written."""

    @property
    def names(self) -> Framework:
        """What the framework calls its options."""
        return framework("lightning" if "lightning" in self.versions else "pytorch")

    @cached_property
    def columns(self) -> dict[str, dict[str, list[Row]]]:
        """The rows of each split that have a number."""
        columns: dict[str, dict[str, list[Row]]]
        columns = {"train": {}, "val": {}}
        for row in self.rows:
            for name in row.keys() - {"split"}:
                columns[row["split"]].setdefault(name, []).append(row)
        return columns

    def of(
        self,
        split: str,
        metric: str,
    ) -> list[Row]:
        """Return the rows of training, or of validation, that have a metric."""
        return self.columns[split].get(metric, [])

    def option(self, name: str) -> Any:
        """Return the value of an option, given by its name in plain PyTorch."""
        return self.options.get(self.names.name(name))


def read_runs(given: list[Path]) -> list[Run]:
    """Read runs, each by its folder or by its name in `runs`; without any, read the newest run."""
    folders = [_folder(path) for path in given] or [_newest(Path.cwd())]
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = list(map(str, folders))
    return [_read(folder, name) for folder, name in zip(folders, names, strict=True)]


def _folder(path: Path) -> Path:
    for folder in (path.parent if path.name == METRICS else path, "runs" / path):
        if (folder / METRICS).is_file():
            return folder
    if not path.exists():
        raise FastprojError(f"there is no run {path}: pass the folder of a run, such as runs/first")
    raise FastprojError(f"{path} is not the folder of a run: it has no {METRICS}")


def _newest(start: Path) -> Path:
    for project in (start, *start.parents):
        if files := [file for file in project.glob(f"runs/*/{METRICS}") if file.is_file()]:
            folder = max(files, key=lambda file: file.stat().st_mtime).parent
            return folder.relative_to(start) if project == start else folder
        if (project / ANSWERS_FILE).exists():
            break
    raise FastprojError(f"no run in {project / 'runs'}: train first, or pass the folder of a run")


def _read(folder: Path, name: str) -> Run:
    record = _record(folder / CONFIG)
    rows = read_rows(folder / METRICS)
    if not rows:
        raise FastprojError(
            f"{folder / METRICS} has no row of metrics yet: "
            "wait until the run has logged its first steps"
        )
    steps = record.get("steps")  # of Lightning, it can be Infinity
    is_known = isinstance(steps, int) and 0 < steps <= LARGEST
    command = record.get("command") or ""
    command = shlex.join(map(str, command)) if isinstance(command, list) else str(command)
    versions = record.get("versions")
    starts = record.get("starts")
    return Run(
        name=printable(name),
        folder=folder,
        rows=rows,
        options=record["config"],
        starts=starts if isinstance(starts, list) else [],
        versions=versions if isinstance(versions, dict) else {},
        commit=str(record.get("commit") or ""),
        command=command,
        total_steps=steps if is_known else None,
        age=max(time.time() - (folder / METRICS).stat().st_mtime, 0),
    )


def read_rows(file: Path) -> list[Row]:
    """Return the rows of metrics.jsonl; none before the first one is written."""
    lines = file.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if row := read_row(line):
            rows.append(row)
        elif number < len(lines):  # the last line may be cut off by a crash, or be written now
            raise FastprojError(
                f"{file}, line {number}: not a row of metrics; "
                "the file is damaged, or of another program"
            )
    return rows


def read_row(line: bytes) -> Row | None:
    """Return the numbers of a line of metrics.jsonl; None if it is not a row."""
    try:
        row = json.loads(line)
        split = row.pop("split")
        values = {printable(name): float(value) for name, value in row.items()}
        if split not in ("train", "val"):
            return None
        for name in MEASURED:
            if not 0 <= values.get(name, 0.0) <= LARGEST:
                return None
        return {**values, "split": split, "step": int(values["step"])}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _record(file: Path) -> dict[str, Any]:
    """Return the content of config.json, with the options of its `config` by their full names.

    There are no options if a copied run comes without it.
    """
    if not file.is_file():
        return {"config": {}}
    try:
        record: dict[str, Any] = json.loads(file.read_bytes())
        if isinstance(record["config"], dict):
            return record | {"config": flat(record["config"])}
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise FastprojError(f"{file} does not describe a run: it is damaged, or of another program")
