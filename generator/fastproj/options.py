"""Options and arguments that several commands have, and the options for the answers."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from .template.answers import ANSWERS, Answers, choices

Gpus = Annotated[int | None, typer.Option(help="GPUs per machine used for training; 0 for none.")]
Nodes = Annotated[int | None, typer.Option(help="Machines that train one model together.")]
TensorCores = Annotated[
    str | None,
    typer.Option(
        help="GPU generation, by the newest number format of its Tensor Cores: "
        "fp16 Volta, Turing; bf16 Ampere; fp8 Ada, Hopper."
    ),
]
Framework = Annotated[str | None, typer.Option(help="Framework of the training loop.")]
Model = Annotated[str | None, typer.Option(help="Model, with its data and training recipe.")]
Author = Annotated[str | None, typer.Option(help="Your name, for the license and the package.")]
Licence = Annotated[str | None, typer.Option("--license", help="License of the project.")]
Components = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Components, separated by commas; `fastproj components` lists them.",
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="Answer to any other question of the template."),
]
_FOLDER = "The project's folder, or one inside it; the current folder by default."
Where = Annotated[Path, typer.Argument(metavar="[FOLDER]", help=_FOLDER)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Components; `fastproj components` lists them."),
]
ProjectFolder = Annotated[Path, typer.Option("--project", metavar="FOLDER", help=_FOLDER)]


def answers_in(context: typer.Context) -> Answers:
    """Return the answers among the options of a command; None for those not given."""
    return {name: context.params[name] for name in ANSWERS}


class PlainCommand(TyperCommand):
    """A command whose help has words for values, and the choices of the template's questions."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the name of the command."""
        arguments = [it for it in self.get_params(ctx) if isinstance(it, TyperArgument)]
        return ["[OPTIONS]", *map(_argument, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options."""
        from .template.clone import questions_in
        from .template.embedded import QUESTIONS

        arguments: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        questions = questions_in(QUESTIONS) if ctx.info_name in ("new", "update") else {}
        for parameter in self.get_params(ctx):
            text = str(getattr(parameter, "help", None) or "")
            if isinstance(parameter, TyperArgument):
                arguments.append((_argument(parameter), text))
            elif isinstance(parameter, TyperOption):
                options.append((_option(parameter), text + _values(parameter, questions)))
        for title, rows in {"Arguments": arguments, "Options": options}.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _option(option: TyperOption) -> str:
    """Return an option as a help shows it."""
    names = ", ".join(sorted(option.opts, key=len))
    word = option.metavar or _WORDS.get(option.type_descriptor.annotation, "TEXT")
    return names if option.is_flag else f"{names} {word}"


def _values(option: TyperOption, questions: Answers) -> str:
    """Return the choices or the default of an option as a sentence; often empty."""
    allowed = choices(questions, str(option.name))
    if allowed and option.name != "components":
        return f" One of {', '.join(allowed)}."
    if isinstance(option.default, int | float) and not option.is_flag:
        return f" The default is {option.default:g}."
    return ""


def _argument(argument: TyperArgument) -> str:
    """Return an argument as a usage shows it."""
    name = str(argument.metavar)
    return f"[{name}...]" if argument.nargs == -1 and not argument.required else name


_WORDS = {int: "NUMBER", float: "NUMBER", Path: "PATH"}
"""The value of an option, by its type."""
