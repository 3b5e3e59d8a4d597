"""Ask a template's questions before copier runs, and confirm the answers before anything is written."""

import os
import textwrap
from collections.abc import Collection
from typing import Any

import questionary
import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from questionary import Choice

from .answers import as_text, option, shown_name
from .errors import FastprojError

# These of copier's filters read the user's variables and folders.
_UNSAFE_FILTERS = ("expandvars", "expanduser", "fileglob", "realpath")
_STYLE = questionary.Style(
    [
        ("qmark", "fg:ansigreen bold"),
        ("answer", "noinherit fg:ansicyan"),
        ("pointer", "fg:ansicyan bold"),
        ("highlighted", "fg:ansicyan bold"),
        ("selected", "noreverse"),
        ("instruction", "fg:ansibrightblack"),
    ]
)
_MISSING = object()


def ask(
    questions: dict[str, Any],
    given: dict[str, Any],
    defaults: dict[str, Any],
    confirmation: str,
    fixed: Collection[str],
) -> dict[str, Any]:
    """Ask all questions that are not answered yet until the user confirms the answers, and return them.

    `defaults` replace the template's. Answers in `fixed` cannot be changed.

    Raises:
        KeyboardInterrupt: after Ctrl-C, or if the answers are declined.
        FastprojError: the input ended, or a question has an expression that is not understood here.
    """
    try:
        while True:
            answers = Form(questions, given, defaults).ask()
            changed = _to_change(confirmation, {key: it for key, it in answers.items() if key not in fixed}, questions)
            if not changed:
                return answers
            defaults = defaults | {changed: answers.pop(changed)}
            given = answers
    except EOFError as error:
        raise FastprojError("the input ended before all questions were answered: answer them, or pass --yes") from error


def _to_change(confirmation: str, answers: dict[str, Any], questions: dict[str, Any]) -> str:
    """Show the answers, and return the name of the one to change; empty if they are confirmed."""
    width = max(map(len, answers), default=0)
    shown = {name: "****" if questions[name].get("secret") else as_text(it) for name, it in answers.items()}
    lines = [Choice(_wrapped(f"{shown_name(name):{width}}  {it}"), name) for name, it in shown.items()]
    choices = [Choice("yes", ""), Choice("no", "no"), *lines]
    chosen = _select(f"{confirmation}\n ", ["Select yes, or an answer to change."], choices, "")
    if chosen == "no":
        raise KeyboardInterrupt
    return str(chosen)


class Form:
    """The questions of a template and the answers so far, evaluated as copier does."""

    def __init__(self, questions: dict[str, Any], given: dict[str, Any], defaults: dict[str, Any]) -> None:
        extensions = ["jinja2_ansible_filters.AnsibleCoreFiltersExtension"]  # copier's
        self._jinja = SandboxedEnvironment(extensions=extensions, undefined=StrictUndefined)
        for name in _UNSAFE_FILTERS:
            self._jinja.filters.pop(name, None)
        self._questions, self._given, self._defaults = questions, given, defaults
        self._known: dict[str, Any] = {}

    def ask(self) -> dict[str, Any]:
        """Ask the questions in order, and return the answers to those that apply."""
        answers = {}
        for name, entry in self._questions.items():
            try:
                applies = self._is_true(entry.get("when", True))
                self._known[name] = self._answer(name, entry, applies)
            except (EOFError, KeyboardInterrupt):
                raise
            except Exception as error:
                reason = " ".join(str(error).split())
                raise FastprojError(
                    f"cannot ask for {shown_name(name)} ({reason}): answer it with {option(name)}, or pass --yes"
                ) from error
            if applies and self._known[name] is not _MISSING:
                answers[name] = self._known[name]
        return answers

    def _answer(self, name: str, entry: dict[str, Any], applies: bool) -> Any:
        given = self._given.get(name, _MISSING)
        if given is not _MISSING and not self._problem(name, entry, given):
            return self._parsed(entry, given)
        default = self._parsed(entry, self._value(self._defaults.get(name, entry.get("default", _MISSING))))
        if not applies or not self._is_true(entry.get("ask", True)):
            return default
        title, *details = [line.strip() for line in self._value(entry.get("help") or name).strip().splitlines()]
        while True:
            answer = self._parsed(entry, self._prompt(name, entry, f"{_wrapped(title)}\n ", details, default))
            if not (wrong := self._problem(name, entry, answer)):
                return answer
            questionary.print(f"  {wrong}", style="fg:ansired")

    def _prompt(self, name: str, entry: dict[str, Any], title: str, details: list[str], default: Any) -> Any:
        choices = self._choices(entry)
        if choices and entry.get("multiselect"):
            return self._check_off(name, entry, title, details, choices, default)
        if choices:
            return _select(title, details, choices, default)
        if _kind(entry) == "bool":
            title = "\n  ".join([title.rstrip(), *details])
            return questionary.confirm(title, default is True, qmark="?", style=_STYLE).unsafe_ask()
        return self._ask_text(name, entry, "\n  ".join([title.rstrip(), *details]), default)

    def _check_off(
        self, name: str, entry: dict[str, Any], title: str, details: list[str], choices: list[Choice], default: Any
    ) -> Any:
        for choice in choices:
            choice.checked = choice.value in (default or [])
        return questionary.checkbox(
            title,
            choices,
            validate=lambda answer: self._problem(name, entry, answer) or True,
            qmark="?",
            instruction="\n  ".join([*details, "Arrow keys: move, typing: filter, Space: toggle"]),
            use_search_filter=True,
            use_jk_keys=False,
            style=_STYLE,
        ).unsafe_ask()

    def _ask_text(self, name: str, entry: dict[str, Any], message: str, default: Any) -> str:
        """Ask for a text in an empty field that shows the default, which Enter accepts."""
        empty = "" if default is _MISSING else _as_field(default)
        hint = "****" if entry.get("secret") else empty or self._value(entry.get("placeholder", ""))
        prompt = questionary.password if entry.get("secret") else questionary.text
        text = prompt(
            f"{message}\n ",
            validate=lambda it: self._problem(name, entry, it or empty) or True,
            qmark="?",
            placeholder=[("fg:ansibrightblack", hint)],
            style=_STYLE,
        ).unsafe_ask()
        return text or empty

    def _problem(self, name: str, entry: dict[str, Any], answer: Any) -> str:
        """Return what is wrong with an answer; empty if nothing is."""
        if any("\ud800" <= letter <= "\udfff" for letter in str(answer)):
            return "this is not valid text in the terminal's encoding: use UTF-8"
        try:
            parsed = self._parsed(entry, answer)
        except (ValueError, TypeError, yaml.YAMLError):
            return {"int": "enter a whole number", "float": "enter a number"}.get(
                entry.get("type", ""), "not valid YAML"
            )
        return " ".join(self._value(entry.get("validator", ""), **{name: parsed}).split())

    def _parsed(self, entry: dict[str, Any], value: Any) -> Any:
        """Return an answer in the question's type."""
        kind = _kind(entry)
        if isinstance(value, list) or not isinstance(value, str) or kind in ("str", "path"):
            return value
        if entry.get("multiselect") or kind not in ("int", "float"):
            return yaml.safe_load(value)
        return int(value) if kind == "int" else float(value)

    def _choices(self, entry: dict[str, Any]) -> list[Choice]:
        found = self._value(entry.get("choices", []))
        found = yaml.safe_load(found) if isinstance(found, str) else found
        pairs = found.items() if isinstance(found, dict) else [it if isinstance(it, list) else (it, it) for it in found]
        choices = []
        for title, value in pairs:
            more = value if isinstance(value, dict) else {"value": value}
            disabled = self._value(more.get("validator", "")).strip() or None
            choices.append(Choice(_wrapped(str(self._value(title))), self._value(more["value"]), disabled=disabled))
        return choices

    def _is_true(self, condition: Any) -> bool:
        return bool(yaml.safe_load(self._value(condition)) if isinstance(condition, str) else condition)

    def _value(self, value: Any, **more: Any) -> Any:
        """Return a value in which an expression is evaluated."""
        known = {name: it for name, it in self._known.items() if it is not _MISSING}
        return self._jinja.from_string(value).render(known | more) if isinstance(value, str) else value


def _select(title: str, details: list[str], choices: list[Choice], default: Any) -> Any:
    filtered = not any(choice.disabled for choice in choices)  # questionary could select one of these
    start = next((it for it in choices if it.value == default and not it.disabled), None)
    return questionary.select(
        title,
        choices,
        start,
        qmark="?",
        instruction="\n  ".join([*details, f"Arrow keys: move,{' typing: filter,' * filtered} Enter: select"]),
        use_search_filter=filtered,
        use_jk_keys=False,
        style=_STYLE,
    ).unsafe_ask()


def _kind(entry: dict[str, Any]) -> str:
    return str(entry.get("type") or type(entry.get("default", "")).__name__)


def _as_field(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).strip() if isinstance(value, dict | list) else str(value)


def _wrapped(text: str) -> str:
    """Wrap a text at the end of words, and not where the terminal ends."""
    return textwrap.fill(text, os.get_terminal_size().columns - 6, subsequent_indent=" " * 5, break_long_words=False)
