"""configs/tuned.yaml: the options that tune kept, with the evidence in comments."""

import json
import time
from pathlib import Path
from statistics import median

from ..errors import FastprojError
from .options import nested
from .stages import Setting
from .tune import TuneResult

MARK = "# Written by `fastproj tune`"


def destination(folder: Path) -> Path:
    """Return the file to write, unless it is someone else's, or elsewhere through a link."""
    file = folder / "configs/tuned.yaml"
    if file.resolve() != folder.resolve() / "configs/tuned.yaml":
        raise FastprojError(
            f"{file} is elsewhere through a link: put a folder or file in its place"
        )
    if file.exists() and not file.read_bytes().startswith(MARK.encode()):
        raise FastprojError(f"{file} exists and is not written by tune: rename it")
    return file


def content(setting: Setting, result: TuneResult) -> str:
    """Return the content of the file."""
    date = time.strftime("%Y-%m-%d")
    lines = [
        f"{MARK} on {date}: {setting.machine.text()}, processes: {setting.processes}.",
        "# Its options override those of the recipe: make train ARGS='--config configs/tuned.yaml'",
    ]
    if result.gain.trials:
        lines.append(f"# {together(result)}")

    names = setting.project.names
    for section, options in nested(names.translate(result.kept) or {}).items():
        lines.append(f"{section}:")
        for key, value in options.items():
            name = f"{section}.{key}"
            option = next(option for option in result.kept if names.name(option) == name)
            instead = f"instead of {json.dumps(setting.recipe.get(name))}"
            lines.append(f"  {key}: {json.dumps(value)}  # {instead}: {result.evidence[option]}")

    if result.refused:
        lines += ["# Tried and not kept:", *(f"#   {reason}" for reason in result.refused)]
    return "\n".join(lines) + "\n"


def together(result: TuneResult) -> str:
    """Return what all kept options give together."""
    before = median(trial.samples_per_second for trial in result.gain.base)
    after = median(trial.samples_per_second for trial in result.gain.trials)
    speeds = f"{after:,.0f} samples per second instead of {before:,.0f}"
    return f"Together {speeds}: {result.gain.text()}."
