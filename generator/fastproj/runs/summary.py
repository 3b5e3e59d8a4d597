"""The facts about runs as tables of texts, which the terminal and the page show."""

import json
from contextlib import suppress
from itertools import chain
from typing import Any

from ..errors import printable
from .diagnosis import best_row, diagnose, duration, is_lower_better, metrics
from .run import Row, Run
from .times import events, phases, samples_per_second

Table = dict[str, list[str]]
"""A line for each fact, with a cell for each run."""
OWN = ("run.name", "run.dir", "trainer.logger.init_args.version")
"""Options that differ between any two runs."""
SHOWN = 5
"""Events of a run that the terminal shows."""


def _table(columns: list[dict[str, str]]) -> Table:
    """Put columns with the same or other facts side by side."""
    table: Table = {}
    for place, column in enumerate(columns):
        for name, cell in column.items():
            table.setdefault(name, [""] * len(columns))[place] = cell
    return table


def facts(runs: list[Run]) -> Table:
    """Return the steps, the metrics, the speed and the time of each run."""
    return _table([_facts(run) for run in runs])


def _facts(run: Run) -> dict[str, str]:
    total = "" if run.total_steps is None else f" of {run.total_steps:,}"
    facts = {"steps": f"{run.rows[-1]['step']:,}{total}"}
    if trained := run.of("train", "loss"):
        facts["training loss"] = _last(trained, "loss")
    for name in metrics([run]):
        if rows := run.of("val", name):
            facts[f"validation {name}"] = _last(rows, name)
        if best := best_row(run, name):
            extreme = "lowest" if is_lower_better(run, name) else "highest"
            facts[f"{extreme} validation {name}"] = f"{best[name]:.4g} at step {best['step']:,}"
    if speed := samples_per_second(run):
        facts["samples per second"] = f"{speed:,.0f}"
    if times := phases(run):
        facts["time"] = duration(sum(times.values()))
    return facts


def _last(rows: list[Row], name: str) -> str:
    return f"{rows[-1][name]:.4g}"


def shares(runs: list[Run]) -> Table:
    """Return the time of each phase, and its share."""
    return _table([_shares(run) for run in runs])


def _shares(run: Run) -> dict[str, str]:
    times = phases(run)
    total = sum(times.values())
    shares = {}
    for name, seconds in times.items():
        shares[name] = f"{duration(seconds)}, {seconds / total:.0%}"
    return shares


def options(runs: list[Run]) -> Table:
    """Return all options of each run."""
    names = dict.fromkeys(chain.from_iterable(run.options for run in runs))
    table: Table = {}
    for name in names:
        table[printable(name)] = [_value(run, name) for run in runs]
    return table


def differing(runs: list[Run]) -> Table:
    """Return the options that differ between the runs."""
    table = options(runs)
    for name, cells in list(table.items()):
        if len(set(cells)) == 1 or name in OWN:
            del table[name]
    return table


def _value(run: Run, name: str) -> str:
    value = run.options.get(name, "not set")
    return printable(value if isinstance(value, str) else json.dumps(value))


def environment(runs: list[Run]) -> Table:
    """Return the versions, the commit and the command of each run."""
    return _table([_environment(run) for run in runs])


def _environment(run: Run) -> dict[str, str]:
    facts = run.versions | {"commit": run.commit, "command": run.command}
    return {printable(name): printable(str(fact)) for name, fact in facts.items() if fact}


def findings(runs: list[Run]) -> list[str]:
    """Return the diagnosis of each run."""
    if len(runs) == 1:
        return diagnose(runs[0])
    sentences = []
    for run in runs:
        sentences += [f"{run.name}: {sentence}" for sentence in diagnose(run)]
    return sentences


def report(runs: list[Run]) -> dict[str, Any]:
    """Return what is known of runs, for JSON."""
    other = differing(runs) if len(runs) > 1 else {}
    return {"runs": list(map(_record, runs)), "differing": other, "findings": findings(runs)}


def _record(run: Run) -> dict[str, Any]:
    """Return the facts that summary.json has, from the rows if a run has no such file."""
    validations = run.of("val", "step")
    times = phases(run)
    facts = {
        "name": run.name,
        "folder": str(run.folder),
        "exit": None,
        "steps": run.rows[-1]["step"],
        "total_steps": run.total_steps,
        "best": best_row(run, str(run.option("train.monitor") or "loss")),
        "last": validations[-1] if validations else None,
        "seconds": sum(times.values()),
        "samples_per_second": samples_per_second(run),
        "peak_memory_mb": None,
        "phases": times,
        "events": events(run),
    }
    with suppress(OSError, ValueError, TypeError):
        ended = dict(json.loads((run.folder / "summary.json").read_bytes()))
        facts |= {name: ended[name] for name in facts.keys() & ended.keys()}
    return facts


def text(runs: list[Run]) -> str:
    """Return the summary for the terminal."""
    table = {"run": [run.name for run in runs]}
    table |= facts(runs)
    table |= shares(runs)
    if len(runs) > 1:
        table |= differing(runs)
    lines = in_columns([[name, *cells] for name, cells in table.items()])
    for run in runs:
        begin = "" if len(runs) == 1 else f"{run.name}: "
        happened = events(run)
        lines += [f"{begin}{event}" for _, event in happened[:SHOWN]]
        if len(happened) > SHOWN:
            lines.append(f"{begin}{len(happened) - SHOWN} more events; the page has them")
    return "\n".join([*lines, "", *findings(runs)])


def in_columns(rows: list[list[str]]) -> list[str]:
    """Return a line for each row; all columns but the first are aligned at their ends."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        line = f"{row[0]:{widths[0]}}"
        for cell, width in zip(row[1:], widths[1:], strict=True):
            line += f"  {cell:>{width}}"
        lines.append(line)
    return lines
