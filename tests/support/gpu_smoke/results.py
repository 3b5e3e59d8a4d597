"""Results of checks: a file of JSON lines, a table, and an exit code."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "failed", "skipped", "not run"]


@dataclass(frozen=True)
class Result:
    """What came out of one check."""

    name: str
    group: str
    status: Status
    """skipped: the machine lacks hardware, which `message` names. not run: the time limit was reached, maybe within."""
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    """Measured values by name, with the unit at the end of the name."""
    message: str = ""


def append(file: Path, row: dict[str, Any]) -> None:
    """Write one row to disk."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def append_result(file: Path, result: Result) -> None:
    """Write one result to disk."""
    append(file, asdict(result))


def read(file: Path) -> tuple[dict[str, Any], list[Result]]:
    """Return the description of the machine, which is the first row, and the last result of each check that was run."""
    about, *rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    found: dict[str, Result] = {}
    for row in rows:
        if row["status"] != "not run" or row["name"] not in found:
            found[row["name"]] = Result(**row)
    return about["about"], list(found.values())


def passed(results: Iterable[Result]) -> bool:
    """Whether nothing failed, and nothing was left out but for missing hardware."""
    return all(result.status in ("ok", "skipped") for result in results)


def line(result: Result) -> str:
    """Return name, status, seconds, what went wrong, and the figures."""
    about = [result.message] * bool(result.message) + [f"{name} {show(it)}" for name, it in result.figures.items()]
    return f"{result.status:8}{result.seconds:6.1f} s  {result.name:34} {'  '.join(about)}"


def show(value: object) -> str:
    """Return a figure with four significant digits."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
