"""The checks, in the order in which they tell most per second."""

from ..check import Check, Lab
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

MODULES = [
    environment,
    training,
    synchronization,
    frameworks,
    graphs,
    loading,
    reproducible,
    ranks,
    checkpoints,
    compiled,
    speed,
]


def all_checks(lab: Lab) -> list[Check]:
    """Return every check, for the models and frameworks that were rendered."""
    return [check for module in MODULES for check in module.checks(lab)]
