"""A row of a page in docs/techniques/: the same run without and with a technique."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """One row of a page, as `tools/bench_pages.py` of a project measures it."""

    page: str
    what: str
    model: str
    without: list[str]
    with_it: list[str]
    value: str = "samples_per_second"
    """Or `memory_mb`, the peak of the process or of the GPU; `validation_seconds`; `first_seconds` up to the first
    row; or a metric of the last validation of a complete run, as `val:name`."""
    ranks: tuple[int, int] = (1, 1)
    rounds: int = 3
    smaller_is_better: bool = False
    changes: tuple[str, str] = ("", "")
    """What `tools/bench_run.py` of a project changes for each side, as no option does, joined by `+`."""
    steps: int = 50
    warmup: int = 10
