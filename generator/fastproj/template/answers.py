"""The answers to the template's questions: which ones are command-line options, and how they are checked."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import UsageError

ANSWERS_FILE = ".copier-answers.yml"
"""File of a project in which copier records the answers."""

# The options of the command line and their help, in the order in which the template asks.
ANSWERS = {
    "gpus": "GPUs per machine used for training; 0 for none.",
    "nodes": "Machines that train one model together.",
    "tensor_cores": "Newest number format of the GPUs' Tensor Cores: fp16 Volta, Turing; bf16 Ampere; fp8 Ada.",
    "framework": "Framework of the training loop.",
    "model": "Model, with its data and training recipe.",
    "author": "Your name, for the license and the package.",
    "licence": "License of the project.",
    "components": "Components, separated by commas; `fastproj components` lists them.",
}

# Questions are never renamed; this one is named as in the first release, but shown as package
# metadata spells it.
SPELLINGS = {"licence": "license"}
_OTHER_SPELLING = SPELLINGS | {"license": "licence"}


def shown_name(name: str) -> str:
    """Return the name of an answer as users see it."""
    return SPELLINGS.get(name, name)


def option(name: str) -> str:
    """Return the command-line option of an answer."""
    return f"--{shown_name(name).replace('_', '-')}" if name in ANSWERS else f"--data {name}"


def as_text(value: Any) -> str:
    """Return an answer as a command line takes it."""
    return ",".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def choices(questions: Mapping[str, Any], name: str) -> list[str]:
    """Return the allowed answers to a question; empty if any is allowed."""
    options = questions.get(name, {}).get("choices")
    if isinstance(
        options, str
    ):  # a loop over a table, as for models and components; any other is only for copier
        loop = re.search(r" in (\w+)\.items\(\)", options)
        options = questions.get(loop[1], {}).get("default") if loop else None
        options = list(options) if isinstance(options, dict) else []
    listed = options.values() if isinstance(options, dict) else options or []
    values = [
        str(value[1] if isinstance(value, list) else value)
        for value in listed
        if not isinstance(value, dict)
    ]
    return [*values, "none"] if questions.get(name, {}).get("multiselect") else values


def combine(
    answers: Mapping[str, Any], data: list[str], questions: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the answers that options (None if not given) and pairs KEY=VALUE of `--data` give.

    Raises:
        UsageError: a pair is malformed, not a question of the template, given twice, or not an allowed answer.
    """
    pairs = [(name, value) for name, value in answers.items() if value is not None]
    for pair in data:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(
                f"--data {pair} is not of the form KEY=VALUE: use, for example, --data gpus=2"
            )
        pairs.append((name, value))
    combined: dict[str, Any] = {}
    for name, value in pairs:
        name = name if name in questions else _OTHER_SPELLING.get(name, name)
        if name in combined:
            raise UsageError(f"{shown_name(name)} is given twice: keep one of its options")
        combined[name] = value
    asked = [
        it
        for it, entry in questions.items()
        if entry.get("when") is not False and it != "project_name"
    ]
    for name in combined:
        if name not in asked:
            hint = f"{did_you_mean(name, asked)}it asks {', '.join(map(shown_name, asked))}"
            raise UsageError(f"{option(name)}: the template has no such question; {hint}")
    return {name: _checked(name, value, questions) for name, value in combined.items()}


def did_you_mean(given: str, known: Collection[str]) -> str:
    """Return the suggestion of a known name that is close to the given one; empty if none is."""
    from difflib import get_close_matches

    lower = {name.lower(): name for name in known}
    close = [it for it in lower if given and it.startswith(given.lower())] or get_close_matches(
        given.lower(), lower, 1
    )
    return f"did you mean {lower[close[0]]}? Otherwise " if close else ""


def _checked(name: str, value: Any, questions: Mapping[str, Any]) -> Any:
    """Return an answer in the form that copier takes, after checking it as far as possible without copier."""
    entry, allowed = questions.get(name, {}), choices(questions, name)
    if entry.get("multiselect") and isinstance(value, str):  # `a,b`, or JSON
        value = [it for it in re.findall(r"[^\s,\[\]\"]+", value) if it != "none"]
    if entry.get("type") == "int" and not str(value).removeprefix("-").isdecimal():
        raise UsageError(f"{option(name)} is {value!r}: it must be an integer")
    for single in map(str, value if isinstance(value, list) else [value]):
        if allowed and single not in allowed:
            hint = f"{did_you_mean(single, allowed)}choose from {', '.join(allowed)}"
            raise UsageError(f"{option(name)} {single!r} is unknown: {hint}")
    return value
