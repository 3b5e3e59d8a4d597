"""Options of the model: how it is built and changed, the weights it starts from, and what is trained."""

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from .. import speed
from ..config import Config
from ..contracts import no_compile_reason
from ..distributed import World
from ..errors import Unfrozen
from ..hooks import Hook
from ..model import build
from ..speed import Precision


def build_model(cfg: Config, spec: Any, world: World) -> tuple[nn.Module, nn.Module]:
    """Return the model with its initial values, and the model to train: on the device, one and the same.

    For `dist.strategy=fsdp`, the first is on rank 0's CPU, and the second on the meta device until `change_model`
    shards it.

    Raises:
        UserError: it does not fit into memory.
    """
    try:
        if cfg.dist.strategy == "ddp":
            model = speed.place(_built(cfg, spec), cfg.speed, world.device)
            return model, model
        with torch.device("meta"):
            model = _built(cfg, spec)
        return _built(cfg, spec) if world.is_main else model, model
    except (MemoryError, RuntimeError, TypeError) as error:
        from ..model_size import check_memory

        check_memory(cfg.model, error)
        raise


def _built(cfg: Config, spec: Any) -> nn.Module:
    """`lora.rank`: build the model."""
    model = build(cfg.model, spec)
    if cfg.lora.rank is not None:
        from . import lora

        if cfg.train.freeze:
            cfg.train.refuse("freeze", "lora.rank freezes all but lora.modules_to_save; use that, or lora.rank=null")
        lora.apply(model, cfg.lora)
    return model


def change_model(model: nn.Module, initial: nn.Module, cfg: Config, precision: Precision, world: World) -> nn.Module:
    """Change how the model computes, before the optimizer is created; parameter names stay the same.

    Raises:
        UserError: the model does not support an option, or options conflict.
    """
    reason = no_compile_reason(model)
    if cfg.speed.compile != "off" and reason:
        cfg.speed.refuse("compile", f"{reason}; use off")
    if world.world_size > 1:
        from . import ddp

        if cfg.dist.sync_batchnorm:
            model = ddp.sync_batchnorm(model, cfg.dist, world)
        else:
            ddp.scale_momentum(model, world)
    if cfg.train.freeze and cfg.train.unfreeze_step is None:
        from . import freeze

        freeze.freeze(model, cfg.train)
    if precision.format == "fp8":
        from . import fp8

        fp8.convert(model)
    if cfg.speed.activation_checkpointing != "none":
        from . import activation_checkpointing

        activation_checkpointing.apply(model, cfg.speed)
    if cfg.speed.compile == "blocks":
        from . import compile_blocks

        compile_blocks.apply(model, cfg.speed)
    if cfg.dist.strategy == "fsdp":
        from . import fsdp

        fsdp.shard(model, initial, cfg, precision.format == "bf16", world)
    return model


def start_weights(
    cfg: Config, model: nn.Module, hooks: Sequence[Hook], progress: Any, resumed: object
) -> dict[str, str]:
    """`train.init_from` and `train.unfreeze_step`: load the weights of a new run, and freeze those that are frozen now.

    Returns what to say about it.

    Raises:
        UserError: the weights do not fit, or the options do not.
    """
    said: dict[str, str] = {}
    if cfg.train.unfreeze_step is not None:
        from . import freeze

        said = freeze.begin(model, cfg, progress.step, progress.total_steps)
    if cfg.train.init_from is not None and not resumed:
        from . import init_from

        said = init_from.load(model, hooks) | said
    return said


def unfreeze_step(cfg: Config, step: int) -> int | None:
    """Return `train.unfreeze_step` if it is still to come."""
    end = cfg.train.unfreeze_step
    return end if end is not None and step < end else None


def unfreezing(train: Callable[..., dict[str, float]]) -> Callable[..., dict[str, float]]:
    """`train.unfreeze_step`: let `train` resume the run there, as what it is made of depends on what is trained."""

    @wraps(train)
    def train_and_resume(cfg: Config, world: World, hooks: Iterable[Hook] = ()) -> dict[str, float]:
        hooks = tuple(hooks)
        while True:
            try:
                with _ended_workers(cfg):
                    return train(cfg, world, hooks)
            except Unfrozen as ended:
                cfg = replace(cfg, run=replace(cfg.run, resume=str(ended)))
            gc.collect()  # frees the memory of what was frozen

    return train_and_resume


def _ended_workers(cfg: Config) -> AbstractContextManager[None]:
    if cfg.train.unfreeze_step is None:
        return nullcontext()
    from ..loader_worker import ended_workers

    return ended_workers()


def fine_tuning(cfg: Config) -> dict[str, Any]:
    """Return the options that are set of those that decide which weights a run starts from, and trains."""
    keys = ("init_from", "init_map", "freeze", "unfreeze_step")
    found = {f"train.{key}": value for key in keys if (value := getattr(cfg.train, key))}
    return found | ({"lora": asdict(cfg.lora)} if cfg.lora.rank is not None else {})


def plain_weights(weights: Mapping[str, Tensor], cfg: Config) -> dict[str, Tensor]:
    """`lora.rank`: return the weights of a checkpoint as those of the model without LoRA."""
    if cfg.lora.rank is None:
        return dict(weights)
    from . import lora

    return lora.merge(weights, cfg.lora)
