"""The switches of speed, each alone against the config so far: precision, channels_last, CUDA graphs, torch.compile."""

import statistics
from typing import Any

from .found import Compared, Facts, Finding, Options, as_options, judged
from .trials import Trials


def tune(trials: Trials, facts: Facts, config: dict[str, Any], current: Options) -> None:
    """Try each switch, and keep those with a proven gain; those that need another device are skipped.

    Raises:
        BudgetError: the budget is used up.
    """
    findings = trials.findings
    train = config["train"]
    samples = train["steps"] * trials.samples_per_step({}) if train["steps"] else train["epochs"] * facts.samples
    for name, value, skip in candidates(facts, config["speed"]):
        what = as_options({name: value})[0].removeprefix("--")
        if skip or name in current:  # the better one of two values is kept already
            findings.append(Finding("speed", what, "skipped", skip or f"{name}={current[name]} is faster already"))
            continue
        compared = trials.compare(current, {**current, name: value})
        limit = ""
        if name == "speed.compile" and compared.proven():
            limit = _pays_off(samples, compared)
        findings.append(judged("speed", what, compared, {name: value}, limit))
        current = {**current, **findings[-1].values}


def candidates(facts: Facts, speed: dict[str, Any]) -> list[tuple[str, Any, str]]:
    """Return each switch with a value that is not the config's, and why it is skipped, if it is.

    Precisions are those that keep fp32's range, so that no loss has to be scaled: mixed precision in bf16, and TF32.
    """
    cuda = facts.device == "cuda"
    found: list[tuple[str, Any, str]] = []
    for precision in ("bf16", "tf32", "fp32"):
        if precision != facts.precision and (precision != "fp32" or not cuda):
            found.append(("speed.precision", precision, "" if cuda or precision != "tf32" else "needs a GPU"))
    last = speed["channels_last"] if speed["channels_last"] != "auto" else cuda
    found.append(("speed.channels_last", not last, "" if facts.convolutions else "the model has no convolutions"))
    graph = "" if cuda and facts.ranks == 1 else "needs a GPU" if not cuda else "is for one GPU only"
    if not speed["step_graph"]:
        found.append(("speed.step_graph", True, graph))
    found += [("speed.compile", value, "") for value in ("model", "blocks", "off") if value != speed["compile"]]
    return found


def _pays_off(samples: float, compared: Compared) -> str:
    """Return why compiling is not worth its time at the start, in a run of so many samples; empty if it is."""
    base, other = statistics.median(compared.base), statistics.median(compared.other)
    gained, later = samples / base - samples / other, compared.later
    if gained > later:
        return ""
    return f"it gains {gained:.3g} s in a run of {samples / base:.3g} s, and starts {later:.3g} s later"
