"""`fastproj tune`: tries options in interleaved trials, and keeps those proven faster."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .comparison import PROVEN, Comparison, Measure
from .learning_rate import suggested
from .options import Options, as_text
from .stages import Setting
from .trials import Trainer


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
    measure: Measure,
    result: TuneResult,
    say: Callable[[str], None],
) -> None:
    """Go through the stages; `result` has what is known if this is interrupted."""
    for stage in stages:
        if stage == "lr":
            find_rate(setting, measure.trainer, result, say)
            continue
        candidates = setting.candidates(stage, result.kept)
        if candidates and time.monotonic() > measure.deadline:
            result.refused.append(f"{stage}: not tried, as the time was up")
        elif candidates:
            _decide(stage, candidates, measure, result, say)
    if any(name != "optim.lr" for name in result.kept):
        _confirm(measure, result)


def _decide(
    stage: str,
    candidates: dict[str, Options],
    measure: Measure,
    result: TuneResult,
    say: Callable[[str], None],
) -> None:
    """Keep the fastest candidate if the first rounds, and as many others, prove it faster."""
    comparisons = measure.compare(result.kept, candidates)
    best = measure.proven(comparisons)
    if best is not None:
        again = measure.compare(result.kept, {best: candidates[best]})
        comparisons[best].extend(again[best])
        best = measure.proven(again)
    for name, comparison in comparisons.items():
        fate = "kept" if name == best else "not kept"
        say(f"{stage:14} {name}: {comparison.text()}, {fate}")
        if name != best:
            result.refused.append(f"{name}: {comparison.text()}")
    if best is not None:
        result.kept |= candidates[best]
        result.evidence |= dict.fromkeys(candidates[best], comparisons[best].text())


def _confirm(measure: Measure, result: TuneResult) -> None:
    """Compare all kept options with the recipe, and drop them if they are not faster together."""
    measure = replace(measure, deadline=float("inf"))
    result.gain = measure.compare({}, {"tuned": result.kept})["tuned"]
    if result.gain.ratio < PROVEN:
        result.refused.append(f"together, {as_text(result.kept)}: {result.gain.text()}")
        result.kept = {name: rate for name, rate in result.kept.items() if name == "optim.lr"}
        result.gain = Comparison()


def find_rate(
    setting: Setting,
    trainer: Trainer,
    result: TuneResult,
    say: Callable[[str], None],
) -> None:
    """Keep the learning rate that range tests suggest, if the project has them and they agree."""
    if "lr-range-test" not in setting.project.components:
        result.refused.append("optim.lr: not tried; `fastproj add lr-range-test` brings the test")
        return
    rate, reason = suggested(trainer, result.kept)
    say(f"{'lr':14} {reason}")
    if rate is None:
        result.refused.append(f"optim.lr: {reason}")
    else:
        result.kept["optim.lr"] = rate
        result.evidence["optim.lr"] = reason
