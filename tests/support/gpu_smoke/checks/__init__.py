"""The checks, in the order in which they tell most per second: first the questions, then the tables of figures."""

from ..check import Check, Lab
from ..machine import Machine
from . import (
    checkpoints,
    compiled,
    environment,
    fp8,
    frameworks,
    graphs,
    loading,
    ranks,
    reproducible,
    speed,
    synchronization,
    training,
    validations,
)

__all__ = ["Machine", "all_checks"]

LISTED = [
    environment.checks,
    training.checks,
    synchronization.checks,
    graphs.checks,
    fp8.checks,
    ranks.checks,
    frameworks.checks,
    validations.checks,
    loading.checks,
    reproducible.checks,
    compiled.checks,
    ranks.compiled_checks,
    checkpoints.checks,
    speed.checks,
    speed.compiled_checks,
    # These profile, which slows down what comes after them in the process.
    loading.profiled_checks,
    speed.profiled_checks,
]


def all_checks(lab: Lab) -> list[Check]:
    """Return every check, for the models and frameworks that were rendered."""
    return [check for checks in LISTED for check in checks(lab)]
