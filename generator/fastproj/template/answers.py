"""The answers to the template's questions: which are command-line options, and their checks."""

import re
from collections.abc import Collection
from typing import Any

from ..errors import UsageError

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


def shown_name(name: str) -> str:
    """Return the name of an answer as users see it."""
    return SPELLINGS.get(name, name)


def option(name: str) -> str:
    """Return the command-line option of an answer."""
    return f"--{shown_name(name).replace('_', '-')}" if name in ANSWERS else f"--data {name}"


def as_text(value: Any) -> str:
    """Return an answer as a command line takes it."""
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return str(value)


def entries(questions: Answers, name: str) -> Answers:
    """Return the table in copier.yml that describes the choices of a question; often empty."""
    table = questions.get(_TABLES.get(name, ""), {}).get("default")
    return table if isinstance(table, dict) else {}


def with_required(names: list[str], table: Answers) -> list[str]:
    """Return components with those that they require, in the order of the table."""
    chosen = dict.fromkeys(names)
    for name in chosen.copy():
        entry = table.get(name, {})
        chosen |= dict.fromkeys(with_required(entry.get("requires", []), table))
    return [name for name in table if name in chosen] if table else names


def choices(questions: Answers, name: str) -> list[str]:
    """Return the allowed answers to a question; empty if any is, or if only copier knows them."""
    question = questions.get(name, {})
    options = question.get("choices")
    if isinstance(options, str):
        values = list(entries(questions, name))
    elif isinstance(options, dict):
        values = list(options.values())
    else:
        values = options or []
    allowed = list(map(str, values))
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
            raise UsageError(
                f"--data {pair} is not of the form KEY=VALUE: use, for example, --data gpus=2"
            )
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
    return combined


def did_you_mean(given: str, known: Collection[str]) -> str:
    """Return the suggestion of a known name that is close to the given one; empty if none is."""
    from difflib import get_close_matches

    names = {name.lower(): name for name in known}
    close = get_close_matches(given.lower(), names, 1, cutoff=0.4)
    return f"did you mean {names[close[0]]}? Otherwise " if close else ""


def _checked(name: str, value: Any, questions: Answers) -> Any:
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
