"""Ask a template's questions before copier runs, and confirm the answers before anything is written."""

import shutil
import textwrap
from typing import Any

import questionary
import yaml
from questionary import Choice

from ..errors import FastprojError
from ..template.answers import as_text, option, shown_name
from .question import Question

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
_LIST: dict[str, Any] = _LOOK | {"use_search_filter": True, "use_jk_keys": False}
Answers = dict[str, Any]


def ask(questions: Answers, given: Answers, defaults: Answers, confirmation: str) -> Answers:
    """Ask all questions that are not answered yet, and return all answers if the user confirms them.

    `defaults` replace the template's. To decline is a KeyboardInterrupt.
    """
    known: Answers = {}
    asked: list[str] = []
    try:
        for name, entry in questions.items():
            question = Question(name, entry, dict(known))
            if name in given:
                known[name] = question.parsed(given[name])
            elif question.is_asked():
                known[name] = _ask(question, defaults)
                asked.append(name)
            else:
                known[name] = question.default(defaults)
        if asked and not _confirm(
            confirmation, {name: known[name] for name in known if name in {*given, *asked}}
        ):
            raise KeyboardInterrupt
    except EOFError as error:
        raise FastprojError(
            "the input ended before all questions were answered: answer them, or pass --yes"
        ) from error
    except Exception as error:
        reason = f"the question {shown_name(name)} is broken ({' '.join(str(error).split())})"
        raise FastprojError(f"{reason}: answer it with {option(name)}, or use --yes") from error
    return given | {name: known[name] for name in asked}


def _confirm(confirmation: str, answers: Answers) -> bool:
    """Show the answers, and ask whether to continue with them."""
    width = max(map(len, answers))
    lines = [f"  {shown_name(name):{width}}  {as_text(answer)}" for name, answer in answers.items()]
    print("", *lines, "", sep="\n")
    return bool(questionary.confirm(confirmation, **_LOOK).unsafe_ask())


def _ask(question: Question, defaults: Answers) -> Any:
    default = question.default(defaults)
    while True:
        answer = _prompt(question, default)
        if not (wrong := question.problem(answer)):
            return question.parsed(answer)
        questionary.print(f"  {wrong}", style="fg:ansired")


def _prompt(question: Question, default: Any) -> Any:
    title, *details = question.help
    title = f"{_wrapped(title)}\n "
    if found := question.choices():
        several = question.entry.get("multiselect")
        checked = (default or []) if several else []
        choices = [
            Choice(_wrapped(name), value, checked=value in checked) for name, value in found.items()
        ]
        keys = f"Arrows: move, typing: filter, {'Space: toggle, Enter: done' if several else 'Enter: select'}"
        look = _LIST | {"instruction": "\n  ".join([*details, keys])}
        if several:
            return questionary.checkbox(title, choices, **look).unsafe_ask()
        start = next((it for it in choices if it.value == default), None)
        return questionary.select(title, choices, start, **look).unsafe_ask()
    message = "\n  ".join([title.strip(), *details])
    if question.kind == "bool":
        return questionary.confirm(message, default is True, **_LOOK).unsafe_ask()
    # An empty field shows the default, which Enter accepts.
    empty = "" if default is None else str(default)
    if isinstance(default, dict | list):
        empty = yaml.safe_dump(default, default_flow_style=True).strip()
    text = questionary.text(
        f"{message}\n ", placeholder=[("fg:ansibrightblack", empty)], **_LOOK
    ).unsafe_ask()
    return str(text or empty)


def _wrapped(text: str) -> str:
    """Wrap a text at the end of words, and not where the terminal ends."""
    width = max(shutil.get_terminal_size().columns - 6, 20)
    return textwrap.fill(text, width, subsequent_indent=" " * 5, break_long_words=False)
