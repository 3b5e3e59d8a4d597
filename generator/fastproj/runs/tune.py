"""`fastproj tune`: tries options in interleaved trials, and keeps those that are proven faster."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .learning_rate import suggested
from .options import Options, as_text
from .pairs import PROVEN, Compared, Measure
from .stages import Setting
from .trials import Trainer


@dataclass
class Tuned:
    """What was found so far."""

    kept: Options = field(default_factory=dict)
    """By the names of plain PyTorch."""
    evidence: dict[str, str] = field(default_factory=dict)
    """What was measured for each kept option."""
    refused: list[str] = field(default_factory=list)
    """What was tried and not kept."""
    gain: Compared = field(default_factory=Compared)
    """All kept options against the recipe."""


def tune(
    setting: Setting, stages: list[str], measure: Measure, tuned: Tuned, say: Callable[[str], None]
) -> None:
    """Go through the stages; `tuned` has what was found if this is interrupted."""
    for stage in stages:
        candidates = setting.differing(stage, tuned.kept)
        if stage == "lr":
            find_rate(setting, measure.trainer, tuned, say)
        elif candidates and time.monotonic() > measure.deadline:
            tuned.refused.append(f"{stage}: not tried, as the time was up")
        elif candidates:
            _decide(stage, candidates, measure, tuned, say)
    if any(name != "optim.lr" for name in tuned.kept):
        whole = Measure(measure.trainer, measure.rounds, float("inf"), measure.tick)
        tuned.gain = whole.compare({}, {"tuned": tuned.kept})["tuned"]
        if tuned.gain.ratio < PROVEN:
            tuned.refused.append(f"together, {as_text(tuned.kept)}: {tuned.gain.text()}")
            tuned.kept = {name: value for name, value in tuned.kept.items() if name == "optim.lr"}
            tuned.gain = Compared()


def _decide(
    stage: str,
    candidates: dict[str, Options],
    measure: Measure,
    tuned: Tuned,
    say: Callable[[str], None],
) -> None:
    """Keep the fastest candidate if it is proven faster, in the first rounds and in as many others."""
    compared = measure.compare(tuned.kept, candidates)
    best = measure.proven(compared)
    if best is None:
        measure.tick(2 * measure.rounds)
    else:
        again = measure.compare(tuned.kept, {best: candidates[best]})
        compared[best].extend(again[best])
        best = measure.proven(again)
    for name, it in compared.items():
        fate = "kept" if name == best else "not kept"
        say(f"{stage:14} {name}: {it.text()}, {fate}")
        if name != best:
            tuned.refused.append(f"{name}: {it.text()}")
    if best is not None:
        tuned.kept |= candidates[best]
        for name in candidates[best]:
            tuned.evidence[name] = compared[best].text()


def find_rate(setting: Setting, trainer: Trainer, tuned: Tuned, say: Callable[[str], None]) -> None:
    """Keep the learning rate that range tests suggest, if the project can make them and they agree."""
    if "lr-range-test" not in setting.project.components:
        tuned.refused.append("optim.lr: not tried; `fastproj add lr-range-test` brings the test")
        return
    found, why = suggested(trainer, tuned.kept)
    say(f"{'lr':14} {why}")
    if found is None:
        tuned.refused.append(f"optim.lr: {why}")
    else:
        tuned.kept["optim.lr"], tuned.evidence["optim.lr"] = found, why
