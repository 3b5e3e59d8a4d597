"""`--help`: every option with its default and the values it takes, from the source files, without importing torch."""

import ast
import difflib
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .config_base import describe

PACKAGE = Path(__file__).parent
INDENT = " " * 6


@dataclass(frozen=True)
class Option:
    """One option, each part as text."""

    key: str
    default: str
    values: str
    """What it takes, such as `float above 0, null`."""
    about: str


@dataclass(frozen=True)
class Group:
    """A section of the config."""

    about: str
    options: tuple[Option, ...]


@cache
def groups() -> dict[str, Group]:
    """Return the sections of `Config` by name; one whose class is not found in the source has no options."""
    found = {}
    for module, name in (("config", "Config"), ("trainer_config", "LightningConfig")):  # the second is Lightning's
        config = _find(module, name)
        for node, about in _fields(config) if config else ():
            section = ast.unparse(node.target)
            found[section] = _group(section, ast.unparse(node.annotation)) or Group(about, ())
    return found


def options() -> dict[str, Option]:
    """Return every option by its key."""
    return {option.key: option for group in groups().values() for option in group.options}


def closest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` for the known names nearest to one; empty if none is near."""
    names = list(known)
    same = [key for key in names if key.rpartition(".")[2] == name.rpartition(".")[2]]
    found = same or difflib.get_close_matches(name, names, 1)
    return f"; did you mean {' or '.join(found[:3])}?" if found else ""


def show(program: str, about: str, arguments: list[str]) -> None:
    """Print all options in a line each; after `--help SECTION` or `--help KEY`, what these do. Then exit."""
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--help=") else [word])]
    place = min(words.index(flag) for flag in ("-h", "--help") if flag in words)
    wanted = "".join(words[place + 1 : place + 2]).removeprefix("--")
    if not wanted or wanted.startswith("-") or wanted.partition("=")[0] == "config":
        print(_overview(program, about))
        sys.exit()
    if wanted not in groups() and wanted not in options():
        print(f"error: no section or option {wanted}{closest(wanted, [*groups(), *options()])}", file=sys.stderr)
        sys.exit(2)
    name = wanted.partition(".")[0]
    print(_title(name) + "\n")
    for option in groups()[name].options:
        if wanted in (name, option.key):
            print(_in_full(option))
    sys.exit()


def _overview(program: str, about: str) -> str:
    usage = f"usage: python -m {program} [--config FILE] [--SECTION.KEY VALUE ...]"
    general = [
        ("--config FILE", "a YAML file of options; options after it override it"),
        ("--help SECTION", "what each option of a section does, as in --help optim"),
        ("--print_config", "print every value that the run would have, as YAML"),
    ]
    lines = [usage, "", f"{about} Each option with its default, and the values it takes:", ""]
    lines += [f"  {flag:16}{does}" for flag, does in general]
    width = shutil.get_terminal_size().columns
    for name, group in groups().items():
        keys, defaults = (max((len(part) for part in parts), default=0) for parts in _columns(group))
        lines += ["", _title(name)]
        for option in group.options:
            line = f"  --{option.key:{keys}}  {option.default:{defaults}}  {option.values}"
            lines.append(line if len(line) <= width else line[: width - 3] + "...")
    return "\n".join(lines)


def _columns(group: Group) -> tuple[list[str], list[str]]:
    return [option.key for option in group.options], [option.default for option in group.options]


def _title(name: str) -> str:
    group = groups()[name]
    return _wrap(f"{name}: {group.about or f'see {name}.py; --print_config lists its options'}", "")


def _in_full(option: Option) -> str:
    head = _wrap(f"--{option.key}: {option.values} (default {option.default})", "  ")
    return f"{head}\n{_wrap(option.about, INDENT)}\n"


def _wrap(text: str, indent: str) -> str:
    width = min(shutil.get_terminal_size().columns, 100)
    wrapper = textwrap.TextWrapper(width, initial_indent=indent, subsequent_indent=INDENT, break_on_hyphens=False)
    return wrapper.fill(text)


@cache
def _tree(module: str) -> ast.Module:
    file = PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8") if file.exists() else "")


def _find(module: str, name: str) -> ast.ClassDef | None:
    """Find a class in a module, or in the one of this package that it comes from."""
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.level and node.module and name in [it.name for it in node.names]:
            return _find(node.module, name)
    return None


def _group(section: str, class_name: str) -> Group | None:
    found = _find("config", class_name)
    if found is None:
        return None
    options = []
    for node, about in _fields(found):
        default, interval = _default(node.value)
        key = f"{section}.{ast.unparse(node.target)}"
        options.append(Option(key, default, _values(node.annotation, interval), about))
    return Group((ast.get_docstring(found) or "").partition("\n")[0], tuple(options))


def _fields(found: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str]]:
    """Return the fields of a class, each with the docstring under it."""
    for node, following in zip(found.body, [*found.body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.AnnAssign):
            about = ast.literal_eval(following.value) if isinstance(following, ast.Expr) else ""
            yield node, " ".join(str(about).split())


def _default(value: ast.expr | None) -> tuple[str, str]:
    """Return a field's default as YAML has it, and the interval that `within` gives it."""
    if isinstance(value, ast.Call) and value.args:  # within("[0, 1)", 0.5), or Path("runs")
        interval = ast.literal_eval(value.args[0]) if len(value.args) == 2 else ""
        return _default(value.args[-1])[0], str(interval)
    if not isinstance(value, ast.Constant):
        return ("[]" if value is None or ast.unparse(value) == "()" else ast.unparse(value)), ""
    words = {"None": "null", "True": "true", "False": "false", "": '""'}
    return words.get(str(value.value), str(value.value)), ""


def _values(type_: ast.expr, interval: str) -> str:
    """Say what a type takes, for numbers within an interval."""
    names = {"bool": "true, false", "str": "text", "Path": "path", "None": "null"}
    name = ast.unparse(type_)
    if isinstance(type_, ast.BinOp):
        return f"{_values(type_.left, interval)}, {_values(type_.right, interval)}"
    if isinstance(type_, ast.Subscript) and name.startswith("Literal"):
        words = ast.literal_eval(type_.slice)
        return ", ".join(map(str, words if isinstance(words, tuple) else [words]))
    if name.startswith("tuple"):
        return "list such as [a,b]"
    return f"{name} {describe(interval)}" if interval and name in ("int", "float") else names.get(name, name)
