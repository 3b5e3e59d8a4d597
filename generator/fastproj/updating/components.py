"""`fastproj add`, `remove` and `components`, at a project's own version of the template."""

import ast
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import FastprojError, UsageError
from ..scratch import scratch_folder
from ..template import embedded
from ..template.answers import Answers, component_table, did_you_mean, with_required
from ..template.clone import open_template, questions_in
from .project import Project, read_project, recorded_components, root_of
from .update import Request, UpdateResult, update

_FOLDERS = {"launch": "launch/", "workflow": ".github/workflows/", "file": ""}
"""The folders of components that are files, by the key with the file's name."""


@dataclass(frozen=True)
class Component:
    """A component that the template has."""

    name: str
    entry: dict[str, Any]
    """In copier.yml, which describes the keys."""
    framework: str | None
    """Of the project, if there is one."""
    installed: bool

    @property
    def section(self) -> str:
        """The section of its options in the config."""
        return self.name.replace("-", "_")

    @property
    def file(self) -> str | None:
        """The file outside the package that it is, such as `launch/slurm.sbatch`."""
        for key, folder in _FOLDERS.items():
            if key in self.entry:
                return f"{folder}{self.entry[key]}"
        return None

    @property
    def has_switch(self) -> bool:
        """Whether it is enabled by its section in the config."""
        return self.file is None and "kind" not in self.entry

    @property
    def use(self) -> str:
        """How it is used; empty if it is a library."""
        if self.has_switch:
            switch = f"--{self.section}.enabled true"
            return f"{switch}, or in configs/default.yaml: {self.section}: {{enabled: true}}"
        if self.entry.get("kind") == "library":
            return ""
        return f"{self.file or f'components/{self.section}.py'}; its first lines say how"

    @property
    def refusal(self) -> str | None:
        """Why the project's framework does not have it."""
        frameworks = self.entry.get("frameworks", [self.framework])
        if self.framework is None or self.framework in frameworks:
            return None
        if instead := self.entry.get("instead", {}).get(self.framework):
            return f"{self.framework.capitalize()} has this: {instead}"
        return f"does not work with {self.framework}, but with {', '.join(frameworks)}"


Table = dict[str, Component]
Change = tuple[UpdateResult, list[Component]]
"""An update, and the components that were added or removed."""


def read_components(where: Path, names: list[str]) -> Table:
    """Return the components at the version of a project, or outside of one, of the newest.

    Raises:
        UsageError: one of the names is not among them.
    """
    if root_of(where) is None:
        return _checked(_table(questions_in(embedded.QUESTIONS), {}), names)
    return _table_of(read_project(where), names)


def options_of(where: Path, component: Component) -> dict[str, dict[str, str]]:
    """Return the options of a component, from its dataclass in the template."""
    with scratch_folder(Path(tempfile.gettempdir()), "components") as work:
        if root_of(where) is None:
            template = open_template(None, work)
            folder = template.at(template.newest)
        else:
            project = read_project(where)
            folder = project.template(work).at(project.version)
        file = folder / f"template/components/{component.name}/component.py"
        source = file.read_text(encoding="utf-8") if file.is_file() else ""
    options = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            for field, text in pairwise(node.body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    options[f"{component.section}.{ast.unparse(field.target)}"] = _option(
                        field, text
                    )
    return options


def _option(field: ast.AnnAssign, text: ast.Expr) -> dict[str, str]:
    """Return type, range, default and docstring of an option."""
    default: ast.AST | None = field.value
    interval = ""
    if isinstance(default, ast.Call):  # within("(0, 1)", 0.999)
        interval = ast.literal_eval(default.args[0]) if default.args[1:] else ""
        default = default.args[-1]
    return {
        "type": ast.unparse(field.annotation),
        "range": interval,
        "default": ast.unparse(default) if default else "",
        "about": " ".join(str(ast.literal_eval(text.value)).split()),
    }


def add(
    where: Path,
    names: list[str],
    dry_run: bool,
    data: list[str],
) -> Change:
    """Add components with those that they require; `data` are new answers."""
    project = read_project(where)
    table = _table_of(project, names)
    entries = {name: component.entry for name, component in table.items()}
    chosen = set(with_required(names, entries))
    for name in chosen:
        if refusal := table[name].refusal:
            raise FastprojError(f"{name}: {refusal}")
    chosen |= {name for name, component in table.items() if component.installed}
    return _change(project, table, chosen, "Add", dry_run, data)


def remove(
    where: Path,
    names: list[str],
    dry_run: bool,
) -> Change:
    """Remove components from a project. Files that were edited stay."""
    project = read_project(where)
    table = _table_of(project, names)
    installed = {name for name, component in table.items() if component.installed}
    for name in installed - set(names):
        if required := set(names) & set(table[name].entry.get("requires", [])):
            raise UsageError(f"{name} requires {min(required)}: remove {name} as well")
    return _change(project, table, installed - set(names), "Remove", dry_run, [])


def _change(
    project: Project,
    table: Table,
    chosen: set[str],
    verb: str,
    dry_run: bool,
    data: list[str],
) -> Change:
    """Update a project to the chosen components; return also those that changed."""
    changed = [
        component
        for component in table.values()
        if component.installed != (component.name in chosen)
    ]
    request = Request(
        answers={"components": [name for name in table if name in chosen]},
        data=data,
        to=project.version,
        dry_run=dry_run,
        message=f"{verb} {', '.join(component.name for component in changed)}",
        keeps_staged=True,
    )
    return update(project.root, request), changed


def _table_of(
    project: Project,
    names: list[str],
) -> Table:
    """Return the components of a project's template, which must have these."""
    with scratch_folder(Path(tempfile.gettempdir()), "components") as work:
        questions = questions_in(project.template(work).at(project.version))
    return _checked(_table(questions, project.answers), names)


def _checked(table: Table, names: list[str]) -> Table:
    """Return a table that has these components."""
    for name in names:
        if name not in table:
            hint = f"{did_you_mean(name, table)}choose from {', '.join(table)}"
            raise UsageError(f"there is no component {name}: {hint}")
    return table


def _table(
    questions: Answers,
    answers: Answers,
) -> Table:
    """Return the template's components by name, in their order."""
    entries = component_table(questions)
    if not entries:
        raise FastprojError(
            "this version of the template has no components: fastproj status shows the newest one"
        )
    framework = answers.get("framework")
    installed = recorded_components(answers)
    return {
        name: Component(name, entry, framework, name in installed)
        for name, entry in entries.items()
    }
