"""Write the generated blocks of the docs: commands, config keys, components, measured speeds, modules in README.md.

    python docs/programs/reference.py

A block stands between `<!-- name -->` and `<!-- end of name -->`. Commands are read from the
program, keys from the template's dataclasses, speeds from the results of benchmarks, and
descriptions of modules from the README of rendered projects. The project's address, in
README.md and copier.yml, is that in pyproject.toml. A test checks that all of it is current.
"""

import ast
import json
import re
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Template

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"
PACKAGE = ROOT / "template/frameworks/pytorch"
SHARED = ROOT / "template/project/src/{{ package }}"
README = ROOT / "README.md"
QUESTIONS = ROOT / "copier.yml"
COMPONENTS = ROOT / "docs/components.md"
COMPARISON = ROOT / "docs/comparison.md"
SHOWN_MODEL, SHOWN_DATA = "resnet", "images"
"""The default model, whose lines README.md counts."""
sys.path.insert(0, str(ROOT / "generator"))


def main() -> None:
    """Write the pages."""
    for file, text in files().items():
        file.write_text(text)


def files() -> dict[Path, str]:
    """Return each page with its current blocks."""
    pages = {
        PAGES / "commands.md": ("commands", commands()),
        PAGES / "config.md": ("keys", config()),
        COMPONENTS: ("components", components()),
        README: ("modules", modules_table()),
        COMPARISON: ("speeds", speeds()),
    }
    blocks = {
        file: replace_block(file.read_text(), name, rows) for file, (name, rows) in pages.items()
    }
    questions = re.sub(
        r"(?<=^program_address:\n  type: str\n  when: false\n  default: ).*",
        address(),
        QUESTIONS.read_text(),
        flags=re.MULTILINE,
    )
    blocks[README] = re.sub("(?<=from <)[^>]+(?=>, or make)", address(), blocks[README])
    return blocks | {QUESTIONS: questions}


def address() -> str:
    """Return the project's address."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return str(settings["project"]["urls"]["Repository"])


def replace_block(text: str, name: str, rows: list[str]) -> str:
    """Return a page with other lines in its block of this name."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(start)
    if not found or end not in rest:
        raise ValueError(f"no block {start} in {text[:40]!r}")
    return "\n".join([before + start, *rows, end]) + rest.partition(end)[2]


def modules_table() -> list[str]:
    """Return the modules of a project with their lines."""
    own = {"model.py": f"models/{SHOWN_MODEL}/model.py", "data.py": f"data/{SHOWN_DATA}/data.py"}
    kinds = yaml.safe_load((ROOT / "copier.yml").read_text())["kinds"]["default"]
    readme = (PACKAGE / "README.md").read_text()
    found = {}
    for name, text in re.findall(r"^  (\w+\.py) +(.*)$", readme, re.MULTILINE):
        found[name] = text
        if name == "data.py":
            found |= {f"{module}.py": about for module, about in kinds[SHOWN_DATA].items()}
    folders = (SHARED, PACKAGE, ROOT / "template/data/shared")
    shared = {file.name: file for folder in folders for file in folder.glob("*.py")}
    sizes = {
        name: _lines(ROOT / "template" / own[name] if name in own else shared[name])
        for name in found
    }
    (source,) = SHARED.glob("*components*/__init__*")
    registry = Template(source.read_text()).render(
        component_classes=[], framework="pytorch", frameworks={"pytorch": {"registry": True}}
    )
    tests = [
        *SHARED.glob("tests/*.py"),
        *PACKAGE.glob("tests/*.py"),
        ROOT / f"template/models/{SHOWN_MODEL}/test_model.py",
    ]
    tests.append(ROOT / f"template/data/{SHOWN_DATA}/test_data.py")
    rows = [f"{name:16} {sizes[name]:5,}  {text}" for name, text in found.items()]
    rows.append(
        f"{'components/':16} {len(registry.splitlines()):5,}  the components that you add; none by default"
    )
    rows.append(f"{'tests/':16} {sum(map(_lines, tests)):5,}  the tests")
    return ["```", *rows, "```"]


def components() -> list[str]:
    """Return a list for each group of components, which has a page."""
    entries = yaml.safe_load(QUESTIONS.read_text())["component_table"]["default"]
    rows = []
    for page, names in component_pages().items():
        group = entries[names[0]]["group"].capitalize()
        rows += ["", f"**[{group}](components/{page.name})**", ""]
        for name in names:
            rows.append(f"- [{name}](components/{page.name}#{name}): {entries[name]['about']}")
    everywhere = [f"`{name}`" for name, entry in entries.items() if "frameworks" not in entry]
    text = f"These also work with Lightning and Accelerate: {', '.join(everywhere)}."
    return [*rows, "", *textwrap.wrap(text, 140, break_on_hyphens=False), ""]


def component_pages() -> dict[Path, list[str]]:
    """Return the page of each group of components, with the names of its sections."""
    entries = yaml.safe_load(QUESTIONS.read_text())["component_table"]["default"]
    pages: dict[Path, list[str]] = {}
    for name, entry in entries.items():
        page = ROOT / f"docs/components/{entry['group'].replace(' ', '-')}.md"
        pages.setdefault(page, []).append(name)
    return pages


def speeds() -> list[str]:
    """Return what `benchmarks/peers.py` and `benchmarks/startup.py` have measured."""
    found = json.loads((ROOT / "benchmarks/peers.json").read_text())
    rows = {model: it["loops"] for model, it in found["models"].items()}
    small = rows.pop("mlp")
    bare, measured, tutorial = (f"{it[0]:.2f}" for it in small["core"][1:])
    accelerate, trainer, lightning = (
        f"{small[loop][1][0]:.2f}" for loop in ("accelerate", "hf", "lightning")
    )
    bare_steps, tutorials, compiled = (
        f"{min(ratios):.2f} to {max(ratios):.2f}"
        for ratios in (
            [loops["core"][1][0] for loops in rows.values()],
            [loops["core"][3][0] for loops in rows.values()],
            [it["loops"]["core"][3][0] for it in found["compiled"].values()],
        )
    )
    seconds = json.loads((ROOT / "benchmarks/startup.json").read_text())["seconds"]
    lines = [
        f"- Eight recipes: {bare_steps} times a bare step, and {tutorials} times the loop of a tutorial, or with "
        f"torch.compile {compiled} times ({', '.join(found['compiled'])}).",
        f"- A tiny perceptron, where the loop is what matters: {bare} times a bare step, {measured} times one with "
        f"clipping and metrics, {tutorial} times the tutorial's loop. Accelerate takes {accelerate} times a bare step "
        f"there, Hugging Face's Trainer {trainer}, and Lightning {lightning}.",
        f"- From the command to the end of step 5: {seconds['core'][0]:.1f} s (`benchmarks/startup.py`).",
    ]
    return [part for line in lines for part in textwrap.wrap(line, 140, subsequent_indent="  ")]


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def commands() -> list[str]:
    """Return a table of arguments and options for each command."""
    from fastproj.cli import app
    from fastproj.template.answers import ANSWERS, choices
    from typer.main import get_command

    questions = yaml.safe_load((ROOT / "copier.yml").read_text())
    lines = ['<div class="keys" markdown="1">']
    program = get_command(app)
    subcommands = program.commands  # type: ignore[attr-defined]
    everything = {f"fastproj {name}": command for name, command in subcommands.items()}
    described: dict[tuple[str, str], str] = {}
    for name, command in everything.items():
        lines += ["", f"## {name}", "", " ".join(str(command.help).split()), ""]
        rows = []
        repeated: dict[str, list[str]] = {}
        for parameter in command.params:
            if getattr(parameter, "hidden", False) or parameter.opts[0] in ("--help", "--json"):
                continue
            key = (parameter.opts[0], str(getattr(parameter, "help", "")))
            first = described.setdefault(key, name)
            if name == "fastproj update" and parameter.name in ANSWERS:
                first = "fastproj new"
            if first != name and first in ("fastproj new", "fastproj tune"):
                repeated.setdefault(first, []).append(f"`{parameter.opts[0]}`")
            elif parameter.name == "components":
                rows.append(_row(parameter, []))
            else:
                rows.append(_row(parameter, choices(questions, str(parameter.name))))
        for first, options in repeated.items():
            rows.append(f"| {', '.join(options)} | As for `{first}`. |")
        if rows:
            lines += ["| argument or option | meaning |", "|---|---|", *rows]
    return [*lines, "", "</div>"]


def _row(parameter: Any, allowed: list[str]) -> str:
    name = ", ".join(f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        name = f"`{parameter.name.upper()}`"
    elif not parameter.is_flag and not allowed:
        kind = parameter.type_descriptor.annotation
        name += f" `{ {int: 'NUMBER', float: 'NUMBER', Path: 'PATH'}.get(kind, 'TEXT') }`"
    meaning = " ".join(str(parameter.help or "").split())
    if allowed:
        meaning += f" One of {', '.join(f'`{value}`' for value in allowed)}."
    if parameter.default not in (None, False, [], (), Path()) and not callable(parameter.default):
        meaning += f" Default: `{parameter.default}`."
    return f"| {name} | {_cell(meaning)} |"


@dataclass(frozen=True)
class Key:
    """A field of a config section."""

    name: str
    type: str
    default: str
    meaning: str


def config() -> list[str]:
    """Return the tables of the core's keys, and the keys of the kinds of data and the models."""
    lines = ['<div class="keys" markdown="1">']
    for section, text, keys in sections(PACKAGE / "config.py"):
        lines += ["", f"## {section}", "", text, "", *table(section, keys)]
    lines += ["", "</div>"]
    for kind, file_name in (("data", "data.py"), ("model", "model.py")):
        lines += [
            "",
            f"## {kind}",
            "",
            f"Keys of `{kind}` with their defaults; `{file_name}` describes them.",
            "",
        ]
        lines += ["| model | keys |", "|---|---|"]
        for file in modules(kind):
            found = [key for _, _, keys in sections(file) for key in keys]
            shown = ", ".join(f"`{key.name}: {key.default}`" for key in found)
            lines.append(f"| {_of(kind, file.parent.name)} | {shown} |")
    return lines


def modules(kind: str) -> list[Path]:
    """Return the template's modules that define the section `data`, or `model`."""
    return sorted(
        (ROOT / "template").glob({"data": "data/*/data.py", "model": "models/*/model.py"}[kind])
    )


def _of(kind: str, name: str) -> str:
    """Return which projects have the keys of a kind of data, or of a model."""
    models = yaml.safe_load((ROOT / "copier.yml").read_text())["models"]["default"]
    return (
        name
        if kind == "model"
        else ", ".join(model for model, it in models.items() if it["data"] == name)
    )


def sections(file: Path) -> list[tuple[str, str, list[Key]]]:
    """Return name, description and keys of the config sections that a module defines."""
    found = []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef) and re.fullmatch(r"\w+Config", node.name) and _keys(node):
            name = re.sub(r"\B(?=[A-Z])", "_", node.name.removesuffix("Config")).lower()
            found.append((name, ast.get_docstring(node) or "", _keys(node)))
    return found


def _keys(node: ast.ClassDef) -> list[Key]:
    keys = []
    for field, text in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and field.value):
            continue
        default = field.value
        if isinstance(default, ast.Call) and ast.unparse(default.func) == "within":
            default = default.args[1]
        if isinstance(default, ast.Call):  # Path("runs")
            default = default.args[0]
        meaning = " ".join(str(ast.literal_eval(text.value)).split())
        type_ = ast.unparse(field.annotation)
        keys.append(
            Key(
                ast.unparse(field.target),
                type_,
                _value(ast.literal_eval(default)),
                meaning,
            )
        )
    return keys


def table(section: str, keys: list[Key]) -> list[str]:
    """Return the table of a section's keys."""
    rows = [
        f"| `{section}.{key.name}` | `{key.default}` | {_cell(key.meaning + _choices(key))} |"
        for key in keys
    ]
    return ["| key | default | meaning |", "|---|---|---|", *rows]


def _choices(key: Key) -> str:
    """Return the words among which a key chooses, as a sentence."""
    found = re.search(r"Literal\[(.*?)\]", key.type)
    words = ast.literal_eval(f"({found[1]},)") if found else ()
    return f" One of {', '.join(f'`{word}`' for word in words)}." if len(words) > 1 else ""


def _value(value: object) -> str:
    """Return a default as YAML shows it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).replace("e-0", "e-") or "''"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
