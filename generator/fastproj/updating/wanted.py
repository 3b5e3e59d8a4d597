"""What an update is asked to do, and what it did."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .merge import Merged
from .repository import Repository

Choose = Callable[[dict[str, Any], dict[str, Any]], list[str]]
"""Returns the wanted components, given the recorded answers and the template's questions."""


@dataclass(frozen=True)
class Wanted:
    """The options of an update."""

    to: str | None = None
    template: str | None = None
    answers: dict[str, Any] | None = None
    data: list[str] | None = None
    ask: bool = False
    dry_run: bool = False
    downgrade: bool = False
    components: Choose | None = None
    """Stay at the project's own version, with these components."""


@dataclass(frozen=True)
class Updated:
    """The result of an update."""

    root: Path
    before: str
    after: str
    repository: Repository
    news: str = ""
    answers: dict[str, tuple[Any, Any]] | None = None
    """Answers that differ: old and new; None for none."""
    merged: Merged | None = None
    """None if there was nothing to do."""
    diff: str = ""
    """The changes as a patch, if only components would change in a dry run."""
    used: dict[str, list[str]] = field(default_factory=dict)
    """Components that the options in the config files of an older release need, and these options."""
