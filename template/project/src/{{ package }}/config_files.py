"""YAML files of options, read as if their options stood on the command line."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, fields
from operator import attrgetter
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import yaml

from .config_base import alternatives
from .errors import UserError

SHOW = ("-h", "--help", "--print_config")
"""How words begin that show the config instead of training."""

IN_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    NoneType: "null",
}
"""What a value of a type may be."""


class Key(NamedTuple):
    """A key of the config."""

    type: Any
    field: Field[Any]


def resolve(words: list[str], config: type) -> list[str]:
    """Return the words of a command, with the options of its files in place of `--config FILE`.

    An option that is given later wins over one that overrides it: a file comes after the defaults
    and the files before it, and the command line after all files.
    """
    keys = keys_of(config)
    resolved = []
    turns: dict[str, int] = {}  # when each key was given last
    shows = [word for word in words if word.startswith(SHOW)]
    given = read_options([word for word in words if word not in shows])
    for option in sorted(given, key=attrgetter("turn")):  # the command line after the files
        name = option.name
        if name in keys:
            resolved.append(f"--{name}={_as_text(option, keys[name].type)}")
            turns[name] = option.turn
        elif option.place or name.rpartition(".")[0] not in keys:
            raise _unknown(name, keys, option.place)
        else:  # an item of a dict
            resolved.append(f"--{name}={option.value}")
    return resolved + _turned_off(keys, turns) + shows


def keys_of(config: type) -> dict[str, Key]:
    """Return the keys of a config by their names `section.key`."""
    keys = {}
    for section in fields(config):
        types = get_type_hints(section.type)
        for item in fields(section.type):  # type: ignore[arg-type]
            keys[f"{section.name}.{item.name}"] = Key(types[item.name], item)
    return keys


def explain(error: Exception, types: Mapping[str, Any]) -> str:
    """Return the line of a parser's error; of a wrong value, what its key allows."""
    line = " ".join(str(error).split())
    wrong = re.match(r'Parser key "([\w.]+)": (?:.*(?:Got|Given) value: (.*)|Not of type)', line)
    if not wrong or wrong[1] not in types:
        return line
    given = f" is {wrong[2]}: it" if wrong[2] else ""
    return f"{wrong[1]}{given} must be {_allowed(types[wrong[1]])}"


def _allowed(kind: Any) -> str:
    """Return the values of a type in words."""
    choices: list[str] = []
    for part in alternatives(kind):
        if get_origin(part) is Literal:
            choices += map(str, get_args(part))
        elif get_origin(part) in (list, tuple):
            choices.append("a list, such as [1, 2]" if int in get_args(part) else "a list")
        elif part is bool:
            choices += ("true", "false")
        else:
            choices.append(IN_WORDS.get(part) or _of_number(part) or part.__name__)
    *others, last = dict.fromkeys(choices)
    return f"{', '.join(others)} or {last}" if others else last


def _of_number(kind: Any) -> str:
    """Describe a number of jsonargparse.typing by its docstring: "float restricted to be >0"."""
    number, _, limits = str(kind.__doc__).partition(" restricted to be ")
    return f"{number} {limits}" if limits else ""


def _turned_off(keys: dict[str, Key], turns: dict[str, int]) -> list[str]:
    """Return options that turn off the keys that would override one that was given later."""
    turned_off = []
    for name, key in keys.items():
        other = key.field.metadata.get("overridden_by")
        if other in keys and turns.get(name, 0) > turns.get(other, 0):
            off = "false" if keys[other].field.default is True else "null"
            turned_off.append(f"--{other}={off}")
    return turned_off


def _unknown(name: str, keys: dict[str, Key], place: str) -> UserError:
    """Return an error that names the closest key, and the keys of the section."""
    section = name.partition(".")[0]
    siblings = [key for key in keys if key.startswith(f"{section}.")]
    if siblings:
        exist = (
            f"the keys of {section} are {', '.join(key[len(section) + 1 :] for key in siblings)}"
        )
    else:
        sections = dict.fromkeys(key.partition(".")[0] for key in keys)
        exist = f"the sections are {', '.join(sections)}, and those of added components"
    return UserError(f"unrecognized arguments: --{name}{place}; {exist}.{meant(name, keys)}")


def meant(name: str, keys: Iterable[str]) -> str:
    """Return a question with the closest key, if one is close."""
    from difflib import get_close_matches  # not for a training

    endings = {key.partition(".")[2]: key for key in keys}
    close = get_close_matches(name, keys, 1) or get_close_matches(name, endings, 1)
    return f" Did you mean --{endings.get(close[0], close[0])}?" if close else ""


def with_ranges(text: str, config: type) -> str:
    """Return the help of the options with the intervals of numbers, before their defaults."""
    for section in fields(config):
        for item in fields(section.type):  # type: ignore[arg-type]
            if interval := item.metadata.get("interval"):
                option = re.escape(f"  --{section.name}.{item.name} ")
                place = rf"(\n{option}.*?,)(\s+default:)"
                text = re.sub(place, rf"\1 in {interval},\2", text, count=1, flags=re.DOTALL)
    return text


class Option(NamedTuple):
    """An option of the command line or of a file."""

    name: str
    value: Any
    """Null, a text, or a list or dict of such."""
    turn: int
    """A larger number is later."""
    place: str = ""
    """Of a file: " in FILE"."""


def read_options(words: list[str]) -> Iterator[Option]:
    """Yield the options of a command and of its files."""
    rest = iter(words)
    for turn, word in enumerate(rest, 1):
        if not word.startswith("--"):
            raise UserError(f"unrecognized arguments: {word}")
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals:
            value = next(rest, "")
            if not value or value.startswith("--"):
                raise UserError(f"argument {word}: expected one argument")
        if name == "config":
            yield from read_file(value, turn)
        else:
            yield Option(name, value, len(words) + 1)


def read_file(file: str, turn: int) -> Iterator[Option]:
    """Yield the options of a YAML file."""
    for section, values in load(file).items():
        if not isinstance(values or {}, dict):
            raise UserError(f"{section} is {values} in {file}, but a section has keys")
        for key, value in (values or {}).items():
            yield Option(f"{section}.{key}", value, turn, f" in {file}")


def load(file: str) -> dict[str, Any]:
    """Return the sections of a YAML file; refuse one that stands twice."""
    try:
        with open(file, encoding="utf-8") as stream:
            sections = _Loader(stream).get_single_data() or {}
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        why = " ".join(str(getattr(error, "strerror", "") or error).split())
        raise UserError(f"cannot read {file}: {why}") from None
    if not isinstance(sections, dict):
        raise UserError(f"{file} needs sections, such as train, with their keys")
    return sections


class _Loader(yaml.SafeLoader):
    """Reads numbers, dates and words such as `off` as text; refuses a key that stands twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                place = f"line {line} of {key.start_mark.name}"
                raise UserError(f"{place} has braces within braces: quote the value")
            if key.value in lines:
                twice = f"{key.value} stands twice in {key.start_mark.name}"
                raise UserError(f"{twice}, in lines {lines[key.value]} and {line}: keep one")
            lines[key.value] = line
        return super().construct_mapping(node, deep)


for _kind in ("bool", "int", "float", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", lambda _, node: node.value)


def _as_text(option: Option, kind: Any) -> str:
    """Return a value as the command line has it; `a` is a list of one where a list is needed."""
    kinds = alternatives(kind)
    value = option.value
    is_null = value in (None, "null")
    if is_null and NoneType not in kinds:
        raise UserError(f"{option.name} needs a value, not null{option.place}")
    if is_null:
        return "null"
    takes_list = any(get_origin(part) in (list, tuple) for part in kinds)
    if takes_list and isinstance(value, str):
        value = _Loader(value).get_single_data() if value.startswith("[") else [value]
    if isinstance(value, str):
        return value
    if not takes_list and get_origin(kind) is not dict:
        raise UserError(f"{option.name} needs one value, not a list: quote it{option.place}")
    return json.dumps(value)
