"""Write the reference pages, docs/reference/: every command with its options, and every config key.

    python docs/programs/reference.py

Commands are read from the program, keys from the template's dataclasses. A test checks that the pages are current.
"""

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"
PACKAGE = ROOT / "template/project/src/{{ package }}"
LIGHTNING = ROOT / "template/frameworks/lightning/trainer_config.py"
sys.path.insert(0, str(ROOT / "generator"))


def main() -> None:
    """Write both pages."""
    PAGES.mkdir(exist_ok=True)
    for file, text in files().items():
        file.write_text(text)


def files() -> dict[Path, str]:
    """Return each page with its content."""
    return {PAGES / "commands.md": commands(), PAGES / "config.md": config()}


def commands() -> str:
    """Return the page of the commands."""
    from fastproj.cli import app
    from fastproj.shared.answers import choices
    from typer.main import get_command

    questions = yaml.safe_load((ROOT / "copier.yml").read_text())
    lines = [
        "# Commands and options",
        "",
        "Every command of `fastproj` with its arguments and options, as `fastproj COMMAND --help` prints them.",
        "For what the commands do, and their exit statuses, see [Command line](../generator.md) and",
        "[Updating](../updating.md).",
    ]
    program = get_command(app)
    everything = {"fastproj": program} | {f"fastproj {name}": it for name, it in program.commands.items()}  # type: ignore[attr-defined]
    for name, command in everything.items():
        lines += ["", f"## {name}", "", " ".join(str(command.help).split()), ""]
        lines += ['<div class="keys" markdown="1">', "", "| argument or option | meaning |", "|---|---|"]
        for parameter in command.params:
            if not getattr(parameter, "hidden", False) and parameter.name != "help":
                lines.append(_row(parameter, choices(questions, str(parameter.name))))
        lines += ["", "</div>"]
    return "\n".join([*lines, ""])


def _row(parameter: Any, allowed: list[str]) -> str:
    name = ", ".join(f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        name = f"`{parameter.name.upper()}`"
    elif not parameter.is_flag and not allowed:
        kind = parameter.type_descriptor.annotation
        name += f" `{ {int: 'NUMBER', Path: 'PATH'}.get(kind, 'TEXT') }`"
    meaning = " ".join(str(parameter.help or "").split())
    if allowed:
        meaning += f" One of {', '.join(f'`{value}`' for value in allowed)}."
    if parameter.default not in (None, False, [], ()) and not callable(parameter.default):
        meaning += f" Default: `{parameter.default}`."
    return f"| {name} | {_cell(meaning)} |"


@dataclass(frozen=True)
class Key:
    """A field of a config section."""

    name: str
    type: str
    default: str
    interval: str
    meaning: str


def config() -> str:
    """Return the page of the config keys."""
    lines = [
        "# Config keys",
        "",
        "Every key of a rendered project: in `configs/default.yaml`, or on the command line as",
        "`--section.key value`. `python -m <package>.train --help` prints those that a project has. `data` depends",
        "on the kind of data, `model` on the model, and `trainer` is a section of Lightning's projects; all others are",
        "the same in every project. The recipes in `configs/default.yaml` set some keys to other values than these",
        "defaults.",
    ]
    for section, text, keys in sections(PACKAGE / "config.py"):
        lines += ["", f"## {section}", "", text, "", *table(section, keys)]
    lines += ["", "## trainer, of Lightning's projects", "", _text_below("trainer", LIGHTNING)]
    for kind in ("data", "model"):
        for file in modules(kind):
            for section, text, keys in sections(file):
                lines += ["", f"## {section}, {_of(kind, file.parent.name)}", "", text, "", *table(section, keys)]
    return "\n".join([*lines, ""])


def _text_below(field: str, file: Path) -> str:
    """Return the docstring of a field in a module's only class."""
    (config,) = (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef))
    pairs = zip(config.body, config.body[1:], strict=False)
    (text,) = (
        below.value
        for it, below in pairs
        if isinstance(it, ast.AnnAssign) and ast.unparse(it.target) == field
        if isinstance(below, ast.Expr)
    )
    return " ".join(str(ast.literal_eval(text)).split())


def modules(kind: str) -> list[Path]:
    """Return the template's modules that define the section `data`, or `model`."""
    return sorted((ROOT / "template").glob({"data": "data/*/data.py", "model": "models/*/model.py"}[kind]))


def _of(kind: str, name: str) -> str:
    """Return which projects have the keys of a kind of data, or of a model."""
    models = yaml.safe_load((ROOT / "copier.yml").read_text())["models"]["default"]
    return name if kind == "model" else ", ".join(model for model, it in models.items() if it["data"] == name)


def sections(file: Path) -> list[tuple[str, str, list[Key]]]:
    """Return name, description and keys of the config sections that a module defines."""
    found = []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef) and re.fullmatch(r"\w+Config", node.name):
            name = node.name.removesuffix("Config").lower()
            found.append((name, ast.get_docstring(node) or "", _keys(node)))
    return found


def _keys(node: ast.ClassDef) -> list[Key]:
    keys = []
    for field, text in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and field.value):
            continue
        default, interval = field.value, ""
        if isinstance(default, ast.Call) and ast.unparse(default.func) == "within":
            interval, default = ast.literal_eval(default.args[0]), default.args[1]
        if isinstance(default, ast.Call):  # Path("runs")
            default = default.args[0]
        meaning = " ".join(str(ast.literal_eval(text.value)).split())
        type_ = ast.unparse(field.annotation)
        keys.append(Key(ast.unparse(field.target), type_, _value(ast.literal_eval(default)), interval, meaning))
    return keys


def table(section: str, keys: list[Key]) -> list[str]:
    """Return the table of a section's keys."""
    rows = [
        f"| `{section}.{key.name}` | `{key.default}` | {_cell(_values(key))} | {_cell(key.meaning)} |" for key in keys
    ]
    head = ['<div class="keys four" markdown="1">', "", "| key | default | values | meaning |", "|---|---|---|---|"]
    return [*head, *rows, "", "</div>"]


def _values(key: Key) -> str:
    """Return what a key may be: words, an interval, `null`."""
    parts: list[str] = []
    for part in key.type.split(" | "):
        if part.startswith("Literal["):
            parts += [f"`{value}`" for value in ast.literal_eval(f"({part[8:-1]},)")]
        elif part == "None":
            parts.append("`null`")
        elif part in ("int", "float") and key.interval:
            parts.append(f"{'integer' if part == 'int' else 'number'} in {key.interval.replace('inf', '∞')}")
        else:
            names = {"bool": "`true`, `false`", "str": "text", "Path": "path", "int": "integer", "float": "number"}
            parts.append(names.get(part, f"list of {'integers' if 'int' in part else 'names'}"))
    return ", ".join(parts)


def _value(value: object) -> str:
    """Return a default as YAML shows it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "[]" if value == () else str(value).replace("e-0", "e-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
