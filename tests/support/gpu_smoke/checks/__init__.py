"""The checks, in the order in which they tell most per second."""

from ..check import Check, Lab
from ..machine import Machine
from . import (
    checkpoints,
    compiled,
    environment,
    frameworks,
    graphs,
    loading,
    ranks,
    reproducible,
    speed,
    synchronization,
    training,
)

__all__ = ["Machine", "all_checks"]

LISTED = [
    environment.checks,
    training.checks,
    synchronization.checks,
    frameworks.checks,
    graphs.checks,
    loading.checks,
    reproducible.checks,
    ranks.checks,
    checkpoints.checks,
    speed.checks,
    loading.profiled_checks,
    compiled.checks,
    ranks.compiled_checks,
    speed.compiled_checks,
]


def all_checks(lab: Lab) -> list[Check]:
    """Return every check, for the models and frameworks that were rendered."""
    return [check for checks in LISTED for check in checks(lab)]
