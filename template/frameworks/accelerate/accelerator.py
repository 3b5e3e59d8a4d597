"""The Accelerator of a run: its arguments, and its trackers."""

import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.tracking import get_available_trackers
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, LoggerType, ProfileKwargs

from .config import as_dict
from .distributed import World
from .errors import UserError
from .extras import extras
from .framework import listed, nearest
from .run import Run
from .saved_run import SavedRun

FSDP = "dist.strategy=fsdp, which shards weights, gradients and optimizer state over the ranks"

DECIDED = {
    "cpu": "run.device",
    "device_placement": "run.device",
    "mixed_precision": "speed.precision",
    "gradient_accumulation_steps": "train.accumulate",
    "gradient_accumulation_plugin": "train.accumulate",
    "dynamo_backend": "speed.compile",
    "dynamo_plugin": "speed.compile",
    "split_batches": "train.global_batch",
    "dataloader_config": "loader.*, as batches come from the run's own loader",
    "rng_types": "run.seed, as each batch has random numbers of its own",
    "step_scheduler_with_optimizer": "optim.schedule",
    "fsdp_plugin": FSDP,
    "deepspeed_plugin": f"{FSDP} as DeepSpeed's ZeRO stage 3 does",
    "deepspeed_plugins": f"{FSDP} as DeepSpeed's ZeRO stage 3 does",
    "megatron_lm_plugin": FSDP,
    "torch_tp_plugin": FSDP,
    "parallelism_config": FSDP,
    "DistributedDataParallelKwargs": "dist.static_graph and dist.bf16_gradients",
    "GradScalerKwargs": "speed.precision, as the scaler is the run's",
    "AutocastKwargs": "speed.precision",
    "InitProcessGroupKwargs": "distributed.py, which has created the process group already",
    "AORecipeKwargs": "speed.precision=fp8",
    "TERecipeKwargs": "speed.precision=fp8",
    "MSAMPRecipeKwargs": "speed.precision=fp8",
    "FP8RecipeKwargs": "speed.precision=fp8",
}
"""Arguments of the Accelerator and kinds of `kwargs_handlers` that follow from the config, and what to use instead."""

LAUNCHED_WITH = {
    "FSDP": ("FSDP", "fsdp_plugin"),
    "DEEPSPEED": ("DeepSpeed", "deepspeed_plugin"),
    "MEGATRON_LM": ("Megatron-LM", "megatron_lm_plugin"),
    "PARALLELISM_CONFIG": ("a parallelism config", "parallelism_config"),
}
"""What `accelerate launch` passes on in ACCELERATE_USE_*, and the argument that stands for it."""

OF_TRACKERS = ("project_name", "init_kwargs")
"""Arguments of `Accelerator.init_trackers`; its third follows from the config."""


def check_launch(world: World) -> None:
    """Refuse what `accelerate launch` was asked for, and the config decides.

    Raises:
        UserError: says what to use instead.
    """
    asked = {name for name, value in os.environ.items() if value.lower() in ("1", "true")}
    for variable, (name, argument) in LAUNCHED_WITH.items():
        if f"ACCELERATE_USE_{variable}" in asked:
            raise UserError(f"accelerate launch asks for {name}: launch without it, and use {DECIDED[argument]}")
    if "ACCELERATE_USE_CPU" in asked and world.device.type != "cpu":
        raise UserError(f"accelerate launch asks for the CPU, and the run is on {world.device}: use run.device=cpu")


def check_arguments(arguments: object) -> dict[str, Any]:
    """Return what `extras` in extras.py returned, unless an argument is unknown, or the config decides it.

    Raises:
        UserError: says what to use instead.
    """
    if not isinstance(arguments, Mapping):
        raise UserError(f"extras.py: extras returns {arguments!r}: return a dict of arguments")
    known = {*inspect.signature(Accelerator).parameters, *OF_TRACKERS}
    handlers = [type(handler).__name__ for handler in listed(arguments.get("kwargs_handlers"))]
    for name in [*arguments, *handlers]:
        if name in DECIDED:
            raise UserError(f"extras.py sets {name}: use {DECIDED[name]}")
        if name not in known and name not in handlers:
            raise UserError(f"extras.py: Accelerator has no argument {name}{nearest(name, known)}")
    for handler in listed(arguments.get("kwargs_handlers")):
        if not isinstance(handler, ProfileKwargs):
            raise UserError(f"extras.py: kwargs_handlers has {handler!r}, which is no ProfileKwargs")
    available = [*map(str, get_available_trackers()), "all"]
    for tracker in map(str, listed(arguments.get("log_with"))):
        if tracker in LoggerType.list() and tracker not in available:
            raise UserError(f"extras.py: log_with is {tracker}, which is not installed: pip install {tracker}")
    return dict(arguments)


@contextmanager
def open_accelerator(run: Run) -> Iterator[Accelerator]:
    """Make an Accelerator set up from the config and extras.py, and keep its trackers open while the run trains.

    Raises:
        UserError: the Accelerator does not take an argument, or the config decides it; or a tracker does not start.
    """
    yours = check_arguments(extras(run))
    of_trackers = {name: yours.pop(name) for name in OF_TRACKERS if name in yours}
    try:
        accelerator = _make(run, yours)
        if accelerator.log_with:
            accelerator.init_trackers(
                **{"project_name": __package__, **of_trackers}, config=_flat(as_dict(run.parts.cfg))
            )
    except (ValueError, TypeError, AttributeError, ImportError, OSError) as error:
        raise UserError(f"Accelerate refuses what extras.py returns: {' '.join(str(error).split())}") from error
    SavedRun(run, accelerator)
    if accelerator.trackers:
        run.log.sinks.append(
            lambda split, step, row: accelerator.log({f"{split}/{name}": row[name] for name in row}, step=step)
        )
    try:
        yield accelerator
    finally:
        for tracker in accelerator.trackers:  # `end_training` would end the process group as well
            tracker.finish()


def _make(run: Run, yours: dict[str, Any]) -> Accelerator:
    parts = run.parts
    AcceleratorState._reset_state(reset_partial_state=True)  # it would keep the precision of a previous run
    GradientState._reset_state()
    formats = {"fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}
    ddp = DistributedDataParallelKwargs(
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
        static_graph=parts.cfg.dist.static_graph,
        find_unused_parameters=hasattr(parts.model, "phases"),
    )
    arguments: dict[str, Any] = {
        "project_dir": run.folder / "accelerate",
        **yours,
        "cpu": parts.world.device.type == "cpu",
        "device_placement": False,  # model and batches are on the device already
        "mixed_precision": formats.get(parts.precision.format, "no"),
        "gradient_accumulation_plugin": GradientAccumulationPlugin(parts.plan.accumulate, sync_with_dataloader=False),
        "dynamo_backend": "no",  # the default would be that of `accelerate launch`
        "kwargs_handlers": [ddp, *listed(yours.get("kwargs_handlers"))],
    }
    accelerator = Accelerator(**arguments)
    project = accelerator.project_configuration
    if project.automatic_checkpoint_naming and Path(project.project_dir).resolve() == run.folder.resolve():
        raise UserError("extras.py: automatic_checkpoint_naming would delete checkpoints of the run: use a project_dir")
    if parts.scaler.is_enabled():
        accelerator.scaler = parts.scaler  # saved and resumed with the run
    return accelerator


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str | None]:
    """Return nested values by names such as `optim.lr`, for trackers, which take numbers and words only."""
    found: dict[str, bool | int | float | str | None] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            plain = value is None or isinstance(value, bool | int | float | str)
            found[f"{prefix}{key}"] = value if plain else str(value)
    return found
