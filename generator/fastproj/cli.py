"""The commands.

Modules that are slow to import are imported inside the commands, so that `--help` starts quickly.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import run_commands
from .errors import CONFLICTS, OUTDATED, UsageError
from .options import (
    Author,
    Components,
    Data,
    DryRun,
    Framework,
    Gpus,
    Json,
    Licence,
    Model,
    Names,
    Nodes,
    PlainCommand,
    ProjectFolder,
    TensorCores,
    Where,
    answers_in,
)
from .template.answers import SPELLINGS

if TYPE_CHECKING:  # slow to import
    from .updating.update import UpdateResult

_EXITS = (
    "Exit status: 0 success, or nothing to do; 1 error; 2 usage error; 3 outdated (status); "
    "4 conflicts to resolve; 128 + N after signal N."
)

app = typer.Typer(
    name="fastproj",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=_EXITS,
    context_settings={"token_normalize_func": lambda token: SPELLINGS.get(token, token)},
)


def _version(show: bool) -> None:
    if show:
        from importlib.metadata import metadata

        from .template.embedded import template_version

        urls = metadata("fastproj-cli").get_all("Project-URL") or [""]
        address = urls[0].partition(", ")[2]
        print(f"fastproj {template_version()}", *([f"from {address}"] if address else []))
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")


@app.callback()
def fastproj(version: Annotated[bool, _VERSION] = False) -> None:
    """Render a fast, correct, readable PyTorch training repository that is yours."""
    from . import git

    git.forget_callers_repository()


@app.command(cls=PlainCommand)
def detect(json: Json = False) -> None:
    """Show this machine's hardware, to which `new` fits a project."""
    from . import show
    from .creating.hardware import detect as detect_hardware

    machine = detect_hardware()
    facts = asdict(machine) | {"answers": machine.answers()}
    show.result(facts, lambda _: show.machine(machine), json)


@app.command(cls=PlainCommand)
def new(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Name of the project and of its folder."),
    ] = None,
    gpus: Gpus = None,
    nodes: Nodes = None,
    tensor_cores: TensorCores = None,
    framework: Framework = None,
    model: Model = None,
    author: Author = None,
    licence: Licence = None,
    components: Components = None,
    data: Data = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Accept the detected and default answers.")
    ] = False,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder to create it in; the current one by default."),
    ] = Path(),
    template: Annotated[
        str | None, typer.Option(help="Another template: a git repository or bundle.")
    ] = None,
    no_git: Annotated[
        bool, typer.Option("--no-git", help="Do not create a git repository.")
    ] = False,
    json: Json = False,
) -> None:
    """Create a project.

    Prompts for each answer that is not given; the defaults fit this machine.
    """
    from . import show
    from .creating import hardware, project
    from .template import rendering

    is_terminal = all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout))
    can_ask = is_terminal and not (yes or json)
    if name is None and not can_ask:
        raise UsageError("the project needs a name: fastproj new NAME")
    if name is None:
        from .creating import prompts

        target = prompts.ask_destination(output)
    else:
        target = project.destination(name, output)
    rendering.preload()
    machine = hardware.detect()
    if can_ask:
        print(show.detected(machine), flush=True)
    created = project.create(
        target,
        template,
        answers_in(context),
        data or [],
        machine,
        accept_defaults=yes,
        can_ask=can_ask,
        commit=not no_git,
    )
    facts = show.new_project(created, machine, template, has_git=not no_git)
    show.result(facts, show.created, json, done=True)


@app.command(cls=PlainCommand)
def update(
    context: typer.Context,
    where: Where = Path(),
    to: Annotated[
        str | None, typer.Option(help="Version of the template; the newest by default.")
    ] = None,
    gpus: Gpus = None,
    nodes: Nodes = None,
    tensor_cores: TensorCores = None,
    framework: Framework = None,
    model: Model = None,
    author: Author = None,
    licence: Licence = None,
    components: Components = None,
    data: Data = None,
    dry_run: DryRun = False,
    template: Annotated[
        str | None, typer.Option(help="New location of the template, recorded in the project.")
    ] = None,
    json: Json = False,
) -> None:
    """Update a project to a newer template or to other answers.

    Your changes are kept; the result is staged.
    """
    from . import show
    from .updating.update import Request
    from .updating.update import update as run_update

    request = Request(answers_in(context), data or [], to, template, dry_run)
    result = run_update(where, request)
    show.result(show.change(result, dry_run), show.updated, json, done=True)
    _exit(result)


@app.command(cls=PlainCommand)
def status(
    where: Where = Path(),
    json: Json = False,
) -> None:
    """Show a project's version, the newest version and the answers. Exits with 3 if outdated."""
    from . import show
    from .updating.project import status as read_status

    facts = read_status(where)
    show.result(facts, show.status_text, json)
    if facts["behind"]:
        raise typer.Exit(OUTDATED)


@app.command(cls=PlainCommand)
def components(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Component to describe; all by default.")
    ] = None,
    project: ProjectFolder = Path(),
    json: Json = False,
) -> None:
    """List the components, or describe one.

    The list marks those that the project has.
    """
    from . import show
    from .updating.components import options_of, read_components

    table = read_components(project, [name] if name else [])
    if name:
        facts = show.component_page(table[name], options_of(project, table[name]))
        show.result(facts, show.component_text, json)
        return
    facts = {"components": [show.component_facts(component) for component in table.values()]}
    show.result(facts, lambda _: show.component_list(table), json)


@app.command(cls=PlainCommand)
def add(
    names: Names,
    project: ProjectFolder = Path(),
    data: Data = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Add components to a project, and stage the result. The version of the template stays."""
    from . import show
    from .updating.components import add as run_add

    result, components = run_add(project, names, dry_run, data or [])
    show.result(show.change(result, dry_run, components, names), show.added, json, done=True)
    _exit(result)


@app.command(cls=PlainCommand)
def remove(
    names: Names,
    project: ProjectFolder = Path(),
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Remove components from a project, and stage the result. Files that you edited stay."""
    from . import show
    from .updating.components import remove as run_remove

    result, components = run_remove(project, names, dry_run)
    show.result(show.change(result, dry_run, components, names), show.removed, json, done=True)
    _exit(result)


app.command(cls=PlainCommand)(run_commands.report)
app.command(cls=PlainCommand)(run_commands.tune)
app.command(cls=PlainCommand)(run_commands.bench)
app.command(cls=PlainCommand)(run_commands.compare)


def _exit(result: "UpdateResult") -> None:
    if result.conflicts:
        raise typer.Exit(CONFLICTS)
