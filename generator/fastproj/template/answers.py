"""The answers to the template's questions: which are command-line options, and their checks."""

import re
from collections.abc import Collection, Iterable
from typing import Any

from ..errors import FastprojError, UsageError

Answers = dict[str, Any]
"""By the names of the questions."""

ANSWERS_FILE = ".copier-answers.yml"
"""File of a project in which copier records the answers."""

ANSWERS = (
    "gpus",
    "nodes",
    "tensor_cores",
    "framework",
    "model",
    "author",
    "licence",
    "components",
)
"""The answers that are options of the command line, in the order in which the template asks."""

SPELLINGS = {"licence": "license"}
"""Questions are never renamed; users see this one as package metadata spells it."""
_OTHER_SPELLING = SPELLINGS | {"license": "licence"}

_TABLES = {"framework": "frameworks", "model": "models", "components": "component_table"}
"""The tables in copier.yml whose names are the choices of a question."""

_ENTRY: dict[str, Any] = {
    **dict.fromkeys(("about", "launch", "workflow", "file", "kind", "group"), str),
    **dict.fromkeys(("requires", "frameworks", "untyped"), list),
    **dict.fromkeys(("instead", "bench", "packages"), dict),
}
"""The types of the keys of a component's entry in copier.yml; elements are texts."""


def shown_name(name: str) -> str:
    """Return the name of an answer as users see it."""
    return SPELLINGS.get(name, name)


def option(name: str) -> str:
    """Return the command-line option of an answer."""
    if name == "project_name":
        return "the project's name"
    return f"--{shown_name(name).replace('_', '-')}" if name in ANSWERS else f"--data {name}"


def as_text(value: Any) -> str:
    """Return an answer as a command line takes it."""
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return str(value)


def entries(
    questions: Answers,
    name: str,
) -> Answers:
    """Return the table in copier.yml that describes the choices of a question; often empty."""
    table = questions.get(_TABLES.get(name, ""), {}).get("default")
    return table if isinstance(table, dict) else {}


def choices(
    questions: Answers,
    name: str,
) -> list[str]:
    """Return the allowed answers to a question; empty if any is, or if only copier knows them."""
    question = questions.get(name, {})
    options = question.get("choices")
    if isinstance(options, str):
        values = list(entries(questions, name))
    elif isinstance(options, dict):
        values = list(options.values())
    else:
        values = options if isinstance(options, list) else []
    allowed = [str(value[-1] if isinstance(value, list) and value else value) for value in values]
    if allowed and question.get("multiselect"):
        allowed.append("none")
    return allowed


def combine(
    answers: Answers,
    data: list[str],
    questions: Answers,
) -> Answers:
    """Return the answers of options (None if not given) and of pairs KEY=VALUE of `--data`.

    Raises:
        UsageError: a pair is malformed, given twice, no question of the template, or not allowed.
    """
    pairs = [(name, value) for name, value in answers.items() if value is not None]
    for pair in data:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"--data {pair} is not of the form KEY=VALUE")
        pairs.append((name, text))

    hidden = [name for name, entry in questions.items() if entry.get("when") is False]
    asked = [name for name in questions if name not in (*hidden, "project_name")]
    combined: Answers = {}
    for name, value in pairs:
        if name not in questions:
            name = _OTHER_SPELLING.get(name, name)
        if name in combined:
            raise UsageError(f"{shown_name(name)} is given twice: keep one of its options")
        if name not in asked:
            hint = f"{did_you_mean(name, asked)}it asks {', '.join(map(shown_name, asked))}"
            raise UsageError(f"{option(name)}: the template has no such question; {hint}")
        combined[name] = _checked(name, value, questions)
    table = component_table(questions)
    names = combined.get("components")
    if isinstance(names, list) and table.keys() >= set(names):
        combined["components"] = with_required(names, table)
    return combined


def component_table(questions: Answers) -> dict[str, Answers]:
    """Return the entries of a template's components by name; none if it has no components.

    Raises:
        FastprojError: an entry is not as copier.yml describes it.
    """
    table = questions.get("component_table", {}).get("default", {})
    if not isinstance(table, dict):
        raise FastprojError("the template's component_table has no names and entries")
    for name, entry in table.items():
        if not isinstance(name, str) or not isinstance(entry, dict) or "about" not in entry:
            raise FastprojError(f"the template's component {name} has no keys with `about` in them")
        for key, kind in _ENTRY.items():
            value = entry.get(key, kind())
            if not isinstance(value, kind) or not all(isinstance(text, str) for text in value):
                raise FastprojError(f"the template's component {name} has {key}: {value!r}")
        if unknown := set(entry.get("requires", [])) - table.keys():
            raise FastprojError(f"the template's component {name} requires {min(unknown)}")
    return table


def with_required(
    names: Iterable[str],
    table: dict[str, Answers],
) -> list[str]:
    """Return components with those that they require, in the order of the table."""
    chosen = set()
    left = list(names)
    while left:
        name = left.pop()
        if name not in chosen:
            left += table.get(name, {}).get("requires", [])
        chosen.add(name)
    return [name for name in table if name in chosen] if table else list(names)


def did_you_mean(
    given: str,
    known: Collection[str],
) -> str:
    """Return the suggestion of a known name that is close to the given one; empty if none is."""
    from difflib import get_close_matches

    names = {name.lower(): name for name in known}
    close = get_close_matches(given.lower(), names, 1, cutoff=0.4)
    return f"did you mean {names[close[0]]}? Otherwise " if close else ""


def _checked(
    name: str,
    value: Any,
    questions: Answers,
) -> Any:
    """Return an answer as copier takes it, after checking it as far as possible without copier."""
    question = questions[name]
    if question.get("type") == "int" and not str(value).removeprefix("-").isdecimal():
        raise UsageError(f"{option(name)} is {value!r}: it must be an integer")
    if question.get("multiselect") and isinstance(value, str):  # `a,b`, or JSON
        value = [word for word in re.findall(r"[^\s,\[\]\"]+", value) if word != "none"]
    allowed = choices(questions, name)
    for single in value if isinstance(value, list) else [value]:
        if allowed and str(single) not in allowed:
            hint = f"{did_you_mean(str(single), allowed)}choose from {', '.join(allowed)}"
            raise UsageError(f"{option(name)} {single!r} is unknown: {hint}")
    return value
