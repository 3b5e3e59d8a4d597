"""Hold options against the questions of a template."""

from typing import Any

from .errors import FastprojError


def given(
    gpus: int | None,
    nodes: int | None,
    tensor_cores: str | None,
    framework: str | None,
    model: str | None,
    launchers: str | None,
    author: str | None,
    licence: str | None,
    update_workflow: bool | None,
) -> dict[str, Any]:
    """Return the answers among the options, by their questions."""
    answers: dict[str, Any] = {"gpus": gpus, "nodes": nodes, "tensor_cores": tensor_cores, "framework": framework}
    answers |= {"model": model, "author": author, "licence": licence, "update_workflow": update_workflow}
    if launchers is not None:
        answers["launchers"] = [part for part in launchers.replace(" ", "").split(",") if part not in ("", "none")]
    return {key: value for key, value in answers.items() if value is not None}


def choices(asked: dict[str, Any], question: str) -> list[str]:
    """Return what a question of a template may be answered with; empty where it is free."""
    options = asked.get(question, {}).get("choices")
    if isinstance(options, str):  # made from a table: ours of models and frameworks, or one that copier alone can read
        table = asked.get(f"{question}s", {}).get("default")
        return list(table) if isinstance(table, dict) else []
    listed = options.values() if isinstance(options, dict) else options or []
    values = [str(value[1] if isinstance(value, list) else value) for value in listed if not isinstance(value, dict)]
    return [*values, "none"] if asked.get(question, {}).get("multiselect") else values


def check(answers: dict[str, Any], extra: dict[str, str], asked: dict[str, Any]) -> None:
    """Hold the options against the template's choices before anything is asked; the rest is copier's to check.

    Raises:
        FastprojError: one is not among its choices, given twice, or no text.
    """
    for key, value in (answers | extra).items():
        option = f"--{key.replace('_', '-')}"
        if key in answers and key in extra:
            raise FastprojError(f"{option} and --data {key} are both given: leave one out")
        allowed = choices(asked, key)
        for single in value if isinstance(value, list) else [value]:
            if any("\ud800" <= letter <= "\udfff" for letter in str(single)):
                raise FastprojError(
                    f"{option} holds bytes that are no text in this terminal's encoding: write it in UTF-8"
                )
            if allowed and str(single) not in allowed:
                raise FastprojError(f"{option} {single!r} is unknown: choose from {', '.join(allowed)}")


def named(data: list[str], asked: dict[str, Any] | None) -> dict[str, str]:
    """Read KEY=VALUE options.

    Raises:
        FastprojError: one has no `=`, or names no question of the template.
    """
    found = {}
    for entry in data:
        key, equals, value = entry.partition("=")
        if not equals or not key.isidentifier():
            raise FastprojError(f"--data {entry} is not of the form KEY=VALUE: write, say, --data gpus=2")
        if asked is not None and (key not in asked or asked[key].get("when") is False or key == "project_name"):
            open_questions = [
                name for name, it in asked.items() if it.get("when") is not False and name != "project_name"
            ]
            raise FastprojError(
                f"--data {key}: the template asks no such question; it asks {', '.join(open_questions)}"
            )
        if key in found:
            raise FastprojError(f"--data {key} is given twice: leave one out")
        if asked is not None and asked[key].get("type") == "int" and not value.lstrip("-").isdecimal():
            raise FastprojError(f"--data {key} is {value!r}: it must be a whole number")
        found[key] = value
    return found
