"""A question of a template's `copier.yml`, evaluated as copier does, but before copier runs."""

from dataclasses import dataclass
from typing import Any

import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

_JINJA = SandboxedEnvironment(
    extensions=["jinja2_ansible_filters.AnsibleCoreFiltersExtension"], undefined=StrictUndefined
)
for _name in (
    "expandvars",
    "expanduser",
    "fileglob",
    "realpath",
):  # these read the user's variables and folders
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

    def is_asked(self) -> bool:
        """Return whether a user is asked: unless `ask` is false, or the question does not apply."""
        return self._is_true("when") and self._is_true("ask")

    def default(self, replaced: dict[str, Any]) -> Any:
        """Return the default, or what replaces it."""
        return self.parsed(self._value(replaced.get(self.name, self.entry.get("default"))))

    def parsed(self, value: Any) -> Any:
        """Return an answer in the question's type."""
        if not isinstance(value, str) or (
            self.kind in ("str", "path") and not self.entry.get("multiselect")
        ):
            return value
        if self.kind in ("int", "float"):
            return int(value) if self.kind == "int" else float(value)
        return yaml.safe_load(value)

    def problem(self, answer: Any) -> str:
        """Return what is wrong with an answer; empty if nothing is."""
        try:
            parsed = self.parsed(answer)
        except (ValueError, yaml.YAMLError):
            return {"int": "enter a whole number", "float": "enter a number"}.get(
                self.kind, "this is not valid YAML"
            )
        found = self._value(self.entry.get("validator", ""), **{self.name: parsed})
        return " ".join(str(found).split())

    def choices(self) -> dict[str, Any]:
        """Return the allowed answers by their titles; none if any is allowed."""
        found = self._value(self.entry.get("choices", []))
        found = yaml.safe_load(found) if isinstance(found, str) else found
        pairs = (
            found.items()
            if isinstance(found, dict)
            else [it if isinstance(it, list) else (it, it) for it in found]
        )
        values = {title: it["value"] if isinstance(it, dict) else it for title, it in pairs}
        return {str(self._value(title)): self._value(value) for title, value in values.items()}

    def _is_true(self, condition: str) -> bool:
        value = self._value(self.entry.get(condition, True))
        return bool(yaml.safe_load(value) if isinstance(value, str) else value)

    def _value(self, value: Any, **more: Any) -> Any:
        """Return a value in which an expression is evaluated."""
        return (
            _JINJA.from_string(value).render(self.known | more) if isinstance(value, str) else value
        )
