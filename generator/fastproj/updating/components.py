"""`fastproj add`, `remove` and `components`: the components of a project, at its own version of the template."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import FastprojError, UsageError
from ..scratch import scratch_folder
from ..template import embedded
from ..template.answers import did_you_mean
from ..template.clone import questions_in
from .project import Project, read_project, root_of
from .update import Updated, Wanted, update

_FOLDERS = {"launch": "launch", "workflow": ".github/workflows", "config": "configs"}


@dataclass(frozen=True)
class Component:
    """A component that the template has."""

    name: str
    about: str
    installed: bool
    file: str | None  # the file outside the package that it is, such as `launch/slurm.sbatch`
    kind: str | None  # of a module that training does not build: `command` or `library`
    requires: tuple[str, ...]
    packages: tuple[str, ...]
    refused: str | None  # why the project's framework does not have it

    @property
    def section(self) -> str:
        """The section of its options in the config."""
        return self.name.replace("-", "_")


Table = dict[str, Component]


@dataclass(frozen=True)
class Changed:
    """What `add` or `remove` did."""

    updated: Updated
    components: list[Component]  # that were added or removed


def listed(where: Path) -> Table:
    """Return the components of the template at the version of a project; outside of one, of the newest version."""
    return (
        _table(questions_in(embedded.QUESTIONS), {})
        if root_of(where) is None
        else _table_of(read_project(where), [])
    )


def add(where: Path, names: list[str], dry_run: bool, data: list[str]) -> Changed:
    """Add components with those that they require, and stage the result; `data` are new answers."""
    project = read_project(where)
    table = _table_of(project, names)
    chosen, left = {name for name, it in table.items() if it.installed}, [*names]
    while left:
        name = left.pop()
        if refused := table[name].refused:
            raise FastprojError(f"{name}: {refused}")
        left += [] if name in chosen else table[name].requires
        chosen.add(name)
    return _change(project, table, chosen, "Add", Wanted(data=data, dry_run=dry_run))


def remove(where: Path, names: list[str], dry_run: bool) -> Changed:
    """Remove components from a project, and stage the result. Files that were edited stay."""
    project = read_project(where)
    table = _table_of(project, names)
    chosen = {name for name, it in table.items() if it.installed and name not in names}
    return _change(project, table, chosen, "Remove", Wanted(dry_run=dry_run))


def _change(project: Project, table: Table, chosen: set[str], verb: str, wanted: Wanted) -> Changed:
    """Update a project to the chosen components; copier checks that they work together."""
    changed = [name for name, it in table.items() if it.installed != (name in chosen)]
    answers = {"components": [name for name in table if name in chosen]}
    wanted = replace(
        wanted, to=project.version, answers=answers, message=f"{verb} {', '.join(changed)}"
    )
    return Changed(update(project.root, wanted), [table[name] for name in changed])


def _table_of(project: Project, names: list[str]) -> Table:
    """Return the components of a project's template, which must have these."""
    with scratch_folder(Path(tempfile.gettempdir()), "components") as work:
        table = _table(questions_in(project.template(work).at(project.version)), project.answers)
    for name in names:
        if name not in table:
            raise UsageError(
                f"there is no component {name}: {did_you_mean(name, table)}choose from {', '.join(table)}"
            )
    return table


def _table(asked: dict[str, Any], recorded: dict[str, Any]) -> Table:
    """Return the template's components by name, in their order."""
    table = asked.get("component_table", {}).get("default")
    if not isinstance(table, dict):
        raise FastprojError(
            "this version of the template has no components: update the project with fastproj update"
        )
    return {name: _component(name, entry, recorded) for name, entry in table.items()}


def _component(name: str, entry: dict[str, Any], recorded: dict[str, Any]) -> Component:
    file = next(
        (f"{folder}/{entry[kind]}" for kind, folder in _FOLDERS.items() if kind in entry),
        entry.get("file"),
    )
    requires, packages = tuple(entry.get("requires", ())), tuple(entry.get("packages", ()))
    framework, refused = str(recorded.get("framework", "")), None
    if framework and framework not in entry.get("frameworks", [framework]):
        instead = entry.get("instead", {}).get(framework)
        works = f"does not work with {framework}, but with {', '.join(entry['frameworks'])}"
        refused = f"{framework.capitalize()} has this: {instead}" if instead else works
    installed = name in (recorded.get("components") or [])
    return Component(
        name, entry["about"], installed, file, entry.get("kind"), requires, packages, refused
    )
