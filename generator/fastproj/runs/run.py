"""Finding and reading runs: metrics.jsonl, which may still grow, and config.json."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.answers import ANSWERS_FILE
from ..shared.errors import FastprojError
from .options import LIGHTNING, flat

Row = dict[str, Any]
"""A line of metrics.jsonl: `split` is train or val, `step` counts optimizer steps, and the rest are numbers."""
METRICS, CONFIG = "metrics.jsonl", "config.json"


@dataclass(frozen=True)
class Run:
    """What the files of one run say."""

    name: str
    folder: Path
    rows: list[Row]
    options: dict[str, Any]
    """Each option under its full name, such as optim.lr."""
    versions: dict[str, str]
    commit: str
    command: list[str]
    total_steps: int | None
    """Steps of the whole run, if config.json has them."""
    age: float
    """Seconds since the newest row was written."""

    def of(self, split: str) -> list[Row]:
        """Return the rows of training, or of validation."""
        return [row for row in self.rows if row["split"] == split]

    def key(self, option: str) -> str:
        """Return the name of an option in this run's framework."""
        return LIGHTNING[option] if "lightning" in self.versions else option

    def option(self, option: str) -> Any:
        """Return the value of an option in this run's framework."""
        return self.options.get(self.key(option))


def read_runs(given: list[Path]) -> list[Run]:
    """Read the given runs, each by its folder or by its name in `runs`; without any, read the newest run."""
    folders = [_folder(path) for path in dict.fromkeys(given)] or [_newest(Path.cwd())]
    names = [folder.resolve().name for folder in folders]
    return [
        _read(folder, str(folder) if names.count(name) > 1 else name)
        for folder, name in zip(folders, names, strict=True)
    ]


def _folder(path: Path) -> Path:
    for folder in (path.parent if path.name == METRICS else path, "runs" / path):
        if (folder / METRICS).is_file():
            return folder
    if not path.exists():
        raise FastprojError(f"there is no run {path}: pass the folder of a run, such as runs/first")
    raise FastprojError(f"{path} is not the folder of a run: it has no {METRICS}")


def _newest(start: Path) -> Path:
    for project in (start, *start.parents):
        files = [file for file in project.glob(f"runs/*/{METRICS}") if file.is_file()]
        if files:
            newest = max(files, key=lambda file: file.stat().st_mtime).parent
            return newest.relative_to(start) if project == start else newest
        if (project / ANSWERS_FILE).exists():
            break
    raise FastprojError(f"no run in {project / 'runs'}: train first, or pass the folder of a run")


def _read(folder: Path, name: str) -> Run:
    file, record = folder / METRICS, _read_config(folder / CONFIG)
    lines = file.read_bytes().split(b"\n")
    rows = [_row(file, number, line) for number, line in enumerate(lines[:-1], 1) if line.strip()]
    try:
        rows += [_row(file, len(lines), lines[-1])] if lines[-1] else []
    except FastprojError:
        if not rows and lines[-1].lstrip()[:1] != b"{":
            raise
    if not rows:  # the last line is being written, or was cut off by a crash
        raise FastprojError(
            f"{file} has no row of metrics yet: wait until the run has logged its first steps"
        )
    versions, command, steps = record.get("versions"), record.get("command"), record.get("steps")
    return Run(
        name=printable(name),
        folder=folder,
        rows=rows,
        options=flat(record.get("config")),
        versions={str(key): str(it) for key, it in versions.items()}
        if isinstance(versions, dict)
        else {},
        commit=str(record.get("commit") or ""),
        command=[str(word) for word in command] if isinstance(command, list) else [],
        total_steps=steps if isinstance(steps, int) and steps > 0 else None,
        age=max(time.time() - file.stat().st_mtime, 0),
    )


def _row(file: Path, number: int, line: bytes) -> Row:
    row = _parse(line)
    if (
        isinstance(row, dict)
        and row.get("split") in ("train", "val")
        and type(row.get("step")) is int
    ):
        try:
            values = {
                str(name): float(it) for name, it in row.items() if name not in ("split", "step")
            }
            return {"split": row["split"], "step": row["step"], **values}
        except (TypeError, ValueError, OverflowError):
            pass
    raise FastprojError(
        f"{file}, line {number}: not a row of metrics; the file is damaged, or of another program"
    )


def _read_config(file: Path) -> dict[str, Any]:
    """Return the content of config.json, or nothing if a copied run comes without it."""
    if not file.is_file():
        return {}
    record = _parse(file.read_bytes())
    if isinstance(record, dict) and isinstance(record.get("config"), dict):
        return record
    raise FastprojError(f"{file} does not describe a run: it is damaged, or of another program")


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def printable(text: str) -> str:
    """Replace characters that control a terminal, or that no encoding has."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
