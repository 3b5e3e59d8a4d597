"""The commands. Modules that are slow to import are imported inside the commands, so that `--help` starts quickly."""

import inspect
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .shared.answers import ANSWERS, Answer, choices, combine
from .shared.errors import FastprojError

app = typer.Typer(name="fastproj", rich_markup_mode=None, pretty_exceptions_enable=False)


class AnswersCommand(TyperCommand):
    """A command whose help lists the choices of the template's questions."""

    def get_help(self, ctx: Any) -> str:
        """Add the choices, which are read from the template only when help is requested."""
        from .shared.source import questions

        asked = questions() or {}
        for parameter in self.params:
            if allowed := choices(asked, str(parameter.name)):
                parameter.help = f"{parameter.help} [{'|'.join(allowed)}]"  # type: ignore[attr-defined]
        return super().get_help(ctx)


def command_with_answers(command: Callable[..., None]) -> Callable[..., None]:
    """Add a command to the program, with one option per answer in place of its parameter `answers`."""

    def run(**options: Any) -> None:
        given = {it.name: it.parse(value) for it in ANSWERS if (value := options.pop(it.name)) is not None}
        command(**options, answers=given)

    signature = inspect.signature(command)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += [_option(it) for it in ANSWERS] if parameter.name == "answers" else [parameter]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {it.name: it.annotation for it in parameters}
    return app.command(cls=AnswersCommand)(run)


def _option(answer: Answer) -> inspect.Parameter:
    def complete(incomplete: str) -> list[str]:
        from .shared.source import questions

        return [choice for choice in choices(questions() or {}, answer.name) if choice.startswith(incomplete)]

    option = typer.Option(help=answer.help, autocompletion=complete if answer.type is str else None)
    annotation = Annotated[answer.type | None, option]  # type: ignore[name-defined]
    return inspect.Parameter(answer.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


Data = Annotated[list[str] | None, typer.Option(help="Answer KEY=VALUE to any other question of a custom template.")]
Where = Annotated[Path, typer.Argument(help="The project's folder, or a folder inside it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _version(show: bool) -> None:
    if show:
        from .shared.source import template_version

        print(f"fastproj {template_version()} (template v{template_version()})")
        raise typer.Exit


@app.callback()
def fastproj(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the versions of program and template."),
    ] = False,
) -> None:
    """Render a fast, correct, readable PyTorch training repository that is yours."""


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
    answers: dict[str, Any],
    data: Data = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept the detected and default answers.")] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to create the project in.")] = Path(),
    template: Annotated[
        str | None, typer.Option(help="Another template: a folder, a git bundle or the URL of a repository.")
    ] = None,
    no_git: Annotated[bool, typer.Option("--no-git", help="Do not create a git repository.")] = False,
) -> None:
    """Create a project. Prompts for each answer that is not given; the defaults fit this machine."""
    from . import show
    from .creating import hardware, project
    from .shared import rendering, source

    _prepare()
    target = project.destination(name, output)
    questions = source.questions(template)
    given = combine(answers, data or [], questions)
    if not yes and not _interactive():
        raise FastprojError("not an interactive terminal: pass --yes to accept the detected answers")
    rendering.preload()
    chosen = source.embedded() if template is None else source.from_location(template)
    machine = hardware.detect()
    defaults = project.default_answers(machine)
    created = project.create(target, chosen, given, defaults, ask=not yes, commit=not no_git)
    print(show.created(created, machine, output, template, no_git))


@command_with_answers
def update(
    *,
    where: Where = Path(),
    to: Annotated[str | None, typer.Option(help="Version of the template; the newest by default.")] = None,
    answers: dict[str, Any],
    data: Data = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept the defaults of new questions.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    downgrade: Annotated[bool, typer.Option("--downgrade", help="Allow an older version.")] = False,
    template: Annotated[str | None, typer.Option(help="New location of the template, recorded in the project.")] = None,
) -> None:
    """Update a project to a newer template or to other answers, and stage the result. Your changes are kept."""
    from . import show
    from .updating.update import Wanted
    from .updating.update import update as run_update

    _prepare()
    wanted = Wanted(to, template, answers, data, not yes and _interactive(), dry_run, downgrade)
    result = run_update(where, wanted)
    print(show.updated(result, dry_run))
    if result.merged is not None and result.merged.conflicts:
        raise typer.Exit(1)


@app.command()
def status(
    where: Where = Path(),
    json: Json = False,
    template: Annotated[str | None, typer.Option(help="Another location of the template.")] = None,
) -> None:
    """Show a project's version, the newest version, the answers and your changes. Exits with 3 if outdated."""
    from . import show
    from .updating.status import status as read_status

    _prepare()
    found = read_status(where, template)
    print(show.as_json(found) if json else show.status_text(found))
    if found.behind:
        raise typer.Exit(3)  # 1 is an error


@command_with_answers
def adopt(
    *,
    where: Where = Path(),
    answers: dict[str, Any],
    data: Data = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what was found.")] = False,
    template: Annotated[
        str | None, typer.Option(help="Template that the repository was rendered from, if not the embedded one.")
    ] = None,
) -> None:
    """Link a rendered repository without an answers file to the closest release. Writes only that file."""
    from . import show
    from .updating.adopt import adopt as run_adopt

    _prepare()
    print(show.adopted(run_adopt(where, template, answers, data or [], dry_run)))


def _interactive() -> bool:
    return bool(sys.stdin and sys.stdin.isatty() and sys.stdout and sys.stdout.isatty())


def _prepare() -> None:
    """Ignore the git repository of the caller's environment, and clean up before a signal ends the program."""
    from .shared import git

    git.forget_callers_repository()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    """Exit by an exception, so that temporary files are removed."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
