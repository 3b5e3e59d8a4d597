"""What a run is made of, built from its config: data, model, optimizer, schedule, and the hooks of its options."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from . import data, distributed, faults, loaders, optim, speed, techniques
from .config import Config
from .contracts import Batch, Data, check_data, in_memory, loss_and_metrics, map_tensors, no_weight_decay
from .distributed import World
from .faults import provenance, samples
from .hooks import Hook
from .loaders import Plan
from .progress import Best
from .speed import Precision


@dataclass(frozen=True)
class Parts:
    """All objects that stay the same throughout a run."""

    cfg: Config
    world: World
    precision: Precision
    data: Data
    plan: Plan
    eval_order: loaders.EvalOrder
    workers: int
    """Loader processes of this rank."""
    prepare: nn.Module
    """Turns a batch as loaded into the model's input, on the device."""
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    schedule: optim.Schedule
    hooks: tuple[Hook, ...]

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same in every process that continues this run; in the manifest of each checkpoint."""
        run: dict[str, Any] = {"model": asdict(self.cfg.model), "data": asdict(self.data.spec)}
        run |= {"train samples": self.plan.samples, "global batch": self.plan.global_batch}
        if no_weight_decay(self.model):  # the parameter groups that the optimizer's state belongs to
            run["no_weight_decay"] = sorted(no_weight_decay(self.model))
        if scales := getattr(self.model, "lr_scale", None):
            run["lr_scale"] = dict(scales)
        run |= techniques.fine_tuning(self.cfg)
        return run | {"run.seed": self.cfg.run.seed, "optim.name": self.cfg.optim.name}

    def describe(self) -> dict[str, str]:
        """Return what the run consists of, for its first lines."""
        plan, epochs = self.plan, round(self.plan.total_steps / self.plan.steps_per_epoch, 2)
        weights = sum(parameter.numel() for parameter in self.model.parameters())
        trained = sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)
        compiled = "" if self.cfg.speed.compile == "off" else "; torch.compile makes the first steps slow"
        division = f": {plan.world_size} x {plan.accumulate} x {plan.micro_batch} (ranks x accumulate x micro_batch)"
        hint = getattr(self.data, "hint", "")
        loading = {"loading": f"loader.workers={self.workers} per rank{f'; {hint}' * bool(hint)}"}
        return {
            "device": distributed.describe(self.world),
            "precision": f"{self.precision.format}{compiled}",
            "parameters": f"{weights:,}{f', of which {trained:,} are trained' * (trained < weights)}",
            "optimizer": techniques.describe_optimizer(self.optimizer, self.cfg.optim.name),
            "samples": f"{plan.samples:,} for training, {len(self.data.val):,} for validation",
            **(loading if not in_memory(self.data) else {}),
            "batch": f"{plan.global_batch:,} samples{division if plan.global_batch != plan.micro_batch else ''}",
            "steps": f"{plan.total_steps:,} in {epochs:,g} epoch{'s' * (epochs != 1)}",
        }


def build(cfg: Config, world: World, added: Iterable[Hook] = ()) -> Parts:
    """Build everything that training needs, with hooks that are `added`, and refuse what does not fit together.

    Raises:
        UserError: the config does not fit the data, the model or the machine.
    """
    added = [*added]
    torch.manual_seed(cfg.run.seed)
    precision = speed.setup(cfg, world.device)
    dataset: Data = techniques.load(cfg.data)
    check_data(data, dataset)
    plan = Plan.make(cfg.train, len(dataset.train), world.world_size)
    eval_order = loaders.EvalOrder(len(dataset.val), plan.micro_batch, world.rank, world.world_size)
    workers = techniques.worker_count(cfg.loader, dataset, world, cfg.run.cpu_affinity)
    prepare: nn.Module = data.Prepare(dataset.spec, cfg.data).to(world.device)
    initial, plain = techniques.build_model(cfg, dataset.spec, world)

    @cache
    def first_batch() -> Batch:
        """A validation batch, prepared."""
        loaded = map_tensors(lambda part: part.to(world.device), dataset.val.__getitems__(next(iter(eval_order))))
        batch: Batch = prepare(loaded, False, torch.Generator(world.device))
        return batch

    techniques.check(cfg, plan.accumulate, precision, world)
    hooks = techniques.debug_hooks(cfg, world, initial, first_batch, plan.total_steps)
    if all(type(hook).on_validation is Hook.on_validation for hook in added):  # which may add it
        _check_monitor(cfg, plain, first_batch, precision)
    net = techniques.change_model(plain, initial, cfg, precision, world)
    optimizer = techniques.build_optimizer(net, cfg.optim)
    peak_lr = optim.peak_lr(cfg.optim, plan.global_batch)
    schedule = techniques.build_schedule(cfg.optim, peak_lr, plan.total_steps)
    schedule(0)  # refuses a warm-up that is longer than the run
    hooks += [provenance.Provenance(dataset, world), samples.Samples(dataset, world)]
    hooks += techniques.hooks(cfg, net, dataset.spec, first_batch, precision, world, plan.total_steps, peak_lr)
    hooks += [*faults.hooks(cfg), *added]
    return Parts(
        cfg=cfg,
        world=world,
        precision=precision,
        data=dataset,
        plan=plan,
        eval_order=eval_order,
        workers=workers,
        prepare=prepare,
        model=net,
        optimizer=optimizer,
        scaler=precision.scaler(),
        schedule=schedule,
        hooks=tuple(hooks),
    )


def _check_monitor(cfg: Config, net: nn.Module, batch: Callable[[], Batch], precision: Precision) -> None:
    """Refuse a wrong `train.monitor` at the start, and not after the first validation."""
    if cfg.train.monitor != "loss":
        net.eval()
        with torch.no_grad(), precision.autocast():  # under FSDP on the meta device, as only the names matter
            _, metrics = loss_and_metrics(
                net, map_tensors(lambda part: part.to(next(net.parameters()).device), batch())
            )
        net.train()
        starts = {
            f"{name}_" * bool(name) for name, value in metrics.items() if callable(value[0])
        }  # it may return a dict
        if not cfg.train.monitor.startswith(tuple(starts)):
            Best(cfg.train.monitor, cfg.train.monitor_mode or "min").check(metrics)
