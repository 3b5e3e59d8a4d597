"""A question of a template's `copier.yml`, evaluated as copier does, but before copier runs."""

from dataclasses import dataclass
from typing import Any

import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from questionary import Choice

MISSING = object()
"""The default of a question without one."""
_JINJA = SandboxedEnvironment(
    extensions=["jinja2_ansible_filters.AnsibleCoreFiltersExtension"], undefined=StrictUndefined
)
for _name in ("expandvars", "expanduser", "fileglob", "realpath"):  # these read the user's variables and folders
    _JINJA.filters.pop(_name, None)


@dataclass(frozen=True)
class Question:
    """A question, and the answers to those before it."""

    name: str
    entry: dict[str, Any]
    known: dict[str, Any]

    @property
    def kind(self) -> str:
        """The type of its answers."""
        return str(self.entry.get("type") or type(self.entry.get("default", "")).__name__)

    @property
    def help(self) -> list[str]:
        """The lines of the question: a title, and details."""
        lines = str(self._value(self.entry.get("help") or self.name)).strip().splitlines()
        return [line.strip() for line in lines]

    @property
    def placeholder(self) -> str:
        """What an empty field shows."""
        return str(self._value(self.entry.get("placeholder", "")))

    def is_true(self, condition: str) -> bool:
        """Return whether `when` or `ask` holds."""
        value = self._value(self.entry.get(condition, True))
        return bool(yaml.safe_load(value) if isinstance(value, str) else value)

    def default(self, replaced: dict[str, Any]) -> Any:
        """Return the default, or what replaces it."""
        return self.parsed(self._value(replaced.get(self.name, self.entry.get("default", MISSING))))

    def parsed(self, value: Any) -> Any:
        """Return an answer in the question's type."""
        if not isinstance(value, str) or (self.kind in ("str", "path") and not self.entry.get("multiselect")):
            return value
        if self.kind in ("int", "float"):
            return int(value) if self.kind == "int" else float(value)
        return yaml.safe_load(value)

    def problem(self, answer: Any) -> str:
        """Return what is wrong with an answer; empty if nothing is."""
        if any("\ud800" <= letter <= "\udfff" for letter in str(answer)):
            return "this is not valid text in the terminal's encoding: use UTF-8"
        try:
            parsed = self.parsed(answer)
        except (ValueError, yaml.YAMLError):
            return {"int": "enter a whole number", "float": "enter a number"}.get(self.kind, "this is not valid YAML")
        found = self._value(self.entry.get("validator", ""), **{self.name: parsed})
        return " ".join(str(found).split())

    def choices(self) -> list[Choice]:
        """Return the allowed answers; none if any is allowed."""
        found = self._value(self.entry.get("choices", []))
        found = yaml.safe_load(found) if isinstance(found, str) else found
        pairs = found.items() if isinstance(found, dict) else [it if isinstance(it, list) else (it, it) for it in found]
        return [self._choice(title, it if isinstance(it, dict) else {"value": it}) for title, it in pairs]

    def _choice(self, title: Any, entry: dict[str, Any]) -> Choice:
        disabled = str(self._value(entry.get("validator", ""))).strip()
        return Choice(str(self._value(title)), self._value(entry["value"]), disabled=disabled or None)

    def _value(self, value: Any, **more: Any) -> Any:
        """Return a value in which an expression is evaluated."""
        return _JINJA.from_string(value).render(self.known | more) if isinstance(value, str) else value
