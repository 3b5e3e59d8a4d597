"""What is wrong with a command line or a YAML file, in one line: where, what it takes, and the nearest name."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml  # type: ignore[import-untyped,unused-ignore]

from .config_help import Option, closest, groups, options
from .errors import UserError

FLAGS = ("--help", "-h", "--print_config")


@dataclass(frozen=True)
class Given:
    """An option as it was given."""

    name: str
    """With two dashes, if it is from the command line."""
    value: str
    place: str
    """`file:line: `, or empty for the command line."""

    @property
    def key(self) -> str:
        """The key of the option, or a section."""
        return self.name.removeprefix("--")


def explain(message: str, arguments: list[str]) -> str:
    """Return the message of a parser in one line, and in terms of the options."""
    given: list[Given] = []
    try:
        for one in _given(arguments):
            given.append(one)
            _check_name(one)
    except UserError as error:
        return str(error)
    named = re.search(r'(?:Parser key "|argument --)([\w.]+)', message)
    option = options().get(named[1]) if named else None
    if option is None and (unknown := re.match(r"unrecognized arguments: (--[\w.]+)", message)):
        return f"there is no option {unknown[1]}; --help lists them"  # of a section without any
    if option is None:
        return f"{' '.join(message.split())} (see --help)"
    if "expected one argument" in message:
        return f"--{option.key} needs a value, {_either(option)}; a negative one as --{option.key}=-1"
    return _wrong_value(option, message, [one for one in given if one.key == option.key])


def with_place(error: UserError, arguments: list[str]) -> UserError:
    """Add the file and the line to an error about an option's value, if it is from a file."""
    named = re.match(r"([\w.]+) is ", str(error))
    try:
        given = [one for one in _given(arguments) if named and one.key == named[1]]
    except UserError:
        return error
    return type(error)(f"{given[-1].place}{error}") if given else error


def _given(arguments: list[str]) -> Iterator[Given]:
    """Return what the command line and the files that it names set, in their order.

    Raises:
        UserError: a file cannot be read, or is not a YAML file of sections.
    """
    words = list(reversed(arguments))
    while words:
        name, equals, value = words.pop().partition("=")
        if not equals and words and not words[-1].startswith("--"):
            value = words.pop()
        if name == "--config":
            yield from _in_file(value)
        elif name not in FLAGS:
            yield Given(name, value, "")


def _in_file(name: str) -> Iterator[Given]:
    if not name:
        raise UserError("--config needs the name of a YAML file")
    try:
        text = Path(name).read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        yaml.safe_load(text)  # which refuses tags, and values that do not fit theirs
    except OSError as error:
        raise UserError(f"cannot read the config {name}: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        way_out = "; remove the tag" if "tag" in str(error.problem) else ""
        raise UserError(f"{name}{line}: this is not valid YAML: {error.problem}{way_out}") from error
    except UnicodeDecodeError as error:
        before = error.object.count(b"\n", 0, error.start)
        raise UserError(f"{name}:{before + 1}: this is not UTF-8 ({error.reason}): save the file as UTF-8") from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:  # the last ones are of a value with a tag
        raise UserError(f"{name}: this is not a YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{name}: it must contain sections with their options, such as `optim:` with `lr: 0.001` in it")
    yield from _in_mapping(root, name, "")


def _in_mapping(node: yaml.MappingNode, file: str, prefix: str) -> Iterator[Given]:
    lines: dict[str, int] = {}
    for key, value in node.value:
        if key.value == "<<":
            continue  # what it merges has a name elsewhere
        line = key.start_mark.line + 1
        name, place = f"{prefix}{_text(key)}", f"{file}:{line}: "
        if name in lines:
            raise UserError(f"{place}{name} is there twice, first in line {lines[name]}: make them one")
        lines[name] = line
        if isinstance(value, yaml.MappingNode) and name in groups():
            yield from _in_mapping(value, file, f"{name}.")
        else:
            yield Given(name, _text(value), place)


def _text(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"


def _check_name(given: Given) -> None:
    """Refuse a name that is no option, by a UserError."""
    if not given.place and not given.name.startswith("--"):
        known = given.name.partition("=")[0] in {*options(), "config", "print_config", "help"}
        near = f"did you mean --{given.name}?" if known else "options are given as --optim.lr 0.001"
        raise UserError(f"{given.name} is not an option; {near}")
    section, _, key = given.key.partition(".")
    group = groups().get(section)
    if group is None or (key and group.options and given.key not in options()):
        near = closest(given.key, [*groups(), *options(), *([] if given.place else ["config", "print_config", "help"])])
        raise UserError(f"{given.place}there is no option {given.name}{near or '; --help lists them'}")
    if not key:
        first = group.options[0].key if group.options else f"{section}.NAME"
        raise UserError(f"{given.place}{section} is a section: give its options, such as {first}")


def _wrong_value(option: Option, message: str, given: list[Given]) -> str:
    named = (one for one in given if re.search(rf"alue: {re.escape(one.value)}(?!\S)", message))
    found = next(named, given[-1] if given else None)
    value, place = (found.value or "empty", found.place) if found else ("wrong", "")
    near = closest(value, [word for word in option.values.split(", ") if " " not in word])
    return f"{place}{option.key} is {value}: expected {_either(option)}{near}"


def _either(option: Option) -> str:
    return " or ".join(option.values.rsplit(", ", 1))
