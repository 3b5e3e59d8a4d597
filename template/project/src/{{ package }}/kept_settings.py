"""Restores what a run sets for its whole process: for a notebook, which goes on after it."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_cudnn: Any = torch.backends.cudnn
PRECISIONS: list[tuple[Any, str]] = [
    (torch.backends.cuda.matmul, "fp32_precision"),
    (_cudnn, "fp32_precision"),
    (_cudnn.conv, "fp32_precision"),
    (_cudnn.rnn, "fp32_precision"),
    (_cudnn, "benchmark"),
]
"""Where `speed.py`, `cuda.py` and the frameworks set precisions and the autotuner."""


@contextmanager
def settings_kept(compiles: bool) -> Iterator[None]:
    """Restore random number generators, torch's settings, warning filters and environment variables."""
    before = [getattr(place, name) for place, name in PRECISIONS]
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    anomaly, environment = torch.is_anomaly_enabled(), dict(os.environ)
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    with ExitStack() as kept:
        kept.enter_context(warnings.catch_warnings())
        kept.enter_context(_generators_kept())
        if compiles:
            kept.enter_context(_compiler_kept())
        try:
            yield
        finally:
            for (place, name), value in zip(PRECISIONS, before, strict=True):
                if getattr(place, name) != value:
                    setattr(place, name, value)
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
            torch.autograd.set_detect_anomaly(anomaly)
            logger.setLevel(level)
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            os.environ.update(environment)


@contextmanager
def _generators_kept() -> Iterator[None]:
    found = torch.accelerator.current_accelerator(check_available=True)
    device: Any = torch.get_device_module(found) if found else None
    on_device = device.get_rng_state() if device else None
    with torch.random.fork_rng(devices=[]):
        yield
    if device:
        device.set_rng_state(on_device)


@contextmanager
def _compiler_kept() -> Iterator[None]:
    """Restore what `speed.compile` and `speed.activation_checkpointing` set."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch

    limit, budget = dynamo.recompile_limit, functorch.activation_memory_budget
    try:
        yield
    finally:
        dynamo.recompile_limit, functorch.activation_memory_budget = limit, budget
