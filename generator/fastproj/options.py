"""Options and arguments that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[list[str] | None, typer.Option(help="Answer KEY=VALUE to any other question of a custom template.")]
Where = Annotated[Path, typer.Argument(help="The project's folder, or a folder inside it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
