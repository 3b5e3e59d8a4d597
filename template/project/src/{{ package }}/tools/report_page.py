"""The page of a report: one HTML file that loads nothing, with the values that it draws as JSON in it."""

import json
import math
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from ..phase_times import MEASURED, PHASES
from .report_chart import Line, draw_chart, short
from .run_record import RunRecord

TRAIN_ONLY = {"lr", "grad_norm", "skipped_steps", *MEASURED}
COLORS = 8
DRAWN, KEPT = 60_000, 40_000
"""Points of all curves, and numbers in the JSON: together below 2 MB."""
MISSING = "-"
NUMBER = ' class="number"'
STYLE = """
:root{color-scheme:light dark;--text:#1b1f24;--page:#fff;--soft:#59636e;--rule:#d1d9e0;--box:#f6f8fa;--mark:#fff3c4;
--c0:#0969da;--c1:#bc4c00;--c2:#1a7f37;--c3:#8250df;--c4:#bf3989;--c5:#9a6700;--c6:#0a7d84;--c7:#57606a}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--page:#0d1117;--soft:#9198a1;--rule:#3d444d;--box:#151b23;
--mark:#4d3f00;--c0:#58a6ff;--c1:#f0883e;--c2:#56d364;--c3:#bc8cff;--c4:#f778ba;--c5:#e3b341;--c6:#39c5cf;--c7:#9ea7b3}}
body{margin:0 auto;max-width:1240px;padding:16px;background:var(--page);color:var(--text);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:8px 0}h2{font-size:18px;margin:32px 0 8px;border-bottom:1px solid var(--rule)}
p{margin:8px 0}small,figcaption small,.soft{color:var(--soft);font-weight:normal}
.charts{display:grid;gap:16px;grid-template-columns:repeat(auto-fill,minmax(min(100%,360px),1fr))}
figure{margin:0;padding:8px;background:var(--box);border-radius:6px}figcaption{font-weight:600;margin-bottom:4px}
svg{display:block;width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
.grid{stroke:var(--rule);stroke-width:.6}.line path{fill:none;stroke:currentColor;stroke-width:1.6}
.line circle{fill:currentColor}.dashed path{stroke-dasharray:5 3}
.table{overflow-x:auto}table{border-collapse:collapse;font-size:14px}
th,td{padding:4px 12px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}
td{overflow-wrap:anywhere;min-width:6em}th .key{overflow-wrap:normal;margin:0}
@media(min-width:700px){th{white-space:nowrap}}.differs td{background:var(--mark)}
.number{font-variant-numeric:tabular-nums;white-space:nowrap}
.bar{display:flex;height:18px;border-radius:4px;overflow:hidden;background:var(--rule);margin:4px 0}
.bar i{background:currentColor;height:100%}.key{margin-right:16px;display:inline-block;overflow-wrap:anywhere}
.key i{display:inline-block;width:12px;height:12px;border-radius:3px;background:currentColor;margin-right:6px}
summary{cursor:pointer;margin:8px 0}
""" + "".join(f".c{number}" + "{color:" + f"var(--c{number})" + "}" for number in range(COLORS))


def build_page(runs: Sequence[RunRecord]) -> str:
    """Return the page about some runs."""
    title = f"{runs[0].name}: report" if len(runs) == 1 else f"{len(runs)} runs: report"
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    kept, said = kept_rows(runs)
    sections = [
        ("", _summary(runs)),
        ("Curves", _curves(runs)),
        ("Where the time goes", _phases(runs)),
        ("Events", _events(runs)),
        ("Options that differ", _differences(runs)),
        ("Environment", _table(runs, lambda run: run.environment)),
        ("Options", _options(runs)),
    ]
    body = "".join((f"<h2>{name}</h2>" if name else "") + text for name, text in sections if text)
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,"><style>{STYLE}</style></head>\n'
        f'<body><h1>{escape(title)}</h1><p class="soft">Written at {now}. {said}</p>{body}\n'
        f'<script type="application/json" id="runs">{as_json(kept)}</script></body></html>\n'
    )


def kept_rows(runs: Sequence[RunRecord]) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of each run that the page has as JSON, evenly chosen, and a sentence about them."""
    numbers = sum(len(row) for run in runs for row in run.rows)
    every = max(1, math.ceil(numbers / KEPT))
    kept = []
    for run in runs:
        by_split: dict[str, list[dict[str, Any]]] = {}
        for row in run.rows:
            by_split.setdefault(row["split"], []).append(row)
        chosen = [row for rows in by_split.values() for row in (*rows[:-1:every], rows[-1])]
        chosen.sort(key=lambda row: (row["step"], row["split"] == "val"))
        kept.append({"name": run.name, "folder": str(run.folder), "rows": chosen})
    total, here = (
        sum(len(rows) for rows in found) for found in ([it.rows for it in runs], [it["rows"] for it in kept])
    )
    if here == total:
        return kept, "All values of metrics.jsonl are in this file, as JSON."
    return kept, f"{here:,} of {total:,} rows of metrics.jsonl are in this file, as JSON; the curves are of all."


def as_json(values: Any) -> str:
    """Return JSON without `<`, for a script element; what is not finite is text, as few programs read NaN."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(it) for key, it in value.items()}
        if isinstance(value, list):
            return [clean(it) for it in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(clean(values), separators=(",", ":")).replace("<", "\\u003c")


def _summary(runs: Sequence[RunRecord]) -> str:
    names = ("run", "steps", "train loss", "best validation", "samples/s", "time", "last row")
    rows = []
    for number, run in enumerate(runs):
        loss, rate, best = run.series("train", "loss"), run.series("train", "samples_per_second"), run.best()
        cells = [
            _key(number, run.name),
            f"{run.rows[-1]['step']:,}",
            f"{loss[-1][1]:.4g}" if loss else MISSING,
            escape(f"{best[0]} {best[2]:.4g} at step {best[1]:,}") if best else MISSING,
            short(float(f"{sorted(value for _, value in rate)[len(rate) // 2]:.4g}")) if rate else MISSING,
            _duration(run.seconds()),
            run.written,
        ]
        rows.append("".join(f"<td{NUMBER * (at > 0)}>{cell}</td>" for at, cell in enumerate(cells)))
    return _html_table("".join(f"<th>{name}</th>" for name in names), rows)


def _curves(runs: Sequence[RunRecord]) -> str:
    """Return a chart for each metric: the loss first, those of training steps only last."""
    names = [name for name in dict.fromkeys(name for run in runs for name in run.metrics()) if name not in PHASES]
    names.sort(key=lambda name: (name in TRAIN_ONLY, name != "loss"))
    lines = {
        name: [
            Line(f"{run.name} {split}", number % COLORS, points, split != "train")
            for number, run in enumerate(runs)
            for split in sorted({row["split"] for row in run.rows})
            if (points := run.series(split, name))
        ]
        for name in names
    }
    most = max(40, DRAWN // max(1, sum(map(len, lines.values()))))
    keys = "".join(_key(number, run.name) for number, run in enumerate(runs))
    legend = f"<p>{keys} <small>solid: training; dashed: validation; by optimizer steps</small></p>"
    return legend + f'<div class="charts">{"".join(draw_chart(name, lines[name], most) for name in names)}</div>'


def _phases(runs: Sequence[RunRecord]) -> str:
    """Return the mean share of each phase, of the runs that have them."""
    parts, rows = [], []
    for run in runs:
        shares = {name: [value for _, value in run.series("train", name) if math.isfinite(value)] for name in PHASES}
        means = {name: sum(values) / len(values) for name, values in shares.items() if values}
        if not means:
            continue
        bar = "".join(
            f'<i class="c{PHASES.index(name)}" style="width:{100 * min(1, max(0, mean)):.1f}%" '
            f'title="{name} {100 * mean:.1f}%"></i>'
            for name, mean in means.items()
        )
        parts.append(f'<p>{escape(run.name)}</p><div class="bar">{bar}</div>')
        cells = (f"{100 * means[name]:.1f}%" if name in means else MISSING for name in PHASES)
        rows.append(f"<th>{escape(run.name)}</th>" + "".join(f'<td class="number">{cell}</td>' for cell in cells))
    if not rows:
        return ""
    head = "<th></th>" + "".join(f"<th>{_key(number, name)}</th>" for number, name in enumerate(PHASES))
    said = "<p>Mean shares of the time of training, over all rows; the rest is other work.</p>"
    return said + "".join(parts) + _html_table(head, rows)


def _events(runs: Sequence[RunRecord]) -> str:
    several = len(runs) > 1
    rows = [
        f"<td>{escape(run.name)}</td>" * several
        + f"<td{NUMBER}>{MISSING if step is None else f'{step:,}'}</td><td>{escape(what)}</td>"
        for run in runs
        for step, what in run.events
    ]
    if not rows:
        return "<p>None: it was not resumed, no step was left out, and the data are whole.</p>"
    return _html_table("<th>run</th>" * several + "<th>step</th><th>what happened</th>", rows)


def _differences(runs: Sequence[RunRecord]) -> str:
    if len(runs) == 1:
        return ""
    names = dict.fromkeys(name for run in runs for name in run.config if name not in ("run.name", "run.resume"))
    differing = [name for name in names if len({_text(run.config.get(name, MISSING)) for run in runs}) > 1]
    return _table(runs, lambda run: run.config, differing) or "<p>None.</p>"


def _options(runs: Sequence[RunRecord]) -> str:
    table = _table(runs, lambda run: run.config)
    return f"<details><summary>all options</summary>{table}</details>" if table else ""


def _table(runs: Sequence[RunRecord], values: Callable[[RunRecord], dict[str, Any]], only: Iterable[str] = ()) -> str:
    """Return a table with a column for each run; rows whose values differ are marked, unless all do."""
    found = [values(run) for run in runs]
    rows = []
    for name in list(only) or dict.fromkeys(name for one in found for name in one):
        cells = [_text(one.get(name, MISSING)) for one in found]
        mark = ' class="differs"' if len({*cells}) > 1 and not only else ""
        rows.append((mark, f"<th>{escape(name)}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells)))
    if not rows:
        return ""
    head = "<th></th>" + "".join(f"<th>{escape(run.name)}</th>" for run in runs)
    body = "".join(f"<tr{mark}>{cells}</tr>" for mark, cells in rows)
    return f'<div class="table"><table><tr>{head}</tr>{body}</table></div>'


def _html_table(head: str, rows: Iterable[str]) -> str:
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="table"><table><tr>{head}</tr>{body}</table></div>'


def _key(number: int, name: str) -> str:
    return f'<span class="key"><i class="c{number % COLORS}"></i>{escape(name)}</span>'


def _text(value: object) -> str:
    """Return a value as a command line has it."""
    if isinstance(value, list) and value and all(isinstance(it, str) for it in value):
        return shlex.join(value)
    return value if isinstance(value, str) else json.dumps(value)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
