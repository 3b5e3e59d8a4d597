"""Reads a config from YAML files and the command line, which wins."""

import json
import re
import sys
from argparse import ArgumentError
from collections.abc import Iterable, Iterator
from dataclasses import Field, asdict, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentParser, set_parsing_settings

from .config_base import alternatives
from .errors import UserError

C = TypeVar("C")

SHOW = ("-h", "--help", "--print_config")
"""How words begin that show the config instead of training."""

IN_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text, in quotes",
    Path: "a path, in quotes",
    NoneType: "null",
    tuple: 'a list, such as ["a", "b"]',
    list: 'a list, such as ["a", "b"]',
    dict: "a dict",
}
"""What a value of a type may be."""


class Key(NamedTuple):
    """A key of the config."""

    type: Any
    field: Field[Any]


def parse(config: type[C], argv: list[str] | None = None) -> C:
    """Return the config of a command line; print it and exit for --help and --print_config."""
    words = sys.argv[1:] if argv is None else argv
    shows = [word for word in words if word.startswith(SHOW)]
    # 0.1 s: not for a training
    set_parsing_settings(docstring_parse_attribute_docstrings=bool(shows))
    parser = ArgumentParser(description="Train the model.", exit_on_error=False)
    about_files = "A YAML file of options; the command line overrides it."
    parser.add_argument("--config", action="config", help=about_files)
    parser.add_class_arguments(config, None)
    keys = keys_of(config)
    options = read_options([word for word in words if word not in shows], keys)
    sections: dict[str, Any] = {}
    try:
        given = parser.parse_args(options, defaults=False)  # these follow from the model's size
        for section in fields(config):  # type: ignore[arg-type]
            kind: Any = section.type
            sections[section.name] = kind(**given.get(section.name, {}))
    except (ArgumentError, TypeError, ValueError) as error:
        types = {}
        for name, key in keys.items():
            types[name] = key.type
        raise UserError(explain(error, types)) from None
    cfg = config(**sections)
    if shows:
        parser.set_defaults(flat(asdict(cfg)))  # type: ignore[call-overload]
        if not any(word.startswith("--print_config") for word in shows):
            print(with_ranges(parser.format_help(), keys))
            raise SystemExit(0)
        try:
            parser.parse_args(shows)
        except ArgumentError as error:
            raise UserError(str(error)) from None
    return cfg


def from_saved(config: type[C], saved: dict[str, Any]) -> C:
    """Return the config of a saved run; a component may have been removed since, with its keys."""
    words = []
    keys = keys_of(config)
    for name, value in flat(saved).items():
        if name in keys:
            words.append(f"--{name}={as_text(value, keys[name].type)}")
    return parse(config, words)


def keys_of(config: type) -> dict[str, Key]:
    """Return the keys of a config by their names `section.key`."""
    keys = {}
    for section in fields(config):
        types = get_type_hints(section.type)
        for item in fields(section.type):  # type: ignore[arg-type]
            keys[f"{section.name}.{item.name}"] = Key(types[item.name], item)
    return keys


def flat(sections: dict[str, Any], place: str = "") -> dict[str, Any]:
    """Return the values of all sections by their keys `section.name`."""
    values = {}
    for section, options in sections.items():
        if not isinstance(options or {}, dict):
            raise UserError(f"{section} is {options}{place}, but a section has keys")
        for name, value in (options or {}).items():
            values[f"{section}.{name}"] = value
    return values


def read_options(words: list[str], keys: dict[str, Key]) -> list[str]:
    """Return the options of the files that a command names and then its own, as words.

    A key turns off the one that would override it, unless that one is given beside it or later:
    `--train.epochs` on the command line sets `train.steps` of a file to null.
    """
    given: dict[str, str] = {}
    lists = {name for name, key in keys.items() if _takes_list(key.type)}
    for place, options in _sources(words, lists):
        for name in options:
            section = name.rpartition(".")[0]
            key = keys.get(name) or keys.get(section)  # an item of a dict
            if key is None:
                raise _unknown(name, keys, place)
            other = key.field.metadata.get("overridden_by")
            if other:
                given[other] = "false" if keys[other].type is bool else "null"
        for name, value in options.items():
            kind = keys[name].type if name in keys else str
            try:
                given[name] = as_text(value, kind)
            except ValueError as error:
                raise UserError(f"{name} {error}{place}") from None
    return [f"--{name}={value}" for name, value in given.items()]


def as_text(value: Any, kind: Any) -> str:
    """Return a value of `load` as the command line has it.

    Where a list is needed, a single text becomes a list of one. Raises a ValueError for what no key
    of this kind can have.
    """
    kinds = alternatives(kind)
    is_null = value in (None, "null")
    if is_null and NoneType not in kinds:
        raise ValueError("needs a value, not null")
    _refuse_misread(str(value), kinds)
    if _takes_list(kind) and isinstance(value, str) and not is_null:
        value = _read_list(value) if value.startswith("[") else [value]
    if isinstance(value, str):
        return value
    return json.dumps(value)


def _takes_list(kind: Any) -> bool:
    return any(get_origin(part) in (list, tuple) for part in alternatives(kind))


def _refuse_misread(text: str, kinds: tuple[Any, ...]) -> None:
    """Raise a ValueError for text that YAML would silently read as something else."""
    if NoneType in kinds and re.fullmatch(r"\s*(#.*|&\S*|---|~|Null|NULL|\?)\s*", text):
        raise ValueError(f"is {text}, which YAML reads as null: give null, or another name or path")
    if re.fullmatch(r"[\d:]+:\d+", text) and not {str, Path}.intersection(kinds):
        raise ValueError(f"is {text}, which YAML reads as a number of seconds: give a number")


def _read_list(text: str) -> Any:
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError:
        raise ValueError(f"is {text}, which is no list of YAML: write it as [a, b]") from None


def _sources(
    words: list[str],
    lists: set[str],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the options of each file, with its name for errors, and of the command line.

    There, an item of a list may not be given twice, as the first one would have no effect.
    """
    own: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            raise UserError(f"unrecognized arguments: {word}")
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals:
            value = next(rest, "")
            if not value or value.startswith("--"):
                raise UserError(f"argument {word}: expected one argument")
        if name == "config":
            place = f" in {value}"
            yield place, flat(load(value), place)
        elif name in own and name in lists and "[" not in own[name] + value:
            raise UserError(f"--{name} is given twice: give a list, [{own[name]}, {value}]")
        else:
            own[name] = value
    yield "", own


def load(file: str) -> dict[str, Any]:
    """Return the sections of a YAML file."""
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
            name = str(key.value)
            line = key.start_mark.line + 1
            if name in lines:
                twice = f"{name} stands twice in {key.start_mark.name}"
                raise UserError(f"{twice}, in lines {lines[name]} and {line}: keep one")
            lines[name] = line
        return super().construct_mapping(node, deep)


for _kind in ("bool", "int", "float", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", lambda _, node: node.value)


def explain(error: Exception, types: dict[str, Any]) -> str:
    """Return the line of a parser's error; of a wrong value, what its key allows."""
    line = " ".join(str(error).split())
    wrong = re.match(r'Parser key "([\w.]+)": (.*)(?:Got|Given) value: ?(.*)', line)
    if not wrong or wrong[1] not in types:
        return line
    name, why, value = wrong.groups()
    kinds = alternatives(types[name])
    if get_origin(kinds[0]) is tuple and why == "Expected a <class 'str'>. ":
        return f"{name} has {value}, which must be text: quote it"
    allowed: list[str] = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            allowed += map(str, get_args(kind))
        elif kind is bool:
            allowed += ("true", "false")
        else:
            allowed.append(IN_WORDS[get_origin(kind) or kind])
    *others, last = allowed
    choice = f"{', '.join(others)} or {last}" if others else last
    return f"{name} is {value or 'empty'}: it must be {choice}{_quoted(value, allowed)}"


def _quoted(value: str, allowed: list[str]) -> str:
    """Say to quote off, which YAML reads as false."""
    return '; quote "off"' if value == "False" and "off" in allowed else ""


def _unknown(name: str, keys: dict[str, Key], place: str) -> UserError:
    """Return an error that names the closest key, and the keys of the section."""
    section = name.partition(".")[0]
    siblings = []
    for key in keys:
        if key.startswith(f"{section}."):
            siblings.append(key.removeprefix(f"{section}."))
    if siblings:
        exist = f"the keys of {section} are {', '.join(siblings)}"
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


def with_ranges(text: str, keys: dict[str, Key]) -> str:
    """Return the help of the options with the intervals of numbers, before their defaults."""
    for name, key in keys.items():
        if interval := key.field.metadata.get("interval"):
            place = rf"(\n  --{re.escape(name)} .*?,)(\s+default:)"
            text = re.sub(place, rf"\1 in {interval},\2", text, count=1, flags=re.DOTALL)
    return text
