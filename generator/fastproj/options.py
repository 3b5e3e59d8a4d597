"""Options and arguments that several commands have, and the options for the answers."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from .template.answers import ANSWERS, Answers, choices

Gpus = Annotated[int | None, typer.Option(help="GPUs per machine used for training; 0 for none.")]
Nodes = Annotated[int | None, typer.Option(help="Machines that train one model together.")]
TensorCores = Annotated[
    str | None,
    typer.Option(
        help="Newest number format of the GPUs' Tensor Cores: "
        "fp16 Volta, Turing; bf16 Ampere; fp8 Ada."
    ),
]
Framework = Annotated[str | None, typer.Option(help="Framework of the training loop.")]
Model = Annotated[str | None, typer.Option(help="Model, with its data and training recipe.")]
Author = Annotated[str | None, typer.Option(help="Your name, for the license and the package.")]
Licence = Annotated[str | None, typer.Option("--license", help="License of the project.")]
Components = Annotated[
    str | None,
    typer.Option(help="Components, separated by commas; `fastproj components` lists them."),
]
Data = Annotated[
    list[str] | None, typer.Option(help="Answer KEY=VALUE to any other question of the template.")
]
Where = Annotated[Path, typer.Argument(help="The project's folder, or a folder inside it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Components; `fastproj components` lists them."),
]
ProjectFolder = Annotated[
    Path, typer.Option("--project", help="The project's folder, or a folder inside it.")
]


def answers_in(context: typer.Context) -> Answers:
    """Return the answers among the options of a command; None for those not given."""
    return {name: context.params[name] for name in ANSWERS}


class AnswersCommand(TyperCommand):
    """A command whose help lists the choices of the template's questions."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        from .template.clone import questions_in
        from .template.embedded import QUESTIONS

        questions = questions_in(QUESTIONS)
        for parameter in self.params:
            allowed = choices(questions, str(parameter.name))
            if isinstance(parameter, TyperOption) and allowed and parameter.name != "components":
                parameter.help = f"{parameter.help} [{'|'.join(allowed)}]"
        return super().get_help(ctx)
