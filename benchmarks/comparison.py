"""A row of a page in docs/techniques/: the same run without and with a technique."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """One row of a page: the same run without and with a technique."""

    page: str
    what: str
    model: str
    without: list[str]
    with_it: list[str]
    value: str = "samples_per_second"
    """A column of metrics.jsonl, `peak_mb` of the process or of the GPU, `validation_mb` of the GPU in a validation,
    `first_seconds` up to the first row, or a validation metric as `val:name`."""
    ranks: tuple[int, int] = (1, 1)
    rounds: int = 3
    smaller_is_better: bool = False
    frameworks: tuple[str, str] = ("pytorch", "pytorch")
    changes: tuple[str, str] = ("", "")
    """What programs/technique_run.py changes in the code, as no option does."""
