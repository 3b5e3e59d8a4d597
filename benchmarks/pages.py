"""Write what was measured into the docs: the tables and charts of docs/techniques/ and docs/frameworks.md.

    python benchmarks/pages.py

The measurements are in techniques.json and frameworks.json next to this file: benchmarks/bench.py and
benchmarks/frameworks.py write them, and then these pages. A test checks that the pages show them.
"""

import json
import os
import platform
import re
import statistics
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import chart
import comparisons_cpu
import comparisons_gpu
import torch

ROOT = Path(__file__).parents[1]
TECHNIQUES = Path(__file__).with_name("techniques.json")
FRAMEWORKS = Path(__file__).with_name("frameworks.json")
COMPARISONS = {"cpu": comparisons_cpu.COMPARISONS, "cuda": comparisons_gpu.COMPARISONS}
BLOCK = re.compile(r"(<!-- measurements[^>]*-->\n).*?(<!-- end of measurements -->)", re.DOTALL)
SHOWN_FRAMEWORKS = {
    "bare step": "bare step",
    "pytorch": "fastproj, pytorch",
    "tutorial loop": "tutorial loop",
    "accelerate": "fastproj, accelerate",
    "lightning": "fastproj, lightning",
    "lightning, all defaults and `self.log`": "Lightning's defaults",
}
"""The rows of the chart of frameworks, with their labels there."""


@dataclass(frozen=True)
class Measured:
    """A comparison that was made: the values of all rounds, without and with a technique."""

    what: str
    machine: str
    versions: str
    without: list[float]
    with_it: list[float]
    smaller_is_better: bool = False
    outcome: bool = False
    """Whether the values are results of training, such as an accuracy, which have no ratio."""

    @property
    def ratio(self) -> str:
        """The factor by which the technique is better, or `-` for an outcome."""
        before, after = statistics.median(self.without), statistics.median(self.with_it)
        return "-" if self.outcome else f"{(before / after if self.smaller_is_better else after / before):.2f}"


@cache
def measured() -> dict[str, list[Measured]]:
    """Read the measurements of each page in docs/techniques/."""
    kept: dict[str, list[dict[str, Any]]] = json.loads(TECHNIQUES.read_text())
    found = {page: [Measured(**row) for row in rows] for page, rows in kept.items()}
    found["lightning"] = [*_lightning(json.loads(FRAMEWORKS.read_text())), *found.get("lightning", [])]
    return found


def keep(page: str, row: Measured) -> None:
    """Put a measurement of a page into techniques.json, in place of an earlier one, and write the pages."""
    kept: dict[str, list[dict[str, Any]]] = json.loads(TECHNIQUES.read_text())
    rows = [it for it in kept.get(page, []) if it["what"] != row.what]
    default = {"smaller_is_better": False, "outcome": False}
    rows.append({key: value for key, value in asdict(row).items() if value != default.get(key)})
    kept[page] = rows
    blocks = [
        f"  {json.dumps(name)}: [\n    " + ",\n    ".join(map(json.dumps, kept[name])) + "\n  ]"
        for name in sorted(kept)
    ]
    TECHNIQUES.write_text("{\n" + ",\n".join(blocks) + "\n}\n")
    measured.cache_clear()
    main()


def _lightning(overhead: dict[str, Any]) -> list[Measured]:
    """Return what the frameworks' benchmark says of Lightning."""
    where, rows = (overhead["machine"], overhead["versions"]), overhead["rows"]
    shown = {
        "microseconds per step, a tiny `mlp`": "lightning",
        "microseconds per step, with Lightning's defaults and `self.log`": "lightning, all defaults and `self.log`",
    }
    return [Measured(what, *where, rows["pytorch"], rows[row], True) for what, row in shown.items()]


def main() -> None:
    """Write all pages and charts."""
    for file, text in files().items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


def files() -> dict[Path, str]:
    """Return each file that shows measurements, with its content."""
    found: dict[Path, str] = {}
    for page in sorted((ROOT / "docs/techniques").glob("*.md")):
        if BLOCK.search(text := page.read_text()):
            found[page] = _filled(text, technique(page.stem))
            if rows := measured().get(page.stem):
                found[page.parent / f"charts/{page.stem}.svg"] = chart.draw([_group(row) for row in rows])
    page = ROOT / "docs/frameworks.md"
    overhead = json.loads(FRAMEWORKS.read_text())
    found[page] = _filled(page.read_text(), frameworks(overhead))
    found[ROOT / "docs/frameworks.svg"] = chart.draw([_frameworks_group(overhead["rows"])])
    return found


def _filled(text: str, block: str) -> str:
    return BLOCK.sub(lambda found: f"{found[1]}{block}{found[2]}", text)


def technique(page: str) -> str:
    """Return the measurements of a page: a chart, a table per machine, and what is not measured yet, collapsed."""
    rows = measured().get(page, [])
    parts = [f"![Without and with the technique; the table has the values](charts/{page}.svg)"] if rows else []
    machines = dict.fromkeys((row.machine, row.versions) for row in rows)
    for machine, versions in machines:
        table = ["| comparison | without | with | ratio |", "|---|---|---|---|"]
        for row in rows:
            if (row.machine, row.versions) == (machine, versions):
                table.append(f"| {row.what} | {cell(row.without)} | {cell(row.with_it)} | {row.ratio} |")
        spread = "lowest and highest in parentheses, and as lines in the chart"
        parts.append(f"{machine}; {versions}. Medians of rounds, interleaved where speeds are compared; {spread}.")
        parts.append("\n".join(table))
    parts += _open(page, {row.what for row in rows})
    return "\n\n".join(["", *parts, ""]).removeprefix("\n")


def _open(page: str, done: set[str]) -> list[str]:
    """Return what is not measured, per device, with the command that measures it."""
    parts: list[str] = []
    for device, comparisons in COMPARISONS.items():
        missing = [it.what for it in comparisons if it.page == page and it.what not in done]
        if not missing:
            continue
        number = f"{len(missing)} comparison{'s' * (len(missing) > 1)}"
        place = " on a GPU" if device == "cuda" else ""
        command = f"make bench PAGES={page}{' DEVICE=cuda' * (device == 'cuda')}"
        summary = f"<summary>Not measured yet: {number}{place}</summary>"
        listed = "\n".join(f"- {what}" for what in missing)
        parts.append(f'<details markdown="1">{summary}\n\n`{command}` measures:\n\n{listed}\n\n</details>')
    return parts


def machine(device: str) -> str:
    """Return the GPU's name, or that of the processor and the number of usable cores."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{found[1] if found else platform.processor()}, {len(os.sched_getaffinity(0))} cores"


def cell(values: list[float]) -> str:
    """Return a median with the lowest and highest value."""
    middle, low, high = statistics.median(values), min(values), max(values)
    spread = f" ({number(low, middle)} to {number(high, middle)})" if len(values) > 1 else ""
    return f"{number(middle, middle)}{spread}"


def number(value: float, typical: float) -> str:
    """Return a number with as many digits as suit a typical value."""
    return f"{value:,.{0 if typical >= 100 else 4 if typical < 10 else 1}f}"


def _group(row: Measured) -> chart.Group:
    bars = []
    for label, values in (("without", row.without), ("with", row.with_it)):
        middle = statistics.median(values)
        bars.append(chart.Bar(label, middle, min(values), max(values), number(middle, middle), label == "with"))
    better = "smaller is better" if row.smaller_is_better or "bits per byte" in row.what else "larger is better"
    return chart.Group(f"{row.what.replace('`', '')} ({better})", bars)


def frameworks(overhead: dict[str, Any]) -> str:
    """Return the table of docs/frameworks.md: microseconds per step."""
    bare = overhead["rows"]["bare step"][0]
    table = ["| | microseconds per step: median (lowest, highest) | ratio to the bare step |", "|---|---|---|"]
    for row, (middle, low, high) in overhead["rows"].items():
        table.append(f"| {row} | {middle:,.0f} ({low:,.0f}, {high:,.0f}) | {middle / bare:.2f} |")
    parts = ["![Microseconds per step of each loop; the table below has the values](frameworks.svg)", "\n".join(table)]
    parts.append(f"Measured on {overhead['machine']}; {overhead['versions']}.")
    return "\n\n".join(["", *parts, ""]).removeprefix("\n")


def _frameworks_group(rows: dict[str, list[float]]) -> chart.Group:
    bars = []
    for row, label in SHOWN_FRAMEWORKS.items():
        middle, low, high = rows[row]
        bars.append(chart.Bar(label, middle, low, high, f"{middle:,.0f}", label.startswith("fastproj")))
    return chart.Group(
        "Microseconds per training step of a tiny network: the cost of the loop (smaller is better)", bars
    )


if __name__ == "__main__":
    main()
