"""The commands. What is slow to import is imported where it is used: `--help` must answer at once."""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .errors import FastprojError

app = typer.Typer(
    name="fastproj",
    help="Render a fast, correct, readable PyTorch training repository that is yours.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class NewCommand(TyperCommand):
    """`new`, whose help shows the template's own choices."""

    def get_help(self, ctx: Any) -> str:
        """Fill in the choices, which only someone who asks for help must wait for."""
        from .source import questions

        asked = questions() or {}
        for parameter in self.params:
            allowed = _choices(asked, str(parameter.name))
            if allowed:
                parameter.help = f"{parameter.help} [{'|'.join(allowed)}]"  # type: ignore[attr-defined]
        return super().get_help(ctx)


def _choices(asked: dict[str, Any], question: str) -> list[str]:
    """Return what a question of a template may be answered with; empty where it is free."""
    options = asked.get(question, {}).get("choices")
    if isinstance(options, str):  # made from a table: ours of models and frameworks, or one that copier alone can read
        table = asked.get(f"{question}s", {}).get("default")
        return list(table) if isinstance(table, dict) else []
    listed = options.values() if isinstance(options, dict) else options or []
    values = [str(value[1] if isinstance(value, list) else value) for value in listed if not isinstance(value, dict)]
    return [*values, "none"] if asked.get(question, {}).get("multiselect") else values


def _complete(question: str) -> Any:
    def matching(incomplete: str) -> list[str]:
        from .source import questions

        return [choice for choice in _choices(questions() or {}, question) if choice.startswith(incomplete)]

    return matching


def _version(show: bool) -> None:
    if show:
        from .source import template_version

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
    from .hardware import detect as look

    machine = look()
    print(show.machine_json(machine) if json else show.machine_text(machine))


@app.command(cls=NewCommand)
def new(
    name: Annotated[str, typer.Argument(help="The project's name, and the name of its folder.")],
    gpus: Annotated[int | None, typer.Option(help="GPUs in each machine that you train on; 0 for none.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Machines that train one model together.")] = None,
    tensor_cores: Annotated[
        str | None,
        typer.Option(
            help="Newest format of the GPUs' Tensor Cores: fp16 Volta, Turing; bf16 Ampere; fp8 Ada, Hopper, newer.",
            autocompletion=_complete("tensor_cores"),
        ),
    ] = None,
    framework: Annotated[
        str | None, typer.Option(help="What the loop is written in.", autocompletion=_complete("framework"))
    ] = None,
    model: Annotated[str | None, typer.Option(help="The kind of model.", autocompletion=_complete("model"))] = None,
    launchers: Annotated[
        str | None,
        typer.Option(
            help="Launch scripts beside the local one, with commas between.", autocompletion=_complete("launchers")
        ),
    ] = None,
    author: Annotated[str | None, typer.Option(help="Your name, for the licence and the package.")] = None,
    licence: Annotated[
        str | None, typer.Option(help="The project's licence.", autocompletion=_complete("licence"))
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE answers another question of a template of your own.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: take detected and default answers.")] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder in which the project's is made.")] = Path(),
    template: Annotated[
        str | None, typer.Option(help="Another template: a folder, a bundle, or a repository's address.")
    ] = None,
    no_git: Annotated[bool, typer.Option("--no-git", help="Make no git repository.")] = False,
) -> None:
    """Render a new project. Asks what is not given, with answers that fit this machine."""
    from . import git, hardware, project, show, source

    git.forget_callers_repository()
    target = project.destination(name, output)
    answers: dict[str, Any] = {"gpus": gpus, "nodes": nodes, "tensor_cores": tensor_cores, "framework": framework}
    answers |= {"model": model, "author": author, "licence": licence}
    if launchers is not None:
        answers["launchers"] = [part for part in launchers.replace(" ", "").split(",") if part not in ("", "none")]
    answers = {key: value for key, value in answers.items() if value is not None}
    asked = source.questions(template)
    extra = _extra(data or [], asked)
    _check(answers, extra, asked or {})
    if not yes and not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        raise FastprojError("this terminal cannot ask: pass --yes to take the detected answers, and options for others")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    chosen = source.embedded() if template is None else source.named(template)
    machine = hardware.detect()
    defaults = show.default_answers(machine)
    made = project.render(target, chosen, answers | extra, defaults, ask=not yes, commit=not no_git)
    print(show.rendered(made, machine, output, template, no_git))


def _check(answers: dict[str, Any], extra: dict[str, str], asked: dict[str, Any]) -> None:
    """Hold the options against the template's choices before anything is asked; the rest is copier's to check.

    Raises:
        FastprojError: one is not among its choices, given twice, or no text.
    """
    for key, value in (answers | extra).items():
        option = f"--{key.replace('_', '-')}"
        if key in answers and key in extra:
            raise FastprojError(f"{option} and --data {key} are both given: leave one out")
        allowed = _choices(asked, key)
        for single in value if isinstance(value, list) else [value]:
            if any("\ud800" <= letter <= "\udfff" for letter in str(single)):
                raise FastprojError(
                    f"{option} holds bytes that are no text in this terminal's encoding: write it in UTF-8"
                )
            if allowed and str(single) not in allowed:
                raise FastprojError(f"{option} {single!r} is unknown: choose from {', '.join(allowed)}")


def _extra(data: list[str], asked: dict[str, Any] | None) -> dict[str, str]:
    """Read KEY=VALUE options.

    Raises:
        FastprojError: one has no `=`, or names no question of the template.
    """
    extra = {}
    for entry in data:
        key, equals, value = entry.partition("=")
        if not equals or not key.isidentifier():
            raise FastprojError(f"--data {entry} is not of the form KEY=VALUE: write, say, --data gpus=2")
        if asked is not None and (key not in asked or asked[key].get("when") is False or key == "project_name"):
            open_questions = [
                name for name, it in asked.items() if it.get("when") is not False and name != "project_name"
            ]
            raise FastprojError(
                f"--data {key}: the template asks no such question; it asks {', '.join(open_questions)}"
            )
        if key in extra:
            raise FastprojError(f"--data {key} is given twice: leave one out")
        if asked is not None and asked[key].get("type") == "int" and not value.lstrip("-").isdecimal():
            raise FastprojError(f"--data {key} is {value!r}: it must be a whole number")
        extra[key] = value
    return extra


def _stop(number: int, frame: FrameType | None) -> None:
    """Leave through the ordinary way out, which removes what is half done."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
