"""configs/tuned.yaml: the options that tune kept, with the evidence in comments."""

import json
import time
from pathlib import Path
from statistics import median

from ..shared.errors import FastprojError
from .options import for_framework, nested
from .stages import Setting
from .tune import Tuned

MARK = "# Written by `fastproj tune`"


def destination(folder: Path) -> Path:
    """Return the file to write, unless it is someone else's."""
    file = folder / "configs/tuned.yaml"
    if file.exists() and not file.read_text(encoding="utf-8", errors="replace").startswith(MARK):
        raise FastprojError(f"{file} exists and is not written by tune: rename it")
    return file


def write(file: Path, setting: Setting, tuned: Tuned) -> None:
    """Write the file."""
    file.write_text(content(setting, tuned), encoding="utf-8")


def content(setting: Setting, tuned: Tuned) -> str:
    """Return the content of the file."""
    lines = [
        f"{MARK} on {time.strftime('%Y-%m-%d')}: {setting.machine.text()}, processes: {setting.processes}.",
        "# Its options override those of the recipe: make train ARGS='--config configs/tuned.yaml'",
    ]
    if sentence := together(tuned):
        lines.append(f"# {sentence}")
    reasons: dict[str, str] = {}
    for name, value in tuned.kept.items():
        for translated in for_framework({name: value}, setting.project.lightning) or {}:
            reasons[translated] = (
                f"instead of {json.dumps(setting.value(name, {}))}: {tuned.evidence[name]}"
            )
    lines += _sections(nested(for_framework(tuned.kept, setting.project.lightning) or {}), reasons)
    if tuned.refused:
        lines += ["# Tried and not kept:", *(f"#   {it}" for it in tuned.refused)]
    return "\n".join(lines) + "\n"


def together(tuned: Tuned) -> str:
    """Return what all kept options give together, or nothing if that was not measured."""
    if not tuned.gain.trials:
        return ""
    before, after = (
        median(trial.samples_per_second for trial in trials)
        for trials in (tuned.gain.base, tuned.gain.trials)
    )
    return (
        f"Together {after:,.0f} samples per second instead of {before:,.0f}: {tuned.gain.text()}."
    )


def _sections(sections: dict[str, dict[str, object]], reasons: dict[str, str]) -> list[str]:
    lines = []
    for section, pairs in sections.items():
        lines.append(f"{section}:")
        for key, value in pairs.items():
            reason = reasons[f"{section}.{key}"]
            lines.append(f"  {key}: {json.dumps(value)}  # {reason}")
    return lines
