"""What all loops of `peers.py` share: the network, data and recipe of the rendered project `proj`."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Setup:
    """What all loops share."""

    def __init__(self, model_name: str, options: list[str], turn: int = 1) -> None:
        names = ("config", "components", "data", "model", "optim", "loader", "distributed")
        config, components, data, model, optim, loader, self.distributed = map(module, names)
        self.turn = turn
        """Steps that a loop makes when it is its turn."""
        self.results: dict[str, float] = {}
        """What `train` returns, if it is the loop."""
        self.cfg = cfg = config.parse(components.Config, options)
        torch.manual_seed(cfg.run.seed)
        self.world = self.distributed.World(0, 1, torch.device("cpu"))
        self.train_set, self.val_set, spec = data.load(cfg.data)
        self.plan = loader.BatchPlan.make(cfg.train, len(self.train_set), 1)
        self.net: nn.Module = model.build(cfg.model, spec)
        if cfg.speed.compile == "model":
            self.net.compile(dynamic=False)
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
        return self.call(batch)[0]

    def call(self, batch: Any) -> tuple[Tensor, Any]:
        """Return the loss and the metrics of prepared inputs."""
        found: tuple[Tensor, Any] = (
            self.net(**batch) if isinstance(batch, dict) else self.net(*batch)
        )
        return found

    def batches(self) -> list[Any]:
        """Return the inputs of all steps."""
        return [self.prepared(self.load(self.train_set, indices)) for indices in self.order]

    def rates(self) -> list[tuple[float, tuple[float, float]]]:
        """Return the learning rate and the betas of all steps."""
        rates = []
        for step in range(len(self.order)):
            self.schedule.set(self.optimizer, step)
            rates.append(
                (self.optimizer.param_groups[0]["lr"], self.optimizer.param_groups[0]["betas"])
            )
        return rates

    def torch_schedule(self) -> torch.optim.lr_scheduler.OneCycleLR:
        """Return torch's scheduler with the settings of the core's."""
        own = self.cfg.optim
        names = ("pct_start", "div_factor", "final_div_factor", "base_momentum", "max_momentum")
        options = {name: getattr(own, name) for name in names}
        steps = self.plan.total_steps
        return torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, self.schedule.peak, total_steps=steps, **options
        )

    def samples(self) -> DataLoader[Any]:
        """Return a DataLoader of single samples in the order of the run."""
        indices = [index for batch in self.order for index in batch]
        return DataLoader(Samples(self.train_set), self.cfg.train.micro_batch, sampler=indices)

    def validate(self) -> float:
        """Return the loss over the validation samples."""
        metrics = module("metrics")
        batches, counted = module("loader").val_batches(
            len(self.val_set), self.cfg.train.micro_batch, self.world
        )
        loaded = (self.load(self.val_set, indices) for indices in batches)
        autocast = module("precision").setup(self.cfg.speed, self.world.device)[1]
        found: dict[str, float] = metrics.evaluate(
            self.net, loaded, counted, self.prepare, autocast, self.world
        )
        return found["loss"]


class Samples(Dataset[Any]):
    """Single samples of a set that gives whole batches."""

    def __init__(self, whole: Any) -> None:
        self.tensors = whole.__getitems__(list(range(len(whole))))

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)


def module(name: str) -> Any:
    """Import a module of the project."""
    return importlib.import_module(f"proj.{name}")
