"""The commands. Modules that are slow to import are imported inside the commands, so that `--help` starts quickly."""

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from . import component_commands, run_commands
from .options import Data, DryRun, Json, Where
from .shared.answers import ANSWERS, SPELLINGS, Answer, choices, option
from .shared.errors import UsageError, without_passwords
from .terminal import interactive, report

_EXITS = "Exit status: 0 success; 1 error, or conflicts; 2 usage error; 3 outdated (status); 128 + N after signal N."

app = typer.Typer(
    name="fastproj",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=_EXITS,
    context_settings={"token_normalize_func": lambda token: SPELLINGS.get(token, token)},
)


@cache
def _questions() -> dict[str, Any]:
    """Return the template's questions, which only the help and the completion of a command need."""
    from .shared.source import questions

    return questions() or {}


class AnswersCommand(TyperCommand):
    """A command whose help lists the choices of the template's questions."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        for parameter in self.params:
            if allowed := choices(_questions(), str(parameter.name)):
                parameter.help = f"{parameter.help} [{'|'.join(allowed)}]"  # type: ignore[attr-defined]
        return super().get_help(ctx)


def command_with_answers(command: Callable[..., None]) -> Callable[..., None]:
    """Add a command to the program, with one option per answer in place of its parameter `**answers`."""
    *own, _ = inspect.signature(command).parameters.values()
    place = [it.name for it in own].index("data")
    parameters = [*own[:place], *map(_parameter, ANSWERS), *own[place:]]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {it.name: it.annotation for it in parameters}
    return app.command(cls=AnswersCommand)(command)


def _parameter(answer: Answer) -> inspect.Parameter:
    details = typer.Option(
        option(answer.name), help=answer.help, autocompletion=lambda: choices(_questions(), answer.name)
    )
    kind = str if answer.type is list else answer.type
    annotation = Annotated[kind | None, details]  # type: ignore[valid-type]
    return inspect.Parameter(answer.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _version(show: bool) -> None:
    if show:
        from .shared.source import template_version

        print(f"fastproj {template_version()} (template v{template_version()})")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", callback=_version, is_eager=True, help="Show the versions of program and template."
)


@app.callback()
def fastproj(version: Annotated[bool, _VERSION] = False) -> None:
    """Render a fast, correct, readable PyTorch training repository that is yours."""
    from .shared import git

    git.forget_callers_repository()


@app.command()
def detect(json: Json = False) -> None:
    """Show this machine's hardware, and the answers that `new` derives from it."""
    from . import show
    from .creating.hardware import detect as detect_hardware

    machine = detect_hardware()
    print(show.as_json(machine, answers=machine.answers()) if json else show.machine_text(machine))


@command_with_answers
def new(
    *,
    name: Annotated[str, typer.Argument(help="Name of the project and of its folder.")],
    data: Data = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept the detected and default answers.")] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to create the project in.")] = Path(),
    template: Annotated[str | None, typer.Option(help="Another template: a folder, git bundle or repository.")] = None,
    no_git: Annotated[bool, typer.Option("--no-git", help="Do not create a git repository.")] = False,
    **answers: Any,
) -> None:
    """Create a project. Prompts for each answer that is not given; the defaults fit this machine."""
    from . import show
    from .creating import hardware, project
    from .shared import rendering, source

    target = project.destination(name, output)
    if not yes and not interactive():
        raise UsageError("not an interactive terminal: pass --yes to accept the detected answers")
    rendering.preload()
    chosen = source.embedded() if template is None else source.from_location(template)
    machine = hardware.detect()
    if not yes:
        print(show.detected(machine), flush=True)
    created = project.create(target, chosen, answers, data or [], machine, ask=not yes, commit=not no_git)
    report(show.created(created, machine, output, template, no_git), f"{created.path} was created")


@command_with_answers
def update(
    *,
    where: Where = Path(),
    to: Annotated[str | None, typer.Option(help="Version of the template; the newest by default.")] = None,
    data: Data = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept the defaults of new questions.")] = False,
    dry_run: DryRun = False,
    downgrade: Annotated[bool, typer.Option("--downgrade", help="Allow an older version.")] = False,
    template: Annotated[str | None, typer.Option(help="New location of the template, recorded in the project.")] = None,
    **answers: Any,
) -> None:
    """Update a project to a newer template or to other answers, and stage the result. Your changes are kept."""
    from . import show
    from .updating.update import Wanted
    from .updating.update import update as run_update

    wanted = Wanted(to, template, answers, data, not yes and interactive(), dry_run, downgrade)
    result = run_update(where, wanted)
    changed = result.merged and not dry_run
    report(show.updated(result, dry_run), "the update is staged" if changed else "nothing was changed")
    if result.conflicts:
        raise typer.Exit(1)


app.command()(component_commands.components)
app.command()(component_commands.add)
app.command()(component_commands.remove)
app.command()(run_commands.report)
app.command()(run_commands.tune)
app.command()(run_commands.bench)


@app.command()
def status(
    where: Where = Path(),
    json: Json = False,
    template: Annotated[str | None, typer.Option(help="Another location of the template.")] = None,
) -> None:
    """Show a project's version, the newest version, the answers and your changes. Exits with 3 if outdated."""
    from . import show
    from .updating.status import status as read_status

    found = read_status(where, template)
    print(without_passwords(show.as_json(found) if json else show.status_text(found)))
    if found.behind:
        raise typer.Exit(3)  # 1 is an error
