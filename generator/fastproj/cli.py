"""The commands. What is slow to import is imported where it is used: `--help` must answer at once."""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .shared import options
from .shared.errors import FastprojError

app = typer.Typer(
    name="fastproj",
    help="Render a fast, correct, readable PyTorch training repository that is yours.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class AskingCommand(TyperCommand):
    """A command whose help shows the template's own choices."""

    def get_help(self, ctx: Any) -> str:
        """Fill in the choices, which only someone who asks for help must wait for."""
        from .shared.source import questions

        asked = questions() or {}
        for parameter in self.params:
            allowed = options.choices(asked, str(parameter.name))
            if allowed:
                parameter.help = f"{parameter.help} [{'|'.join(allowed)}]"  # type: ignore[attr-defined]
        return super().get_help(ctx)


def _complete(question: str) -> Any:
    def matching(incomplete: str) -> list[str]:
        from .shared.source import questions

        return [choice for choice in options.choices(questions() or {}, question) if choice.startswith(incomplete)]

    return matching


Gpus = Annotated[int | None, typer.Option(help="GPUs in each machine that you train on; 0 for none.")]
Nodes = Annotated[int | None, typer.Option(help="Machines that train one model together.")]
TensorCores = Annotated[
    str | None,
    typer.Option(
        help="Newest format of the GPUs' Tensor Cores: fp16 Volta, Turing; bf16 Ampere; fp8 Ada, Hopper, newer.",
        autocompletion=_complete("tensor_cores"),
    ),
]
Framework = Annotated[
    str | None, typer.Option(help="What the loop is written in.", autocompletion=_complete("framework"))
]
Model = Annotated[str | None, typer.Option(help="The kind of model.", autocompletion=_complete("model"))]
Launchers = Annotated[
    str | None,
    typer.Option(
        help="Launch scripts beside the local one, with commas between.", autocompletion=_complete("launchers")
    ),
]
Author = Annotated[str | None, typer.Option(help="Your name, for the licence and the package.")]
Licence = Annotated[str | None, typer.Option(help="The project's licence.", autocompletion=_complete("licence"))]
UpdateWorkflow = Annotated[
    bool | None, typer.Option(help="A workflow that opens a pull request when the template is newer.")
]
Data = Annotated[list[str] | None, typer.Option(help="KEY=VALUE answers another question of a template of your own.")]
Where = Annotated[Path, typer.Argument(help="The project's folder, or one in it.")]


def _version(show: bool) -> None:
    if show:
        from .shared.source import template_version

        print(f"fastproj {template_version()} (template v{template_version()})")
        raise typer.Exit


@app.callback()
def fastproj(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and the template's.")
    ] = False,
) -> None:
    """Render a fast, correct, readable PyTorch training repository that is yours."""


@app.command()
def detect(json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False) -> None:
    """Show this machine as `new` sees it, and the answers that follow."""
    from . import show
    from .creating.hardware import detect as look

    machine = look()
    print(show.machine_json(machine) if json else show.machine_text(machine))


@app.command(cls=AskingCommand)
def new(
    name: Annotated[str, typer.Argument(help="The project's name, and the name of its folder.")],
    gpus: Gpus = None,
    nodes: Nodes = None,
    tensor_cores: TensorCores = None,
    framework: Framework = None,
    model: Model = None,
    launchers: Launchers = None,
    author: Author = None,
    licence: Licence = None,
    update_workflow: UpdateWorkflow = None,
    data: Data = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: take detected and default answers.")] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder in which the project's is made.")] = Path(),
    template: Annotated[
        str | None, typer.Option(help="Another template: a folder, a bundle, or a repository's address.")
    ] = None,
    no_git: Annotated[bool, typer.Option("--no-git", help="Make no git repository.")] = False,
) -> None:
    """Render a new project. Asks what is not given, with answers that fit this machine."""
    from . import show
    from .creating import hardware, project
    from .shared import git, source

    git.forget_callers_repository()
    target = project.destination(name, output)
    answers = options.given(gpus, nodes, tensor_cores, framework, model, launchers, author, licence, update_workflow)
    asked = source.questions(template)
    extra = options.named(data or [], asked)
    options.check(answers, extra, asked or {})
    if not yes and not _terminal():
        raise FastprojError("this terminal cannot ask: pass --yes to take the detected answers, and options for others")
    _stop_in_order()
    chosen = source.embedded() if template is None else source.named(template)
    machine = hardware.detect()
    defaults = show.default_answers(machine)
    made = project.render(target, chosen, answers | extra, defaults, ask=not yes, commit=not no_git)
    print(show.rendered(made, machine, output, template, no_git))


@app.command(cls=AskingCommand)
def update(
    where: Where = Path(),
    to: Annotated[str | None, typer.Option(help="The template's version; by default its newest.")] = None,
    gpus: Gpus = None,
    nodes: Nodes = None,
    tensor_cores: TensorCores = None,
    framework: Framework = None,
    model: Model = None,
    launchers: Launchers = None,
    author: Author = None,
    licence: Licence = None,
    update_workflow: UpdateWorkflow = None,
    data: Data = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: new questions take their defaults.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    downgrade: Annotated[bool, typer.Option("--downgrade", help="Allow an older version.")] = False,
    template: Annotated[
        str | None, typer.Option(help="Another place of the template, which the project records from now on.")
    ] = None,
) -> None:
    """Bring in the template's newer version, or other answers; what you changed stays. The result is staged."""
    from . import show
    from .shared import git
    from .updating.update import Wanted
    from .updating.update import update as bring

    git.forget_callers_repository()
    answers = options.given(gpus, nodes, tensor_cores, framework, model, launchers, author, licence, update_workflow)
    _stop_in_order()
    wanted = Wanted(to, template, answers, data, not yes and _terminal(), dry_run, downgrade)
    done = bring(where, wanted)
    print(show.updated(done, dry_run))
    if done.merged is not None and done.merged.conflicts:
        raise typer.Exit(1)


@app.command()
def status(
    where: Where = Path(),
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    template: Annotated[str | None, typer.Option(help="Another place of the template, to compare with.")] = None,
) -> None:
    """Show a project's version, the newest, its answers, and what you have changed. Status 1 when behind."""
    from . import show
    from .shared import git
    from .updating.status import status as look

    git.forget_callers_repository()
    _stop_in_order()
    found = look(where, template)
    print(show.status_json(found) if json else show.status_text(found))
    if found.behind:
        raise typer.Exit(1)


@app.command(cls=AskingCommand)
def adopt(
    where: Where = Path(),
    gpus: Gpus = None,
    nodes: Nodes = None,
    tensor_cores: TensorCores = None,
    framework: Framework = None,
    model: Model = None,
    launchers: Launchers = None,
    author: Author = None,
    licence: Licence = None,
    update_workflow: UpdateWorkflow = None,
    data: Data = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what was found out.")] = False,
    template: Annotated[str | None, typer.Option(help="The template it was rendered from, if not fastproj's.")] = None,
) -> None:
    """Link a rendered repository that has no answers file to the nearest release; writes that file alone."""
    from . import show
    from .shared import git
    from .updating.adopt import adopt as link

    git.forget_callers_repository()
    _stop_in_order()
    answers = options.given(gpus, nodes, tensor_cores, framework, model, launchers, author, licence, update_workflow)
    print(show.adopted(link(where, template, answers, data or [], dry_run)))


def _terminal() -> bool:
    return bool(sys.stdin and sys.stdin.isatty() and sys.stdout and sys.stdout.isatty())


def _stop_in_order() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    """Leave through the ordinary way out, which removes what is half done."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
