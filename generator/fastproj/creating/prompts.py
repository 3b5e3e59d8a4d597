"""Ask a template's questions before copier runs, and confirm the answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import FastprojError, UsageError, printable
from ..template.answers import Answers, as_text, entries, option, shown_name, with_required
from .project import destination
from .question import Question
from .terminal import BackError, Choice, Menu, ask_text, show_answer, show_problem


@dataclass
class Form:
    """The questions, and the answers so far."""

    questions: Answers
    given: Answers
    """The answers on the command line."""
    defaults: Answers
    """Replace the template's."""
    typed: Answers = field(default_factory=dict)
    """The user's answers; one that is asked again has the one before as its default."""
    done: list[str] = field(default_factory=list)
    """The questions that the user has answered, in this order."""

    def next_question(self) -> Question | None:
        """Return the first question that has no valid answer; None at the end."""
        known: Answers = {}
        for name, entry in self.questions.items():
            question = Question(name, entry, dict(known))
            with _named(name):
                if name in self.given:
                    known[name] = question.parsed(self.given[name])
                elif not question.is_asked():
                    known[name] = question.default(self.defaults)
                    if name in self.done:  # it no longer applies
                        self.done.remove(name)
                elif name in self.done and not question.problem(self.typed[name]):
                    known[name] = self.typed[name]
                else:
                    return question
        return None

    def default(self, question: Question) -> Any:
        """Return the answer that a question shows at first."""
        if question.name in self.typed:
            return self.typed[question.name]
        return question.default(self.defaults)

    def answer(self, question: Question, answer: Any) -> None:
        """Record an answer."""
        self.typed[question.name] = answer
        if question.name not in self.done:
            self.done.append(question.name)

    def answers(self) -> Answers:
        """Return all answers that were given or typed."""
        answers = self.given | {name: self.typed[name] for name in self.done}
        return {name: answers[name] for name in self.questions if name in answers}


def ask_destination(output: Path) -> Path:
    """Ask for a project's name, and return its folder."""
    title = "What is the project called?"
    while True:
        name = ask_text(title, ["Lowercase letters, digits, - and _, also for the package."], "")
        try:
            target = destination(name, output)
        except UsageError as error:
            show_problem(str(error))
        else:
            show_answer(title, name)
            return target


def ask(form: Form, confirmation: str, can_ask: bool) -> Answers:
    """Ask all questions that are not answered yet, and return all answers if the user confirms.

    To decline is a KeyboardInterrupt.

    Raises:
        UsageError: answers are missing, and the user cannot be asked.
    """
    if not can_ask:
        return _complete(form)
    try:
        while True:
            try:
                question = form.next_question()
                if question:
                    _ask(form, question)
                elif not form.done or _confirm(form, confirmation):
                    return form.answers()
            except BackError:
                del form.done[-1:]
    except EOFError as error:
        raise FastprojError(
            "the input ended before all questions were answered: answer them, or pass --yes"
        ) from error


def _complete(form: Form) -> Answers:
    """Return the answers if none is missing."""
    while question := form.next_question():
        form.answer(question, form.default(question))
    if form.done:
        missing = ", ".join(map(option, form.done))
        raise UsageError(
            f"this is not an interactive terminal: give {missing}, "
            "or pass --yes to accept the detected and default answers"
        )
    return form.answers()


def _confirm(form: Form, confirmation: str) -> bool:
    """Show the answers, and return whether to continue with them; else let the user change one."""
    width = max(len(shown_name(name)) for name in form.done)
    choices = [Choice("yes", True)]
    for name in form.done:
        text = printable(as_text(form.typed[name]))
        choices.append(Choice(f"{shown_name(name):{width}}  {text}", name))
    choices.append(Choice("cancel, and create nothing", None))
    chosen = Menu(choices).run(confirmation, ["Or choose an answer to change it."])
    if chosen is None:
        raise KeyboardInterrupt
    if chosen is not True:
        form.done.remove(chosen)
    return chosen is True


def _ask(form: Form, question: Question) -> None:
    """Ask until the answer is valid."""
    with _named(question.name):
        title, *details = question.help
        while True:
            answer, shown = _prompt(form, question, title, details)
            problem = question.problem(answer)
            if not problem:
                break
            show_problem(problem)
        form.answer(question, question.parsed(answer))
        show_answer(title, shown)


def _prompt(form: Form, question: Question, title: str, details: list[str]) -> tuple[Any, str]:
    """Return an answer, and how it is shown."""
    default = form.default(question)
    if question.choices():
        menu = _menu(form, question, default)
        answer = menu.run(title, details)
        if question.several:
            answer = with_required(answer, entries(form.questions, question.name))
        return answer, as_text(answer)
    shown = "" if default is None else str(default)
    if isinstance(default, dict | list):
        shown = yaml.safe_dump(default, default_flow_style=True).strip()
    text = ask_text(title, details, shown)
    return text, text


def _menu(form: Form, question: Question, default: Any) -> Menu:
    """Return the list of a question. Components that others need are not for a user to choose."""
    described = entries(form.questions, question.name)
    choices = []
    for title, value in question.choices().items():
        entry = described.get(value, {})
        if entry.get("kind") != "library":
            choices.append(Choice(title, value, entry.get("group", "")))
    if not question.several:
        return Menu(choices, selected=[default])
    offered = [choice.value for choice in choices]
    return Menu(choices, several=True, selected=[it for it in default or [] if it in offered])


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the question that cannot be asked, as its entry in copier.yml is wrong."""
    try:
        yield
    except (BackError, EOFError):
        raise
    except Exception as error:
        reason = f"the question {shown_name(name)} is broken ({' '.join(str(error).split())})"
        raise FastprojError(f"{reason}: answer it with {option(name)}, or use --yes") from error
