"""What all loops of `peers.py` share: network, data and recipe of the rendered project `proj`."""

import importlib
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Setup:
    """What all loops share."""

    def __init__(
        self,
        model_name: str,
        options: list[str],
        turn: int = 1,
    ) -> None:
        data = module("data")
        loader = module("loader")
        optim = module("optim")
        self.turn = turn
        """Steps that a loop makes when it is its turn."""
        self.results: dict[str, float] = {}
        """What `train` returns, if it is the loop."""
        cfg = module("config").parse(module("components").Config, options)
        self.cfg = cfg
        torch.manual_seed(cfg.run.seed)
        self.world = module("distributed").World(0, 1, torch.device("cpu"))
        self.train_set, self.val_set, spec = data.load(cfg.data)
        self.plan = loader.BatchPlan.make(cfg.train, len(self.train_set), 1)
        self.net: nn.Module = module("model").build(cfg.model, spec)
        if cfg.speed.compile == "model":
            self.net.compile(dynamic=False)
        self.prepare = data.Prepare(spec, cfg.data)
        self.optimizer: torch.optim.Optimizer = optim.adamw(self.net, cfg.optim)
        self.schedule = optim.OneCycle(cfg.optim, self.plan)
        self.order = list(loader.train_batches(self.plan, self.world, cfg.run.seed, 0))
        self.load: Callable[[Any, list[int]], Any] = loader.load_batch
        self.seed_batch: Callable[..., object] = module("distributed").seed_batch
        self.compute_loss: Callable[..., Any] = module("loss").compute_loss
        self.noisy = model_name in ("vae", "diffusion")
        """Whether the network draws random numbers in each step."""

    def seed(self, step: int) -> None:
        """Seed the noise of a step as the core does, if the network has any."""
        if self.noisy:
            self.seed_batch(self.world, self.cfg.run.seed, step, 0)

    def prepared(
        self,
        loaded: Any,
        training: bool = True,
    ) -> Any:
        """Return the inputs of the network."""
        return self.prepare(loaded, training, torch.default_generator)

    def loss(self, batch: Any) -> Tensor:
        """Return the loss of prepared inputs."""
        return self.loss_and_metrics(batch)[0]

    def loss_and_metrics(self, batch: Any) -> tuple[Tensor, Any]:
        """Return the loss and the metrics of prepared inputs."""
        result: tuple[Tensor, Any] = self.compute_loss(self.net, batch)
        return result

    def clip(self) -> None:
        """Clip the gradients as the recipe does."""
        nn.utils.clip_grad_norm_(self.net.parameters(), self.cfg.optim.max_grad_norm)

    def batches(self) -> list[Any]:
        """Return the inputs of all steps."""
        batches = []
        for indices in self.order:
            loaded = self.load(self.train_set, indices)
            batches.append(self.prepared(loaded))
        return batches

    def rates(self) -> list[tuple[float, tuple[float, float]]]:
        """Return the learning rate and the betas of all steps."""
        rates = []
        for step in range(len(self.order)):
            self.schedule.set(self.optimizer, step)
            group = self.optimizer.param_groups[0]
            rates.append((group["lr"], group["betas"]))
        return rates

    def torch_schedule(self) -> torch.optim.lr_scheduler.OneCycleLR:
        """Return torch's scheduler with the settings of the core's."""
        cfg = self.cfg.optim
        return torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            self.schedule.peak,
            total_steps=self.plan.total_steps,
            pct_start=cfg.pct_start,
            div_factor=cfg.div_factor,
            final_div_factor=cfg.final_div_factor,
        )

    def samples(self) -> DataLoader[Any]:
        """Return a DataLoader of single samples in the order of the run."""
        return DataLoader(
            Samples(self.train_set),
            self.cfg.train.batch_size,
            sampler=list(chain.from_iterable(self.order)),
        )

    def validate(self) -> float:
        """Return the loss over the validation samples."""
        size = self.cfg.train.batch_size
        batches, counted = module("loader").val_batches(len(self.val_set), size, self.world)
        _, autocast, _ = module("precision").setup(self.cfg.speed, self.world.device)
        results: dict[str, float] = module("metrics").evaluate(
            self.net,
            [self.load(self.val_set, indices) for indices in batches],
            counted,
            self.prepare,
            autocast,
            self.world,
        )
        return results["loss"]


class Samples(Dataset[Any]):
    """Single samples of a set that gives whole batches."""

    def __init__(self, whole: Any) -> None:
        self.tensors = whole.__getitems__(list(range(len(whole))))

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)


class NamedSamples(Samples):
    """Samples as Hugging Face's Trainer wants them: with names."""

    def __getitem__(self, index: int) -> Any:
        parts = super().__getitem__(index)
        return {f"part{number}": part for number, part in enumerate(parts)}


def module(name: str) -> Any:
    """Import a module of the project."""
    return importlib.import_module(f"proj.{name}")
