"""Image generation with a trained diffusion model: the loss at all times, and new images.

python -m <package>.tools.predict runs/first --count 64 --output samples.png
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..contracts import Batch
from ..data import Spec
from ..distributed import World
from ..errors import UserError
from .image_grid import check_output, plot_rows, write_new
from .trained_model import TrainedModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOUT = "Sample new images."
INTERVALS = 8
"""Number of equal intervals of time for which the loss is evaluated."""
BATCH = 64
"""Images that are sampled at once."""


class Details:
    """The loss in each interval of time, from noise to image: each image has one time in each."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.sums = torch.zeros(INTERVALS + 1, device=device)

    def add(self, net: Any, batch: Batch) -> None:
        """Add a prepared batch."""
        images = batch[0]
        noise, times = net.fixed_draws(images)
        parts = [net.errors(images, noise, (times + number) / INTERVALS).sum() for number in range(INTERVALS)]
        self.sums += torch.stack([*parts, self.sums.new_tensor(len(images))])

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Over all ranks: the mean over all times, and that of each interval."""
        *sums, count = world.all_reduce(self.sums).tolist()
        losses = [total / count for total in sums]
        lines = [f"\n{'time':16}{'loss':>8}"]
        for number, loss in enumerate(losses):
            lines.append(f"{number / INTERVALS:.3f} to {(number + 1) / INTERVALS:.3f}  {loss:>8.4f}")
        values = {"loss_at_all_times": sum(losses) / INTERVALS, "loss_by_time": losses}
        lines.append(f"{'all':16}{values['loss_at_all_times']:>8.4f}")
        return values, "\n".join(lines) + "\n"


def plot(trained: TrainedModel, batch: Batch, columns: int = 12) -> "Figure":
    """Validation images, and new images, in rows."""
    new = sample(trained, 3 * columns, 0)
    rows = {"validation": trained.net.pixels(batch[0][:columns]), "new": new[:columns]}
    rows |= {" " * number: new[number * columns : (number + 1) * columns] for number in (1, 2)}
    return plot_rows(rows, columns)


def sample(trained: TrainedModel, count: int, seed: int, **options: int) -> Tensor:
    """New images (count, channels, size, size) with values from 0 to 1, some at a time, as memory is limited."""
    generator, parts = torch.Generator(trained.device).manual_seed(seed), []
    with trained.precision.autocast():
        for begin in range(0, count, BATCH):
            parts.append(trained.net.sample(min(BATCH, count - begin), generator, **options).cpu())
    return torch.cat(parts)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the number of new images, how to sample them, and the output."""
    parser.add_argument("--count", type=int, default=64, help="number of new images")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--steps", type=int, default=16, help="steps of Heun's method from noise to image")
    parser.add_argument("--output", type=Path, default=Path("images.png"), help="output file, a .png")


def predict(trained: TrainedModel, args: argparse.Namespace) -> None:
    """Write a grid of new images.

    Raises:
        UserError: an option is out of range, or the output cannot be written.
    """
    check_output(args.output, args.count)
    if args.steps < 1:
        raise UserError(f"--steps {args.steps}: it must be 1 or above")
    write_new(sample(trained, args.count, args.seed, steps=args.steps), args.output)


class Velocity(nn.Module):
    """Points between noise and image (n, channels, size, size), and their times (n,), to what a sampler needs.

    Returns the velocities, and the images to which they lead, with values from 0 to 1. A new image begins as standard
    normal noise at time 0; `point += velocity * (then - now)` is a step of Euler's method.
    """

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.net = trained.net

    def forward(self, points: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        velocities: Tensor = self.net.predict(points, times)
        return velocities, self.net.pixels(points + (1 - times).view(-1, 1, 1, 1) * velocities)


def export_module(trained: TrainedModel) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module to export, and example inputs."""
    return Velocity(trained), (torch.randn(2, *trained.net.shape), torch.tensor([0.3, 0.8]))
