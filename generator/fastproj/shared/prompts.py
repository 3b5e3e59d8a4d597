"""Ask copier's questions, and confirm the answers before anything is written."""

from collections.abc import Callable, Collection
from typing import Any

import questionary

from . import widgets
from .answers import as_text, shown_name
from .rendering import Asking

_WANTED = {"int": "enter a whole number", "float": "enter a number"}
_NO = "-"  # no question's name
_CONFIRM = "Enter: yes, or select an answer to change. Ctrl-C: cancel"


class Prompts:
    """Asks copier's questions, and for a confirmation after the last one."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._answered: dict[str, Any] = {}
        """Answers that are not asked for again."""
        self._known: set[str] = set()
        """Questions that the user has answered, here or by an option."""

    def ask(self, structures: list[dict[str, Any]], answers: dict[str, Any]) -> dict[str, Any]:
        """Ask a question of copier in place of questionary's `unsafe_prompt`; the key `asked` has the question."""
        structure = dict(structures[0])
        question = structure.pop("asked")
        name = structure["name"]
        if not question.get_when():
            return answers
        self._known.add(name)
        if name in self._answered and not problem(question, self._answered[name]):
            return {name: self._answered[name]}
        if structure["type"] not in _WIDGETS or structure.get("multiline"):
            return dict(questionary.unsafe_prompt([structure], answers))
        title, *details = (line.strip() for line in structure["message"].strip().splitlines() or [name])
        ask = _WIDGETS[structure["type"]]
        answer = structure["filter"](ask(question, structure, title, details))
        while structure["type"] in ("confirm", "select") and (wrong := problem(question, answer)):
            answer = structure["filter"](ask(question, structure, title, [*details, wrong]))
        widgets.print_answer(title, "****" if question.secret else _shown(answer))
        return {name: answer}

    def confirm(self, worker: Any, ask_again: Callable[[], None]) -> None:
        """Show the answers of copier's worker until the user confirms them; `ask_again` asks for one that changes."""
        self._known.update(worker.data)
        while name := self._to_change(found := self._changeable(worker), worker.template.secret_questions):
            previous = {name: found.pop(name)}  # the default now
            self._answered = {it: answer for it, answer in found.items() if it in self._known}
            # Answers to options are like others now, as they may be changed, or no longer apply.
            worker.data = {it: worker.data[it] for it in worker.data if it in self._asking.fixed} | previous
            worker.ask = [name, *self._answered]
            ask_again()

    def _changeable(self, worker: Any) -> dict[str, Any]:
        given, hidden = worker.answers.user, worker.answers.hidden.union(self._asking.fixed)
        return {name: given[name] for name in worker.template.questions_data if name in given and name not in hidden}

    def _to_change(self, answers: dict[str, Any], secret: Collection[str]) -> str:
        """Show the answers, and return the name of the one to change; empty if they are confirmed."""
        width = max(map(len, answers), default=0)
        shown = {name: "****" if name in secret else _shown(answer) for name, answer in answers.items()}
        lines = [questionary.Choice(f"{shown_name(name):{width}}  {answer}", name) for name, answer in shown.items()]
        choices = [questionary.Choice("yes", ""), questionary.Choice("no", _NO), *lines]
        chosen = str(widgets.select(self._asking.confirmation, [], choices, keys=_CONFIRM))
        if chosen == _NO:
            raise KeyboardInterrupt
        widgets.print_answer(self._asking.confirmation, f"change {shown_name(chosen)}" if chosen else "yes")
        return chosen


def problem(question: Any, answer: Any) -> str:
    """Return what is wrong with an answer to a question of copier; empty if nothing is."""
    if any("\ud800" <= letter <= "\udfff" for letter in str(answer)):
        return "this is not valid text in the terminal's encoding: use UTF-8"
    try:
        parsed = question.parse_answer(answer)
    except Exception as error:
        return _WANTED.get(question.get_type_name()) or " ".join(str(error).split())
    try:
        question.validate_answer(parsed)
    except ValueError as error:
        return " ".join(str(error).removeprefix(f"Validation error for question '{question.var_name}': ").split())
    return ""


def _shown(answer: Any) -> str:
    return ("yes" if answer else "no") if isinstance(answer, bool) else as_text(answer)


def _ask_text(question: Any, structure: dict[str, Any], title: str, details: list[str]) -> str:
    default = str(structure.get("default", ""))
    hint = "" if question.secret else default or structure.get("placeholder", "")
    return widgets.ask_text(title, details, default, hint, lambda text: problem(question, text), question.secret)


def _ask_yes_or_no(question: Any, structure: dict[str, Any], title: str, details: list[str]) -> bool:
    return widgets.ask_yes_or_no(title, details, bool(structure.get("default")))


def _select(question: Any, structure: dict[str, Any], title: str, details: list[str]) -> Any:
    return widgets.select(title, details, structure["choices"], structure.get("default"))


def _check_off(question: Any, structure: dict[str, Any], title: str, details: list[str]) -> list[Any]:
    return widgets.check_off(title, details, structure["choices"], lambda answer: problem(question, answer))


# By the type of prompt in copier's structure; any other is questionary's own.
_WIDGETS: dict[str, Callable[[Any, dict[str, Any], str, list[str]], Any]] = {
    "input": _ask_text,
    "password": _ask_text,
    "confirm": _ask_yes_or_no,
    "select": _select,
    "checkbox": _check_off,
}
