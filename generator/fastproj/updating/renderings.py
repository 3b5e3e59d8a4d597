"""Renderings of a project: what the template's old and new version, with its answers, look like."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.answers import ANSWERS_FILE
from ..shared.errors import FastprojError
from ..shared.rendering import Rendered
from .linked import Linked, read_answers, without_copiers
from .releases import Releases


@dataclass(frozen=True)
class Rendering:
    """A project, rendered by copier into a folder that has the paths of its repository."""

    folder: Path
    prefix: str
    answers: dict[str, Any]
    rendered: Rendered

    @property
    def renamed(self) -> dict[str, str]:
        """The renames that the template lists, as paths of the repository."""
        return {f"{self.prefix}{was}": f"{self.prefix}{now}" for was, now in self.rendered.renamed.items()}

    def is_own(self, path: str) -> bool:
        """Return whether a path belongs to the user (`_skip_if_exists`)."""
        return path.removeprefix(self.prefix) in self.rendered.own


@contextmanager
def rendering(
    project: Linked, template: Releases, version: str, folder: Path, answers: dict[str, Any], **options: Any
) -> Iterator[Callable[[], Rendering]]:
    """Start a rendering, and yield a function that waits for it."""
    prefix = project.repository.prefix
    stage = folder / (prefix or ".")
    stage.parent.mkdir(parents=True, exist_ok=True)
    with template.rendering(version, stage, answers, **options) as finish:

        def finish_checked() -> Rendering:
            rendered = finish()
            return Rendering(folder, prefix, without_copiers(read_answers(stage)), rendered)

        yield finish_checked


def render_old(project: Linked, before: Releases, work: Path) -> Rendering:
    """Render the recorded version and answers of a project.

    Raises:
        FastprojError: it cannot be rendered, as the answers are those of another template.
    """
    with rendering(project, before, project.version, work / "old", project.answers) as finish:
        return checked_old(project, before, finish)


def checked_old(project: Linked, before: Releases, finish: Callable[[], Rendering]) -> Rendering:
    """Wait for the rendering of the recorded version and answers.

    Raises:
        FastprojError: it cannot be rendered, as the answers are those of another template.
    """
    try:
        old = finish()
    except FastprojError as error:
        raise FastprojError(f"{ANSWERS_FILE} does not fit its template at {project.version}: {error}") from error
    check_answers(project, before, old.answers)
    return old


def check_answers(project: Linked, before: Releases, asked: dict[str, Any]) -> None:
    """Check that the recorded answers are to questions of the template.

    Raises:
        FastprojError: one is not.
    """
    unknown = sorted(project.answers.keys() - asked)
    if unknown:
        raise FastprojError(
            f"{ANSWERS_FILE} answers {unknown[0]!r}, which the template {before.recorded} at {project.version} does "
            "not ask: it is another template, or the file was edited; name the right one with --template, or fix the "
            "file"
        )
