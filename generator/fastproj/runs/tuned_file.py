"""configs/tuned.yaml: the options that tune kept, with the evidence in comments."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import FastprojError
from .options import as_text, nested
from .stages import Setting
from .tune import TuneResult

MARK = "# Written by `fastproj tune`"
_USE = "make train ARGS='--config configs/tuned.yaml'"


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
        f"# Its options override those of the recipe: {_USE}",
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


def facts(result: TuneResult) -> dict[str, Any]:
    """Return what was found: options by the names of plain PyTorch, evidence, and the file."""
    file = "configs/tuned.yaml" if result.kept else None
    return asdict(result) | {"file": file, "next": [_USE] if file else []}


def text(result: TuneResult) -> str:
    """Return what was found in one or two lines."""
    if not result.kept:
        return "No option was proven faster than the recipe; no file was written."
    begin = f"{together(result)}\n" if result.gain.trials else ""
    return f"{begin}configs/tuned.yaml has {as_text(result.kept)}; {_USE} uses it"


def together(result: TuneResult) -> str:
    """Return what all kept options give together."""
    before = median(trial.samples_per_second for trial in result.gain.base)
    after = median(trial.samples_per_second for trial in result.gain.trials)
    speeds = f"{after:,.0f} samples per second instead of {before:,.0f}"
    return f"Together {speeds}: {result.gain.text()}."
