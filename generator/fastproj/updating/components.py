"""`fastproj add`, `remove` and `components`: the components of a project, at its own version of the template."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.answers import did_you_mean
from ..shared.errors import FastprojError, UsageError
from ..shared.scratch import scratch_folder, temporary_folder
from ..shared.source import questions as embedded_questions
from . import linked
from .update import sources, update
from .wanted import Updated, Wanted

_TABLE = "component_table"


@dataclass(frozen=True)
class Component:
    """A component that the template has."""

    name: str
    about: str
    installed: bool
    file: str | None
    """The file outside the package that it is, such as `launch/slurm.sbatch`; None for a Python module."""
    kind: str | None = None
    """Of a module that training does not build: `command` or `library`."""
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    refused: str | None = None
    """Why the project's framework does not have it; None if it does."""

    @property
    def section(self) -> str:
        """The section of its options in the config."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Changed:
    """What `add` or `remove` did."""

    updated: Updated
    names: list[str]
    """The components that were added or removed."""
    required: list[str]
    """Those of them that the named ones require."""
    components: dict[str, Component]

    @property
    def conflicts(self) -> bool:
        """Whether git could not merge a file."""
        return bool(self.updated.merged and self.updated.merged.conflicts)


def listed(where: Path) -> list[Component]:
    """Return the components of the template at the version of a project; outside of one, those of the newest version.

    Raises:
        FastprojError: the project's version has no components.
    """
    if linked.root_of(where) is None:
        return [*_table(embedded_questions() or {}, {}).values()]
    project = linked.read(where)
    with scratch_folder(temporary_folder(), "components") as work:
        before, _ = sources(project, None, work)
        return [*_table(before.questions(project.version) or {}, project.answers).values()]


def add(where: Path, names: Sequence[str], dry_run: bool, data: list[str], answers: dict[str, Any]) -> Changed:
    """Add components to a project, with those that they require, and stage the result.

    `data` and `answers` answer the questions that they bring.

    Raises:
        FastprojError: one is unknown, or conflicts with another; the project cannot be updated.
    """
    added: list[str] = []
    known: dict[str, Component] = {}

    def choose(recorded: dict[str, Any], questions: dict[str, Any]) -> list[str]:
        known.update(_table(questions, recorded))
        present = _present(recorded)
        added.extend(name for name in _with_required(known, names) if name not in present)
        _check(known, [*present, *added], added)
        return [*present, *added]

    done = update(where, Wanted(answers=answers, data=data, dry_run=dry_run, components=choose))
    return Changed(done, added, [it for it in added if it not in names], known)


def remove(where: Path, names: Sequence[str], dry_run: bool) -> Changed:
    """Remove components from a project, and stage the result. Files that were edited stay.

    Raises:
        FastprojError: one is unknown, or another one requires it; the project cannot be updated.
    """
    removed: list[str] = []
    known: dict[str, Component] = {}

    def choose(recorded: dict[str, Any], questions: dict[str, Any]) -> list[str]:
        known.update(_table(questions, recorded))
        _check_names(known, names)
        present = _present(recorded)
        left = [name for name in present if name not in names]
        for name in left:
            if needed := [it for it in known[name].requires if it in names]:
                raise FastprojError(f"{name} requires {needed[0]}: remove {name} too, or keep both")
        removed.extend(name for name in present if name in names)
        return left

    done = update(where, Wanted(dry_run=dry_run, components=choose))
    return Changed(done, removed, [], known)


def _table(questions: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Component]:
    """Return the template's components by name, in their order."""
    table = questions.get(_TABLE, {}).get("default")
    if not isinstance(table, dict):
        raise FastprojError("this version of the template has no components: update the project with fastproj update")
    present = _present(recorded)
    framework = recorded.get("framework")
    return {name: _component(name, entry, name in present, framework) for name, entry in table.items()}


def _component(name: str, entry: dict[str, Any], installed: bool, framework: object) -> Component:
    places = {"launch": "launch", "workflow": ".github/workflows", "config": "configs"}
    file = next((f"{folder}/{entry[kind]}" for kind, folder in places.items() if kind in entry), entry.get("file"))
    others = {key: tuple(entry.get(key, ())) for key in ("requires", "conflicts", "packages")}
    refused = None
    if framework and framework not in entry.get("frameworks", [framework]):
        instead = entry.get("instead", {}).get(framework)
        works = f"does not work with {framework}, but with {', '.join(entry['frameworks'])}"
        refused = f"{str(framework).capitalize()} has this: {instead}" if instead else works
    return Component(name, entry["about"], installed, file, entry.get("kind"), **others, refused=refused)


def _present(recorded: dict[str, Any]) -> list[str]:
    return [str(name) for name in recorded.get("components") or []]


def _check_names(known: dict[str, Component], names: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no component {name!r}: {did_you_mean(name, known)}choose from {', '.join(known)}"
            )


def _with_required(known: dict[str, Component], names: Sequence[str]) -> list[str]:
    """Return the components with all that they require, which come first."""
    _check_names(known, names)
    found: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in found or name in path:
            return
        for other in known[name].requires:
            visit(other, (*path, name))
        found.append(name)

    for name in names:
        visit(name, ())
    return found


def _check(known: dict[str, Component], all_names: list[str], added: list[str]) -> None:
    """Check that the added components work with the others and with the framework."""
    for name in added:
        entry = known[name]
        if entry.refused:
            raise FastprojError(f"{name}: {entry.refused}")
        for other in all_names:
            if other in entry.conflicts or (other in known and name in known[other].conflicts):
                raise FastprojError(f"{name} and {other} exclude each other: remove {other} first")
