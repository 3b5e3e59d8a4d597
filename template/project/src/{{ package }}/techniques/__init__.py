"""The techniques that are off by default, one per module, imported only when their option is on.

Each function here looks at an option and calls its module; with the option off it does the default, or nothing.
"""

from ._data import cache_on_device, load, worker_count
from ._model import build_model, change_model, fine_tuning, plain_weights, start_weights, unfreeze_step, unfreezing
from ._ranks import (
    compress_gradients,
    find_checkpoint,
    gradient_sync,
    own_cores,
    processes_to_start,
    read_state,
    shards,
    start_processes,
    sync_buffers,
)
from ._step import (
    build_optimizer,
    build_schedule,
    capture_step,
    check,
    debug_hooks,
    describe_optimizer,
    hooks,
    skipped_steps,
)

__all__ = [
    "build_model",
    "build_optimizer",
    "build_schedule",
    "cache_on_device",
    "capture_step",
    "change_model",
    "check",
    "compress_gradients",
    "debug_hooks",
    "describe_optimizer",
    "find_checkpoint",
    "fine_tuning",
    "gradient_sync",
    "hooks",
    "load",
    "own_cores",
    "plain_weights",
    "processes_to_start",
    "read_state",
    "shards",
    "skipped_steps",
    "start_processes",
    "start_weights",
    "sync_buffers",
    "unfreeze_step",
    "unfreezing",
    "worker_count",
]
