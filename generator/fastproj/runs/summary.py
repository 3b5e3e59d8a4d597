"""The facts about runs as tables of texts, which the terminal and the page show."""

import json
import shlex
from typing import Any

from .diagnosis import compare, diagnose, duration, lowest
from .run import Row, Run, printable
from .times import events, phases, samples_per_second

Table = dict[str, list[str]]
"""A line for each fact, with a cell for each run."""
OWN = ("run.name", "run.dir", "trainer.logger.init_args.version")
"""Options that differ between any two runs."""
SHOWN = 5
"""Events of a run that the terminal shows."""


def facts(runs: list[Run]) -> Table:
    """Return the steps, the metrics, the speed and the time of each run."""
    found = {"steps": [f"{run.rows[-1]['step']:,}" + _of(run.total_steps) for run in runs]}
    found["training loss"] = [_last(run.of("train"), "loss") for run in runs]
    metrics = dict.fromkeys(name for run in runs for row in run.of("val") for name in row)
    for name in sorted(
        metrics.keys() - {"split", "step", "seconds"}, key=lambda name: (name != "loss", name)
    ):
        found[f"validation {name}"] = [_last(run.of("val"), name) for run in runs]
    best = [lowest(run) for run in runs]
    found["lowest validation loss"] = [f"{row['loss']:.4g}" if row else "" for row in best]
    found["  at step"] = [f"{row['step']:,}" if row else "" for row in best]
    speeds = [samples_per_second(run) for run in runs]
    found["samples per second"] = ["" if it is None else f"{it:,.0f}" for it in speeds]
    found["time"] = [duration(sum(phases(run).values())) if phases(run) else "" for run in runs]
    return {name: cells for name, cells in found.items() if any(cells)}


def _of(total: int | None) -> str:
    return "" if total is None else f" of {total:,}"


def _last(rows: list[Row], name: str) -> str:
    values = [row[name] for row in rows if name in row]
    return f"{values[-1]:.4g}" if values else ""


def shares(runs: list[Run]) -> Table:
    """Return the time of each phase, and its share."""
    times = [phases(run) for run in runs]
    return {
        name: [
            f"{duration(it[name])}, {it[name] / sum(it.values()):.0%}" if name in it else ""
            for it in times
        ]
        for name in dict.fromkeys(name for it in times for name in it)
    }


def differing(runs: list[Run]) -> Table:
    """Return the options that differ between the runs."""
    names = dict.fromkeys(
        name for run in runs if run.options for name in run.options if name not in OWN
    )
    values = {name: [_value(run, name) for run in runs] for name in names}
    return {printable(name): cells for name, cells in values.items() if len(set(cells)) > 1}


def _value(run: Run, name: str) -> str:
    value: Any = run.options.get(name, "not set")
    return printable(value if isinstance(value, str) else json.dumps(value))


def options(run: Run) -> Table:
    """Return all options of a run."""
    return {printable(name): [_value(run, name)] for name in run.options}


def environment(runs: list[Run]) -> Table:
    """Return the versions, the commit and the command of each run."""
    found = {
        name: [run.versions.get(name, "") for run in runs]
        for name in dict.fromkeys(name for run in runs for name in run.versions)
    }
    found["commit"] = [run.commit for run in runs]
    found["command"] = [shlex.join(run.command) for run in runs]
    return {
        printable(name): [printable(cell) for cell in cells]
        for name, cells in found.items()
        if any(cells)
    }


def findings(runs: list[Run]) -> list[tuple[str, str]]:
    """Return the diagnosis of each run with its name, and what a comparison says, without a name."""
    found = [(run.name, sentence) for run in runs for sentence in diagnose(run)]
    return found + ([("", it) for it in compare(runs, differing(runs))] if len(runs) > 1 else [])


def text(runs: list[Run]) -> str:
    """Return the summary for the terminal."""
    tables = [
        {"run": [run.name for run in runs]},
        facts(runs),
        shares(runs),
        differing(runs) if runs[1:] else {},
    ]
    width = max(len(name) for table in tables for name in table)
    columns = [
        max(len(cells[place]) for it in tables for cells in it.values())
        for place in range(len(runs))
    ]
    lines = []
    for table in tables:
        for name, cells in table.items():
            padded = [f"{cell:>{size}}" for cell, size in zip(cells, columns, strict=True)]
            lines.append(f"{name:{width}}  {'  '.join(padded)}")
    one = len(runs) == 1
    for run in runs:
        begin = "" if one else f"{run.name}: "
        found = [event for _, event in events(run)]
        lines += [f"{begin}{event}" for event in found[:SHOWN]]
        lines += (
            [f"{begin}{len(found) - SHOWN} more events; the page has them"]
            if len(found) > SHOWN
            else []
        )
    lines += ["", *(f"{name}: {it}" if name and not one else it for name, it in findings(runs))]
    return "\n".join(lines)
