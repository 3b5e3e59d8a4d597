"""Train the network of a rendered `proj` with another loop: the same weights, samples, steps and validation.

    python loops.py LOOP MODEL --config configs/default.yaml

LOOP is one of these. Each prints JSON: the microseconds per step of each block of `log.every` steps, and the loss of
the validation after the last step.

bare       forward, backward and update, on batches that are prepared beforehand; the rates of the schedule as well
tutorial   as in PyTorch's tutorials: a DataLoader of single samples, clipping, a scheduler, and the sum of the losses
nanogpt    the shape of nanoGPT's loop: rows of one array of tokens, the rate computed in each step, clipping
"""

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Setup:
    """What all loops share."""

    def __init__(self, model_name: str, options: list[str]) -> None:
        names = ("config", "components", "data", "model", "optim", "loader", "distributed")
        config, components, data, model, optim, loader, self.distributed = map(_module, names)
        self.cfg = cfg = config.parse(components.Config, options)
        torch.manual_seed(cfg.run.seed)
        self.world = self.distributed.World(0, 1, torch.device("cpu"))
        self.train_set, self.val_set, spec = data.load(cfg.data)
        self.plan = loader.BatchPlan.make(cfg.train, len(self.train_set), 1)
        self.net: nn.Module = model.build(cfg.model, spec)
        self.prepare = data.Prepare(spec, cfg.data)
        self.optimizer: torch.optim.Optimizer = optim.adamw(self.net, cfg.optim)
        self.schedule = optim.OneCycle(cfg.optim, self.plan)
        self.order = list(loader.train_batches(self.plan, self.world, cfg.run.seed, 0))
        self.load: Callable[[Any, list[int]], Any] = loader.load_batch
        self.noisy = model_name in ("vae", "diffusion")
        """Whether the network draws random numbers in each step."""

    def seed(self, step: int) -> None:
        """Seed the noise of a step as the core does, if the network has any."""
        if self.noisy:
            self.distributed.seed_batch(self.world, self.cfg.run.seed, step, 0)

    def prepared(self, loaded: Any, training: bool = True) -> Any:
        """Return the inputs of the network."""
        return self.prepare(loaded, training, torch.default_generator)

    def loss(self, batch: Any) -> Tensor:
        """Return the loss of prepared inputs."""
        found: Tensor = (self.net(**batch) if isinstance(batch, dict) else self.net(*batch))[0]
        return found

    def torch_schedule(self) -> torch.optim.lr_scheduler.OneCycleLR:
        """Return torch's scheduler with the settings of the core's."""
        own = self.cfg.optim
        names = ("pct_start", "div_factor", "final_div_factor", "base_momentum", "max_momentum")
        options = {name: getattr(own, name) for name in names}
        steps = self.plan.total_steps
        return torch.optim.lr_scheduler.OneCycleLR(self.optimizer, self.schedule.peak, total_steps=steps, **options)

    def samples(self) -> DataLoader[Any]:
        """Return a DataLoader of single samples in the order of the run."""
        indices = [index for batch in self.order for index in batch]
        return DataLoader(Samples(self.train_set), self.cfg.train.micro_batch, sampler=indices)

    def validate(self) -> float:
        """Return the loss over the validation samples."""
        metrics = _module("metrics")
        batches, counted = _module("loader").val_batches(len(self.val_set), self.cfg.train.micro_batch, self.world)
        loaded = (self.load(self.val_set, indices) for indices in batches)
        autocast = _module("precision").setup(self.cfg.speed, self.world.device)[1]
        found: dict[str, float] = metrics.evaluate(self.net, loaded, counted, self.prepare, autocast, self.world)
        return found["loss"]


class Samples(Dataset[Any]):
    """Single samples of a set that gives whole batches."""

    def __init__(self, whole: Any) -> None:
        self.tensors = whole.__getitems__(list(range(len(whole))))

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)


def _module(name: str) -> Any:
    return importlib.import_module(f"proj.{name}")


def bare(it: Setup) -> Iterator[None]:
    """Do what no loop can leave out."""
    batches = [it.prepared(it.load(it.train_set, indices)) for indices in it.order]
    rates = []
    for step in range(len(batches)):
        it.schedule.set(it.optimizer, step)
        rates.append((it.optimizer.param_groups[0]["lr"], it.optimizer.param_groups[0]["betas"]))
    for step, batch in enumerate(batches):
        it.seed(step)
        it.loss(batch).backward()
        for group in it.optimizer.param_groups:
            group["lr"], group["betas"] = rates[step]
        it.optimizer.step()
        it.optimizer.zero_grad()
        yield


def tutorial(it: Setup) -> Iterator[None]:
    """Train as PyTorch's tutorials do."""
    schedule, running = it.torch_schedule(), 0.0
    for step, loaded in enumerate(it.samples()):
        it.seed(step)
        it.optimizer.zero_grad()
        loss = it.loss(it.prepared(tuple(loaded)))
        loss.backward()
        nn.utils.clip_grad_norm_(it.net.parameters(), it.cfg.optim.clip)
        it.optimizer.step()
        schedule.step()
        running += loss.item()
        yield


def nanogpt(it: Setup) -> Iterator[None]:
    """Train as nanoGPT does: one process, no loader, the next batch while the present one is computed."""
    tokens = it.train_set.tensors[0]

    def next_batch(indices: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.stack([tokens[index].long() for index in indices])
        return rows[:, :-1], rows[:, 1:]

    batch = next_batch(it.order[0])
    for step in range(len(it.order)):
        it.schedule.set(it.optimizer, step)
        loss = it.loss(batch)
        batch = next_batch(it.order[min(step + 1, len(it.order) - 1)])
        loss.backward()
        nn.utils.clip_grad_norm_(it.net.parameters(), it.cfg.optim.clip)
        it.optimizer.step()
        it.optimizer.zero_grad(set_to_none=True)
        if step % it.cfg.log.every == 0:
            loss.item()
        yield


def timed(steps: Iterator[None], count: int, every: int) -> list[float]:
    """Return the microseconds per step of each block."""
    times = []
    for _ in range(count // every):
        begin = time.perf_counter()
        for _ in range(every):
            next(steps)
        times.append((time.perf_counter() - begin) / every * 1e6)
    return times


def main() -> None:
    """Train with a loop, validate, and print."""
    kind, it = sys.argv[1], Setup(sys.argv[2], sys.argv[3:])
    loops: dict[str, Callable[[Setup], Iterator[None]]] = {"bare": bare, "tutorial": tutorial, "nanogpt": nanogpt}
    times = timed(loops[kind](it), it.plan.total_steps, it.cfg.log.every)
    print(json.dumps({"times": times, "loss": it.validate()}))


if __name__ == "__main__":
    main()
