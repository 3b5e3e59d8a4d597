"""The page of a report: one HTML file that loads nothing."""

from collections.abc import Iterable
from html import escape
from time import strftime

from . import charts, summary
from .run import Run
from .summary import Table
from .times import events

MARK = '<meta name="generator" content="fastproj report">'
"""By which a report is told from other files, which it does not replace."""
EVENTS = 100
"""Events of a run that the page has."""
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="generator" content="fastproj report">
"""
STYLE = """
:root { color-scheme: light dark; --line: #d4d9e0; --soft: #f3f5f8; --muted: #596273; }
@media (prefers-color-scheme: dark) { :root { --line: #3b4250; --soft: #1d222b; --muted: #a3adbd;
  } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 0 auto; padding: 1rem; }
@media (prefers-color-scheme: dark) { body { background: #12151b; color: #e4e8ee; } }
h1, h2 { line-height: 1.2; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
p, li { overflow-wrap: anywhere; } .muted { color: var(--muted); } .muted:empty { display: none; }
.findings { background: var(--soft); border-radius: 8px; padding: .8rem 1rem .8rem 2rem;
  margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; }
th:first-child, .texts td { text-align: left; } th:first-child { font-weight: normal;
  color: var(--muted); }
@media (min-width: 600px) { .numbers td { white-space: nowrap; } }
.texts td { overflow-wrap: anywhere; min-width: 12rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr));
  gap: 1rem; }
figure { margin: 0; min-width: 0; } figcaption { font-weight: 600; }
figure svg { display: block; width: 100%; height: auto; }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 3px;
  margin-right: .4em; }
.key { margin-right: 1.2em; white-space: nowrap; }
"""


def page(runs: list[Run]) -> str:
    """Return the page about one run, or a comparison of several."""
    title = escape(", ".join(run.name for run in runs))
    date = strftime("%Y-%m-%d at %H:%M")
    style = f"<style>{STYLE}{charts.STYLE}</style>"
    parts = [
        f"{HEAD}<title>Report: {title}</title>\n{style}\n</head>\n<body>",
        f"<h1>{title}</h1>\n<p class=muted>Written by fastproj report on {date}.</p>",
        _list(summary.findings(runs), "findings"),
        _section("Summary", _table(summary.facts(runs), runs)),
    ]
    if len(runs) > 1:
        parts.append(_section("Options that differ", _table(summary.differing(runs), runs)))
    parts += [
        _section("Curves", _curves(runs)),
        _section("Time", _table(summary.shares(runs), runs)),
        _section("Events", _events(runs)),
        _section("Environment", _table(summary.environment(runs), runs, "texts")),
    ]
    for run in runs:
        table = _table(summary.options([run]), [run], "texts")
        parts.append(
            f"<details><summary>All options of {escape(run.name)}</summary>{table}</details>"
        )
    return "\n".join([*parts, "</body>\n</html>\n"])


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>\n{content or '<p>None.</p>'}</section>"


def _list(sentences: list[str], name: str) -> str:
    entries = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul class={name}>{entries}</ul>" if entries else ""


def _table(table: Table, runs: list[Run], kind: str = "numbers") -> str:
    """Return a table with a column for each run."""
    if not table:
        return ""
    rows = ""
    if len(runs) > 1:
        names = [
            f"{_swatch(charts.color(place))}{escape(run.name)}" for place, run in enumerate(runs)
        ]
        rows = _row("", names, "th")
    for name, cells in table.items():
        rows += _row(escape(name), map(escape, cells), "td")
    return f'<div class=scroll><table class="{kind}">{rows}</table></div>'


def _row(name: str, cells: Iterable[str], tag: str) -> str:
    columns = "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)
    return f"<tr><th>{name}</th>{columns}</tr>"


def _curves(runs: list[Run]) -> str:
    if len(runs) > 1:
        colors = [(run.name, charts.color(place)) for place, run in enumerate(runs)]
        note = "Lines are training, lines with dots are validation."
    else:
        colors = [("training", charts.COLORS[0]), ("validation, with dots", charts.COLORS[1])]
        note = ""
    figures = "".join(
        f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"
        for title, svg in charts.curves(runs)
    )
    note += " A dotted vertical line is a resume."
    left = len(charts.names(runs)) - charts.MOST
    note += f" {left} more numbers are not drawn." if left > 0 else ""
    return f"{_keys(colors)}<p class=muted>{note}</p><div class=charts>{figures}</div>"


def _events(runs: list[Run]) -> str:
    sentences = []
    for run in runs:
        begin = f"{run.name}: " if len(runs) > 1 else ""
        happened = [f"{begin}{event}" for _, event in events(run)]
        sentences += happened[:EVENTS]
        if len(happened) > EVENTS:
            sentences.append(f"{begin}{len(happened) - EVENTS:,} more events")
    return _list(sentences, "events")


def _keys(colors: Iterable[tuple[str, str]]) -> str:
    keys = (f"<span class=key>{_swatch(color)}{escape(name)}</span>" for name, color in colors)
    return f"<p>{' '.join(keys)}</p>"


def _swatch(color: str) -> str:
    return f'<span class=swatch style="background:{color}"></span>'
