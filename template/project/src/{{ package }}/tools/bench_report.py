"""What `bench` prints and writes: a table within 80 columns, bench.json and a bar chart."""

import json
import os
import platform
import statistics
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..distributed import device_name
from ..environment import cpu
from ..errors import UserError
from .atomic_file import atomic_write
from .bench_measure import effect
from .bench_techniques import Facts

COLUMNS: dict[str, tuple[str, int, Callable[[float], str]]] = {
    "samples_per_second": ("samples/s", 11, lambda it: f"{it:,.0f}" if it >= 100 else f"{it:#.3g}"),
    "step_ms": ("step ms", 9, lambda it: f"{it:#.3g}" if it < 100 else f"{it:,.0f}"),
    "memory_gb": ("memory GB", 11, lambda it: f"{it:.2f}"),
    "mfu": ("MFU", 6, lambda it: f"{it:.0%}"),
    "data_wait": ("wait", 6, lambda it: f"{it:.0%}"),
}
"""Heading, width and form of each value."""
NAME, WIDTH = 18, 80
COLORS = {"faster": "#2e7d4f", "slower": "#b3412e", "none": "#9aa5b1", "unknown": "#9aa5b1"}


def where(facts: Facts) -> dict[str, Any]:
    """Return the machine, the versions and the date of a measurement."""
    return {
        "machine": machine(facts.device),
        "ranks": facts.ranks,
        "global_batch": facts.global_batch,
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def versions() -> str:
    """Return those of torch and Python."""
    return f"torch {torch.__version__}, Python {platform.python_version()}"


def machine(device: torch.device) -> str:
    """Return the name of the GPU, or that of the processor and the number of usable cores, for Apple's GPUs as well."""
    name = device_name(device)
    if name != device.type:
        return name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cpu()}, {cores} cores{f', {name}' * (name != 'cpu')}"


def table(result: dict[str, Any]) -> str:
    """Return the tables as text: what each technique gives from the config, and from a naive one."""
    lines = [f"{result['machine']}; {result['versions']}"]
    ranks = f", {result['ranks']} ranks" * (result["ranks"] > 1)
    rounds = f"{result['rounds']} round{'s' * (result['rounds'] > 1)}"
    lines.append(f"medians of {rounds} of {result['steps']} steps of {result['global_batch']}{ranks}")
    runs = result["runs"]
    shown = [key for key in COLUMNS if any(key in run for run in runs.values())]
    titles = {"config": "your config, each technique disabled alone", "naive": "none of them, each enabled alone"}
    for start, title in titles.items():
        lines += ["", title, _heading(shown), _line(start, runs[start], shown, "")]
        for name, run in runs.items():
            if name.startswith((f"{start} - ", f"{start} + ")):
                said = _said(result["effects"].get(name))
                lines.append(_line(name.removeprefix(start).strip(), run, shown, said))
    both = [runs[start].get("samples_per_second") for start in titles]
    if all(both):
        said = _said(vars(effect(both[1], both[0])))
        lines += ["", f"all that your config has, times as fast as none of them: {said}"]
    ended = {name: run for name, run in runs.items() if "ended" in run}
    lines += [""] * bool(ended)
    lines += [f"{name}: round {len(run['samples_per_second']) + 1}: {run['ended']}" for name, run in ended.items()]
    lines += [""] * bool(result["skipped"]) + [f"skipped {name}: {why}" for name, why in result["skipped"].items()]
    return "\n".join(textwrap.fill(it, WIDTH, subsequent_indent="    ") if len(it) > WIDTH else it for it in lines)


def _heading(shown: Sequence[str]) -> str:
    cells = "".join(f"{COLUMNS[key][0]:>{COLUMNS[key][1]}}" for key in shown)
    return f"{'':{NAME}}{cells}  times as fast"


def _line(name: str, run: dict[str, Any], shown: Sequence[str], said: str) -> str:
    if "skipped" in run:
        return f"{name:{NAME}}  {run['skipped']}"
    cells = ""
    for key in shown:
        _, width, form = COLUMNS[key]
        cells += f"{form(statistics.median(run[key])) if key in run else '-':>{width}}"
    return f"{name:{NAME}}{cells}  {said}".rstrip()


def _said(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    ratio, low, high = (f"{found[key]:.{2 if found[key] < 10 else 1}f}" for key in ("ratio", "low", "high"))
    others = {"none": "no effect", "unknown": "one round only"}
    return others.get(found["kind"], f"{ratio} ({low}-{high})")


def writable(folder: Path) -> None:
    """Create the folder of the result.

    Raises:
        UserError: it cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".partial-bench").touch()
        (folder / ".partial-bench").unlink()
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error.strerror}): give another --output") from error


def write(result: dict[str, Any], folder: Path) -> None:
    """Write bench.json and bench.png.

    Raises:
        UserError: they cannot be written.
    """
    with atomic_write(folder / "bench.json") as file:
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    with atomic_write(folder / "bench.png") as file:
        draw(result).savefig(file, dpi=120)


def draw(result: dict[str, Any]) -> Any:
    """Return the figure: a bar for each technique, from 1 to how many times faster it makes a run."""
    from matplotlib.figure import Figure  # imported here because it takes a second

    effects = result["effects"]
    panels = {"your config, against it without": " - ", "enabled alone, against none of them": " + "}
    named = {title: [name for name in effects if sign in name] for title, sign in panels.items()}
    figure = Figure(figsize=(8, 1.6 + 0.3 * sum(map(len, named.values()))), layout="constrained")
    figure.suptitle(f"What each technique gives\n{result['machine']}; {result['versions']}", fontsize=10)
    ratios = [max(len(names), 1) for names in named.values()]
    for axes, (title, names) in zip(
        figure.subplots(2, 1, sharex=True, height_ratios=ratios), named.items(), strict=True
    ):
        for place, name in enumerate(reversed(names)):
            found = effects[name]
            axes.barh(place, found["ratio"] - 1, left=1, color=COLORS[found["kind"]], height=0.7)
            axes.plot([found["low"], found["high"]], [place, place], color="#333333", linewidth=1.2)
        axes.set_yticks(range(len(names)), [name.split(" ", 2)[2] for name in reversed(names)], fontsize=8)
        axes.axvline(1, color="#333333", linewidth=0.8)
        axes.set_title(title, fontsize=9, loc="left")
        axes.tick_params(labelsize=8)
        axes.grid(axis="x", alpha=0.3)
    figure.supxlabel("times as fast with it; grey: no measurable effect; lines: lowest to highest", fontsize=8)
    return figure
