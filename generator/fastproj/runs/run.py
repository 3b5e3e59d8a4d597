"""Finding and reading runs: metrics.jsonl, which may still grow, and config.json."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import FastprojError
from ..template.answers import ANSWERS_FILE
from .frameworks import Framework, framework
from .options import Options, flat

Row = dict[str, Any]
"""A line of metrics.jsonl: `split` is train or val, `step` counts optimizer steps."""
METRICS = "metrics.jsonl"
CONFIG = "config.json"


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
    command: list[str]
    total_steps: int | None
    """Steps of the whole run, if config.json has them."""
    age: float
    """Seconds since the newest row was written."""

    @property
    def names(self) -> Framework:
        """What the framework calls its options."""
        return framework("lightning" if "lightning" in self.versions else "pytorch")

    def of(self, split: str, metric: str) -> list[Row]:
        """Return the rows of training, or of validation, that have a metric."""
        return [row for row in self.rows if row["split"] == split and metric in row]

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
        if files := list(project.glob(f"runs/*/{METRICS}")):
            folder = max(files, key=lambda file: file.stat().st_mtime).parent
            return folder.relative_to(start) if project == start else folder
        if (project / ANSWERS_FILE).exists():
            break
    raise FastprojError(f"no run in {project / 'runs'}: train first, or pass the folder of a run")


def _read(folder: Path, name: str) -> Run:
    record = _record(folder / CONFIG)
    steps = record.get("steps")  # of Lightning, it can be Infinity
    return Run(
        name=printable(name),
        folder=folder,
        rows=_rows(folder / METRICS),
        options=flat(record["config"]),
        versions=record.get("versions", {}),
        commit=record.get("commit") or "",
        command=record.get("command", []),
        total_steps=steps if isinstance(steps, int) and steps > 0 else None,
        age=max(time.time() - (folder / METRICS).stat().st_mtime, 0),
    )


def _rows(file: Path) -> list[Row]:
    lines = file.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if row := _row(line):
            rows.append(row)
        elif number < len(lines):  # the last line may be cut off by a crash, or be written now
            raise FastprojError(
                f"{file}, line {number}: not a row of metrics; "
                "the file is damaged, or of another program"
            )
    if not rows:
        raise FastprojError(
            f"{file} has no row of metrics yet: wait until the run has logged its first steps"
        )
    return rows


def _row(line: bytes) -> Row | None:
    """Return the numbers of a line; None if it is not a row."""
    try:
        row = json.loads(line)
        values = {name: float(row[name]) for name in row if name not in ("split", "step")}
        return {"split": row["split"], "step": int(row["step"]), **values}
    except (ValueError, TypeError, KeyError):
        return None


def _record(file: Path) -> dict[str, Any]:
    """Return the content of config.json; no options if a copied run comes without it."""
    if not file.is_file():
        return {"config": {}}
    try:
        record: dict[str, Any] = json.loads(file.read_bytes())
        if isinstance(record["config"], dict):
            return record
    except (ValueError, TypeError, KeyError):
        pass
    raise FastprojError(f"{file} does not describe a run: it is damaged, or of another program")


def printable(text: str) -> str:
    """Replace characters that control a terminal, or that no encoding has."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
