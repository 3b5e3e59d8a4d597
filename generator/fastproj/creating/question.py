"""A question of a template's `copier.yml`, evaluated as copier does, but before copier runs."""

from dataclasses import dataclass
from typing import Any

import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from ..template.answers import Answers

_JINJA = SandboxedEnvironment(
    extensions=["jinja2_ansible_filters.AnsibleCoreFiltersExtension"], undefined=StrictUndefined
)
# These read the user's variables and folders, and a template is not trusted.
for _name in ("expandvars", "expanduser", "fileglob", "realpath"):
    _JINJA.filters.pop(_name, None)

_NUMBERS: dict[str, tuple[Any, str]] = {
    "int": (int, "enter a whole number"),
    "float": (int | float, "enter a number"),
}


@dataclass(frozen=True)
class Question:
    """A question, and the answers to those before it."""

    name: str
    entry: Answers
    known: Answers

    @property
    def kind(self) -> str:
        """The type of its answers."""
        return str(self.entry.get("type") or type(self.entry.get("default", "")).__name__)

    @property
    def several(self) -> bool:
        """Whether an answer is a list of choices."""
        return bool(self.entry.get("multiselect"))

    @property
    def help(self) -> list[str]:
        """The lines of the question: a title, and details."""
        text = str(self._value(self.entry.get("help") or self.name))
        return [line.strip() for line in text.strip().splitlines()]

    def is_asked(self) -> bool:
        """Return whether a user is asked: unless `ask` is false, or the question does not apply."""
        conditions = [self._value(self.entry.get(key, True)) for key in ("when", "ask")]
        return all(yaml.safe_load(str(condition)) for condition in conditions)

    def default(self, replaced: Answers) -> Any:
        """Return the default, or what replaces it."""
        return self.parsed(self._value(replaced.get(self.name, self.entry.get("default"))))

    def parsed(self, value: Any) -> Any:
        """Return an answer in the question's type."""
        is_text = self.kind in ("str", "path") and not self.several
        return yaml.safe_load(value) if isinstance(value, str) and not is_text else value

    def problem(self, answer: Any) -> str:
        """Return what is wrong with an answer; empty if nothing is."""
        try:
            parsed = self.parsed(answer)
        except yaml.YAMLError:
            return "this is not valid YAML"
        allowed, message = _NUMBERS.get(self.kind, (object, ""))
        if not isinstance(parsed, allowed):
            return message
        problem = self._value(self.entry.get("validator", ""), {self.name: parsed})
        return " ".join(problem.split())

    def choices(self) -> Answers:
        """Return the allowed answers by their titles; none if any is allowed."""
        choices = self._value(self.entry.get("choices", []))
        if self.kind == "bool" and not choices:
            return {"yes": True, "no": False}
        if isinstance(choices, str):
            choices = yaml.safe_load(choices)
        if isinstance(choices, dict):
            choices = list(choices.items())
        titles = {}
        for choice in choices:
            title, value = choice if isinstance(choice, list | tuple) else (choice, choice)
            titles[str(self._value(title))] = self._value(value)
        return titles

    def _value(self, value: Any, answers: Answers | None = None) -> Any:
        """Return a value in which an expression is evaluated."""
        if not isinstance(value, str):
            return value
        return _JINJA.from_string(value).render(self.known | (answers or {}))
