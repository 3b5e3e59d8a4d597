"""`fastproj tune`: tries options in paired trials, and keeps those proven faster."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from .options import Options, as_text
from .paired import Comparison, Turns
from .stages import Setting

WORTH = math.log(1.02)
"""An option is kept if it is faster by this factor, and its interval does not contain 1."""


@dataclass
class TuneResult:
    """What is known so far."""

    kept: Options = field(default_factory=dict)
    """By the names of plain PyTorch."""
    evidence: dict[str, str] = field(default_factory=dict)
    """What was measured for each kept option."""
    refused: list[str] = field(default_factory=list)
    """What was tried and not kept."""
    gain: Comparison = field(default_factory=Comparison)
    """All kept options against the recipe."""


def tune(
    setting: Setting,
    stages: list[str],
    turns: Turns[Options],
    result: TuneResult,
    say: Callable[[str], None],
) -> None:
    """Go through the stages; `result` has what is known if this is interrupted."""
    for stage in stages:
        candidates = setting.candidates(stage, result.kept)
        # the least evidence, and then as much for all kept options together
        if candidates and not turns.has_time(2 * (1 + len(candidates)) + 4):
            result.refused.append(f"{stage}: not tried, as the time was up")
            say(f"{stage:14} not tried, as the time was up")
        elif candidates:
            _decide(stage, candidates, turns, result, say)
    if result.kept:
        _confirm(turns, result)


def _decide(
    stage: str,
    candidates: dict[str, Options],
    turns: Turns[Options],
    result: TuneResult,
    say: Callable[[str], None],
) -> None:
    """Keep the fastest of the candidates that are proven faster than the options in force."""
    together = {name: result.kept | options for name, options in candidates.items()}
    comparisons = turns.compare(result.kept, together, drop=True)
    faster = [name for name, comparison in comparisons.items() if is_faster(comparison)]
    best = max(faster, key=lambda name: comparisons[name].estimate().mean, default=None)
    for name, comparison in comparisons.items():
        fate = "kept" if name == best else "not kept"
        say(f"{stage:14} {name}: {comparison.text()}, {fate}")
        if name != best:
            result.refused.append(f"{name}: {comparison.text()}")
    if best is not None:
        result.kept |= candidates[best]
        result.evidence |= dict.fromkeys(candidates[best], comparisons[best].text())


def is_faster(comparison: Comparison) -> bool:
    """Whether a candidate is proven faster."""
    if comparison.problem or not comparison.trials:
        return False
    speed = comparison.estimate()
    return speed.low > 0 and speed.mean >= WORTH


def _confirm(turns: Turns[Options], result: TuneResult) -> None:
    """Compare all kept options with the recipe, and drop them if they are not faster together."""
    gain = turns.compare({}, {"tuned": result.kept})["tuned"]
    if gain.problem or gain.estimate().mean < WORTH:
        result.refused.append(f"together, {as_text(result.kept)}: {gain.text()}")
        result.kept = {}
    else:
        result.gain = gain
