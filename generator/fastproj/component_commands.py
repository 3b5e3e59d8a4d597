"""The commands about components: `components`, `add` and `remove`."""

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .options import Data, DryRun, Json, Where
from .terminal import report

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Components; `fastproj components` lists them.")]
Project = Annotated[Path, typer.Option("--project", help="The project's folder, or a folder inside it.")]
Source = Annotated[
    str | None, typer.Option(help="Answer to the question of update-workflow; see `fastproj new --help`.")
]


def components(where: Where = Path(), json: Json = False) -> None:
    """Show the components that there are, and those that a project has."""
    from . import show_components
    from .updating.components import listed

    found = listed(where)
    text = json_format.dumps([asdict(it) for it in found], indent=2) if json else show_components.listed(found)
    report(text, "nothing was changed")


def add(
    names: Names, project: Project = Path(), update_source: Source = None, data: Data = None, dry_run: DryRun = False
) -> None:
    """Add components to a project, at its own version of the template, and stage the result."""
    from . import show_components
    from .updating.components import add as run_add

    changed = run_add(project, names, dry_run, data or [], {"update_source": update_source})
    report(show_components.added(changed, dry_run), "nothing was changed" if dry_run else "the change is staged")
    _exit(changed.updated.conflicts)


def remove(names: Names, project: Project = Path(), dry_run: DryRun = False) -> None:
    """Remove components from a project, and stage the result. Files that you edited stay."""
    from . import show_components
    from .updating.components import remove as run_remove

    changed = run_remove(project, names, dry_run)
    report(show_components.removed(changed, dry_run), "nothing was changed" if dry_run else "the change is staged")
    _exit(changed.updated.conflicts)


def _exit(conflicts: bool) -> None:
    if conflicts:
        raise typer.Exit(1)
