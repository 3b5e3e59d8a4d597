"""Ask a template's questions before copier runs, and confirm the answers."""

import shutil
import textwrap
from typing import Any

import questionary
import yaml
from questionary import Choice

from ..errors import FastprojError
from ..template.answers import Answers, as_text, option, shown_name
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


def ask(questions: Answers, given: Answers, defaults: Answers, confirmation: str) -> Answers:
    """Ask all questions that are not answered yet, and return all answers if the user confirms.

    `defaults` replace the template's. To decline is a KeyboardInterrupt.
    """
    known: Answers = {}
    answers: Answers = {}
    try:
        for name, entry in questions.items():
            question = Question(name, entry, dict(known))
            if name in given:
                answers[name] = question.parsed(given[name])
            elif question.is_asked():
                answers[name] = _ask(question, defaults)
            known[name] = answers[name] if name in answers else question.default(defaults)
        if answers.keys() > given.keys() and not _confirm(confirmation, answers):
            raise KeyboardInterrupt
    except EOFError as error:
        raise FastprojError(
            "the input ended before all questions were answered: answer them, or pass --yes"
        ) from error
    except Exception as error:
        reason = f"the question {shown_name(name)} is broken ({' '.join(str(error).split())})"
        raise FastprojError(f"{reason}: answer it with {option(name)}, or use --yes") from error
    return answers


def _confirm(confirmation: str, answers: Answers) -> bool:
    """Show the answers, and ask whether to continue with them."""
    width = max(map(len, answers))
    print()
    for name, answer in answers.items():
        print(f"  {shown_name(name):{width}}  {as_text(answer)}")
    print()
    return bool(questionary.confirm(confirmation, **_LOOK).unsafe_ask())


def _ask(question: Question, defaults: Answers) -> Any:
    default = question.default(defaults)
    while True:
        answer = _prompt(question, default)
        problem = question.problem(answer)
        if not problem:
            return question.parsed(answer)
        questionary.print(f"  {problem}", style="fg:ansired")


def _prompt(question: Question, default: Any) -> Any:
    title, *details = question.help
    title = f"{_wrapped(title)}\n "
    if question.choices():
        return _choose(question, default, title, details)
    message = "\n  ".join([title.strip(), *details])
    if question.kind == "bool":
        return questionary.confirm(message, default is True, **_LOOK).unsafe_ask()
    # An empty field shows the default, which Enter accepts.
    shown = "" if default is None else str(default)
    if isinstance(default, dict | list):
        shown = yaml.safe_dump(default, default_flow_style=True).strip()
    gray = [("fg:ansibrightblack", shown)]
    text = questionary.text(f"{message}\n ", placeholder=gray, **_LOOK).unsafe_ask()
    return text or shown


def _choose(question: Question, default: Any, title: str, details: list[str]) -> Any:
    choices = []
    for name, value in question.choices().items():
        checked = question.several and value in (default or [])
        choices.append(Choice(_wrapped(name), value, checked=checked))
    keys = "Space: toggle, Enter: done" if question.several else "Enter: select"
    instruction = "\n  ".join([*details, f"Arrows: move, typing: filter, {keys}"])
    if question.several:
        prompt = questionary.checkbox(title, choices, instruction=instruction, **_LIST)
    else:
        initial = default if default in question.choices().values() else None
        prompt = questionary.select(title, choices, initial, instruction=instruction, **_LIST)
    return prompt.unsafe_ask()


def _wrapped(text: str) -> str:
    """Wrap a text at the end of words, and not where the terminal ends."""
    width = max(shutil.get_terminal_size().columns - 6, 20)
    return textwrap.fill(text, width, subsequent_indent=" " * 5, break_long_words=False)
