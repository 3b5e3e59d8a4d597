"""Ask a template's questions before copier runs, and confirm the answers before anything is written."""

import shutil
import textwrap
from collections.abc import Collection
from typing import Any

import questionary
import yaml
from questionary import Choice

from .answers import as_text, option, shown_name
from .errors import FastprojError
from .question import MISSING, Question

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
_LOOK: dict[str, Any] = {"qmark": "?", "style": _STYLE}
Answers = dict[str, Any]


def ask(questions: Answers, given: Answers, defaults: Answers, confirmation: str, fixed: Collection[str]) -> Answers:
    """Ask all questions that are not answered yet until the user confirms the answers, and return them.

    `defaults` replace the template's. Answers in `fixed` cannot be changed. To decline is a KeyboardInterrupt.
    """
    try:
        while True:
            answers = _ask_all(questions, given, defaults)
            changed = _to_change(confirmation, {key: it for key, it in answers.items() if key not in fixed}, questions)
            if not changed:
                return answers
            defaults = defaults | {changed: answers.pop(changed)}
            given = answers
    except EOFError as error:
        raise FastprojError("the input ended before all questions were answered: answer them, or pass --yes") from error


def _to_change(confirmation: str, answers: Answers, questions: Answers) -> str:
    """Show the answers, and return the name of the one to change; empty if they are confirmed."""
    width = max(map(len, answers), default=0)
    shown = {name: "****" if questions[name].get("secret") else as_text(it) for name, it in answers.items()}
    lines = [Choice(f"{shown_name(name):{width}}  {it}", name) for name, it in shown.items()]
    choices = [Choice("yes", ""), Choice("no", "no"), *lines]
    chosen = _select(confirmation, ["Select yes, or an answer to change."], choices, "")
    if chosen == "no":
        raise KeyboardInterrupt
    return str(chosen)


def _ask_all(questions: Answers, given: Answers, defaults: Answers) -> Answers:
    """Ask the questions in order, and return the answers to those that apply."""
    known: Answers = {}
    answers: Answers = {}
    for name, entry in questions.items():
        question = Question(name, entry, dict(known))
        try:
            answer = _answer(question, given, defaults)
            applies = question.is_true("when")
        except (EOFError, KeyboardInterrupt):
            raise
        except Exception as error:
            reason = " ".join(str(error).split())
            raise FastprojError(
                f"cannot ask the question {shown_name(name)} ({reason}): answer it with {option(name)}, or pass --yes"
            ) from error
        known |= {} if answer is MISSING else {name: answer}
        answers |= {name: answer} if applies and name in known else {}
    return answers


def _answer(question: Question, given: Answers, defaults: Answers) -> Any:
    if question.name in given and not question.problem(given[question.name]):
        return question.parsed(given[question.name])
    default = question.default(defaults)
    if not question.is_true("when") or not question.is_true("ask"):
        return default
    while True:
        answer = question.parsed(_prompt(question, default))
        if not (wrong := question.problem(answer)):
            return answer
        questionary.print(f"  {wrong}", style="fg:ansired")


def _prompt(question: Question, default: Any) -> Any:
    title, *details = question.help
    choices = question.choices()
    if choices and question.entry.get("multiselect"):
        return _check_off(question, title, details, choices, default or [])
    if choices:
        return _select(title, details, choices, default)
    message = "\n  ".join([_wrapped(title), *details])
    if question.kind == "bool":
        return questionary.confirm(message, default is True, **_LOOK).unsafe_ask()
    return _ask_text(question, f"{message}\n ", default)


def _ask_text(question: Question, message: str, default: Any) -> str:
    """Ask for a text in an empty field that shows the default, which Enter accepts."""
    secret = question.entry.get("secret", False)
    empty = "" if default is MISSING else _as_field(default)
    hint = [("fg:ansibrightblack", "****" if secret else empty or question.placeholder)]
    text = (questionary.password if secret else questionary.text)(
        message, validate=lambda it: question.problem(it or empty) or True, placeholder=hint, **_LOOK
    ).unsafe_ask()
    return str(text or empty)


def _select(title: str, details: list[str], choices: list[Choice], default: Any) -> Any:
    filtered = not any(choice.disabled for choice in choices)  # questionary could select one of these
    keys = f"Arrow keys: move,{' typing: filter,' * filtered} Enter: select"
    start = next((it for it in choices if it.value == default and not it.disabled), None)
    return questionary.select(
        *_of_a_list(title, choices),
        start,
        instruction="\n  ".join([*details, keys]),
        use_search_filter=filtered,
        use_jk_keys=False,
        **_LOOK,
    ).unsafe_ask()


def _check_off(question: Question, title: str, details: list[str], choices: list[Choice], default: list[Any]) -> Any:
    for choice in choices:
        choice.checked = choice.value in default
    return questionary.checkbox(
        *_of_a_list(title, choices),
        validate=lambda answer: question.problem(answer) or True,
        instruction="\n  ".join([*details, "Arrow keys: move, typing: filter, Space: toggle"]),
        use_search_filter=True,
        use_jk_keys=False,
        **_LOOK,
    ).unsafe_ask()


def _of_a_list(title: str, choices: list[Choice]) -> tuple[str, list[Choice]]:
    """Return the title and choices of a list, wrapped; the answer comes below the title."""
    for choice in choices:
        choice.title = _wrapped(str(choice.title))
    return f"{_wrapped(title)}\n ", choices


def _as_field(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).strip() if isinstance(value, dict | list) else str(value)


def _wrapped(text: str) -> str:
    """Wrap a text at the end of words, and not where the terminal ends."""
    width = max(shutil.get_terminal_size().columns - 6, 20)
    return textwrap.fill(text, width, subsequent_indent=" " * 5, break_long_words=False)
