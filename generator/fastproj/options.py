"""Options and arguments that several commands have, and the options for the template's questions."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .template.answers import ANSWERS, choices, option

Data = Annotated[
    list[str] | None, typer.Option(help="Answer KEY=VALUE to any other question of the template.")
]
Where = Annotated[Path, typer.Argument(help="The project's folder, or a folder inside it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Components; `fastproj components` lists them."),
]
ProjectFolder = Annotated[
    Path, typer.Option("--project", help="The project's folder, or a folder inside it.")
]


class AnswersCommand(TyperCommand):
    """A command whose help lists the choices of the template's questions."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        from .template import embedded, template

        questions = template.questions_in(embedded.QUESTIONS)
        for parameter in self.params:
            if (
                allowed := choices(questions, str(parameter.name))
            ) and parameter.name != "components":
                parameter.help = f"{parameter.help} [{'|'.join(allowed)}]"  # type: ignore[attr-defined]
        return super().get_help(ctx)


def with_answers(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option per answer, in place of its parameter `**answers`."""
    *own, _ = inspect.signature(command).parameters.values()
    place = [it.name for it in own].index("data")
    parameters = [*own[:place], *(_parameter(*it) for it in ANSWERS.items()), *own[place:]]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {it.name: it.annotation for it in parameters}
    return command


def _parameter(name: str, about: str) -> inspect.Parameter:
    kind = int if name in ("gpus", "nodes") else str
    annotation = Annotated[kind | None, typer.Option(option(name), help=about)]  # type: ignore[valid-type]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )
