"""`fastproj tune`: tries options in paired trials, and writes those twice proven faster."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import FastprojError
from .options import Options, as_text, nested
from .paired import Comparison, Turns
from .stages import candidates
from .trials import Trainer

WORTH = math.log(1.02)
"""An option is kept if it is faster by this factor, and its interval does not contain 1."""
HOPELESS = math.log(0.7)
"""A difference of the first pairs below which a candidate is not tried again."""
FILE = "configs/tuned.yaml"
MARK = "# Written by `fastproj tune`"
USE = f"make train ARGS='--config {FILE}'"


@dataclass
class TuneResult:
    """What is known so far."""

    kept: Options = field(default_factory=dict)
    """By the names of plain PyTorch."""
    evidence: dict[str, str] = field(default_factory=dict)
    """The second measurement of each kept option."""
    refused: list[str] = field(default_factory=list)
    """What was tried and not kept."""
    gain: Comparison = field(default_factory=Comparison)
    """All kept options against the recipe."""

    def facts(self) -> dict[str, Any]:
        """Return what was found: options, evidence, and the file."""
        file = FILE if self.kept else None
        return asdict(self) | {"file": file, "next": [USE] if file else []}

    def text(self) -> str:
        """Return what was found in one or two lines."""
        if not self.kept:
            return "No option was proven faster than the recipe; no file was written."
        together = f"Together: {self.gain.text()}.\n" if self.gain.trials else ""
        return f"{together}{FILE} has {as_text(self.kept)}; {USE} uses it"

    def content(self, trainer: Trainer) -> str:
        """Return the content of configs/tuned.yaml."""
        date = time.strftime("%Y-%m-%d")
        lines = [
            f"{MARK} on {date}: {trainer.machine.text}, processes: {trainer.project.processes}.",
            f"# Its options override those of the recipe: {USE}",
        ]
        if self.gain.trials:
            lines.append(f"# Together: {self.gain.text()}.")
        for option, evidence in self.evidence.items():
            instead = f"instead of {json.dumps(trainer.value(option))}"
            lines.append(f"# {as_text({option: self.kept[option]})}, {instead}: {evidence}")
        if self.refused:
            lines += ["# Tried and not kept:", *(f"#   {reason}" for reason in self.refused)]
        options = trainer.project.names.translate(self.kept) or {}
        return "\n".join([*lines, yaml.safe_dump(nested(options), sort_keys=False)])


def destination(folder: Path) -> Path:
    """Return the file to write, unless it is someone else's."""
    file = folder / FILE
    if file.exists() and not file.read_bytes().startswith(MARK.encode()):
        raise FastprojError(f"{file} exists and is not written by tune: rename it")
    return file


def tune(
    trainer: Trainer,
    stages: list[str],
    turns: Turns[Options],
    result: TuneResult,
    say: Callable[[str], None],
) -> None:
    """Go through the stages; `result` has what is known if this is interrupted."""
    for stage in stages:
        sides = candidates(trainer, stage, result.kept)
        # the least evidence, and then as much for the best and for all kept options together
        if sides and not turns.has_time(2 * (1 + len(sides)) + 4):
            result.refused.append(f"{stage}: not tried, as the time was up")
            say(f"{stage:14} not tried, as the time was up")
        elif sides:
            _decide(stage, sides, turns, result, say)
    if result.kept and not result.gain.trials:
        result.gain = turns.compare({}, {"tuned": result.kept}, {})["tuned"]
        if not is_faster(result.gain):
            result.refused.append(f"together, {as_text(result.kept)}: {result.gain.text()}")
            result.kept = {}


def _decide(
    stage: str,
    candidates: dict[str, Options],
    turns: Turns[Options],
    result: TuneResult,
    say: Callable[[str], None],
) -> None:
    """Keep the fastest candidate, if a second measurement proves it faster as well."""
    kept = result.kept
    sides = {name: kept | options for name, options in candidates.items()}
    texts = {}
    tried = turns.compare(kept, sides, {})
    faster = [name for name, comparison in tried.items() if is_faster(comparison)]
    best = max(faster, key=lambda name: tried[name].estimate().mean, default="")
    for name, comparison in tried.items():
        texts[name] = comparison.text()
    if best:
        again = turns.compare(kept, {best: sides[best]}, {})[best]
        texts[best] += f"; again {again.text()}"
        if is_faster(again):
            result.kept = sides[best]
            result.evidence |= dict.fromkeys(candidates[best], again.text())
            result.gain = Comparison() if kept else again
    for name, text in texts.items():
        is_kept = result.kept is sides[name]
        say(f"{stage:14} {name}: {text}, {'kept' if is_kept else 'not kept'}")
        if not is_kept:
            result.refused.append(f"{name}: {text}")


def is_faster(comparison: Comparison) -> bool:
    """Whether a candidate is proven faster."""
    if comparison.problem or not comparison.trials:
        return False
    speed = comparison.estimate()
    return speed.low > 0 and speed.mean >= WORTH
