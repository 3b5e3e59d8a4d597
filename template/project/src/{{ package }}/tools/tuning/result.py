"""What tune leaves: the config of what has changed, with the evidence next to each value, a figure and a table."""

import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..atomic_file import atomic_write
from .found import Finding, Options, as_options

BATCH = ("train.micro_batch", "train.accumulate", "train.global_batch")
STAGE = dict.fromkeys(BATCH, "batch") | {"data.cache": "loader", "optim.lr": "lr"}
"""The stage that finds an option, where it is not the name of its section."""


def kept(target: Path, stages: Sequence[str], given: set[str]) -> list[Finding]:
    """Return what a former start has written, but for the options of these stages, and those that are given.

    Raises:
        UserError: the file cannot be read, or has something else.
    """
    try:
        lines = target.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {target} ({error}): give another --write") from error
    given = given | {*BATCH} if given & {*BATCH} else given  # these three belong together
    section, found = "", list[Finding]()
    for number, line in enumerate(lines, start=1):
        entry = re.fullmatch(r"  (\w+): (.+?)(?:  # (.*))?", line)
        if entry and section:
            name = f"{section}.{entry[1]}"
            stage = STAGE.get(name, section)
            if stage not in stages and name not in given:
                values: Options = {name: _value(entry[2])}
                what = as_options(values)[0].removeprefix("--")
                found.append(Finding(stage, what, "as before", entry[3] or "", values))
        elif line.endswith(":") and line[:-1].isidentifier():
            section = line[:-1]
        elif line.strip() not in ("", "{}") and not line.startswith("#"):
            raise UserError(f"{target} is not as tune writes it, in line {number}: rename it, or give another --write")
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # a string without quotes
        return text.strip("'")


def write_config(findings: Iterable[Finding], target: Path, header: Sequence[str]) -> None:
    """Write the values of findings that are kept, atomically.

    Raises:
        UserError: the file cannot be written.
    """
    sections: dict[str, list[str]] = {}
    for finding in findings:
        for number, (name, value) in enumerate(finding.values.items()):
            section, _, key = name.partition(".")
            first = next(iter(finding.values))
            why = finding.why if number == 0 else f"goes with {first.partition('.')[2]}"
            sections.setdefault(section, []).append(f"  {key}: {json.dumps(value)}{f'  # {why}' * bool(why)}")
    lines = [f"# {line}".rstrip() for line in header]
    for section, entries in sections.items():
        lines += [f"{section}:", *entries]
    if not sections:
        lines.append("{}")
    with atomic_write(target, "give another --write") as file:
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(findings: Iterable[Finding]) -> str:
    """Return all findings, within 80 columns."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.stage:8}{finding.what:40} {finding.verdict}")
        lines += [textwrap.fill(finding.why, 80, initial_indent=" " * 8, subsequent_indent=" " * 8)] * bool(finding.why)
    return "\n".join(lines)


def draw(
    target: Path,
    findings: Sequence[Finding],
    curve: Mapping[int, float],
    micro_batch: int,
    ceilings: Mapping[int, float],
    demand: float,
    tests: Sequence[Sequence[Sequence[float]]],
) -> None:
    """Plot the throughput curve, the loader against the model, the changes and the range tests: those there are.

    Raises:
        UserError: the figure cannot be written.
    """
    from matplotlib.figure import Figure  # takes a second to import

    compared = [it for it in findings if it.ratio != 1.0 and math.isfinite(it.ratio) and it.ratio > 0]
    panels = [
        name for name, there in (("batch", curve), ("loader", ceilings), ("changes", compared), ("lr", tests)) if there
    ]
    if not panels:
        return
    figure = Figure(figsize=(5 * len(panels), 3.8), layout="constrained")
    for number, name in enumerate(panels, start=1):
        axes: Any = figure.add_subplot(1, len(panels), number)
        axes.grid(alpha=0.3)
        if name == "batch":
            axes.plot(list(curve), list(curve.values()), "o-")
            axes.axvline(micro_batch, linestyle="--", color="black", linewidth=1, label=f"chosen: {micro_batch}")
            axes.set(title="throughput", xlabel="micro-batch in samples", ylabel="samples/s", xscale="log")
            axes.set_xticks(list(curve), [str(it) for it in curve])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.legend()
        elif name == "loader":
            axes.bar([str(it) for it in ceilings], list(ceilings.values()), width=0.5)
            axes.axhline(demand, linestyle="--", color="black", linewidth=1, label="what the model takes")
            axes.set(title="the loader alone", xlabel="loader.workers", ylabel="samples/s", yscale="log")
            axes.legend()
        elif name == "changes":
            colors = ["tab:green" if it.verdict == "kept" else "tab:gray" for it in compared]
            axes.barh([it.what for it in compared], [it.ratio for it in compared], color=colors)
            axes.axvline(1.0, color="black", linewidth=1)
            axes.invert_yaxis()
            axes.set(title="changes (green: kept)", xlabel="times as fast as without")
        else:
            for rates in tests:
                axes.plot([rate for rate, _ in rates], [loss for _, loss in rates])
            highest = max((rates[0][1] for rates in tests if rates), default=1.0)
            axes.set(title="range tests", xlabel="learning rate", ylabel="smoothed loss", xscale="log")
            axes.set_ylim(top=1.5 * highest)
    with atomic_write(target) as file:
        figure.savefig(file, dpi=110)
