"""Image generation with a trained autoencoder: the parts of the loss, reconstructions, and new images.

python -m <package>.tools.predict runs/first --count 64 --output samples.png
python -m <package>.tools.predict runs/first images/ --output pairs.png
"""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..contracts import Batch
from ..data import Spec
from ..distributed import World
from ..readers.decoding import find_images, load_image
from .atomic_file import atomic_write
from .image_grid import check_output, grid, plot_rows, write_new
from .trained_model import TrainedModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOUT = "Sample new images, or reconstruct given ones."
PARTS = ("reconstruction", "kl", "bits_per_dim")
ACTIVE = 0.01
"""Minimum variance of a latent's mean over images for it to count as active: Burda et al. 2015, arXiv:1509.00519."""


class Details:
    """The parts of the loss in bits, and the number of active latents."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.size = spec.channels * spec.size**2
        self.parts = torch.zeros(len(PARTS) + 1, device=device)
        self.means: Tensor | None = None

    def add(self, net: Any, batch: Batch) -> None:
        """Add a prepared batch."""
        _, metrics = net(*batch)
        count = metrics[PARTS[0]][1]
        self.parts += torch.stack([*(metrics[name][0] for name in PARTS), torch.as_tensor(count).to(self.parts)])
        mean, _ = net.encode(batch[0])
        sums = torch.stack([mean.sum(0), (mean**2).sum(0)])
        self.means = sums if self.means is None else self.means + sums

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Over all ranks: bits per dimension and per image for each part, and the number of active latents."""
        assert self.means is not None
        *parts, count = world.all_reduce(self.parts).tolist()
        mean, square = world.all_reduce(self.means) / count
        active = int((square - mean**2 > ACTIVE).sum())
        values = {"bits_per_image": parts[-1] / count * self.size, "active_latents": active, "latents": len(mean)}
        lines = [f"\n{'':16}bits per dimension  bits per image"]
        for name, total in zip(PARTS, parts, strict=True):
            lines.append(f"{name:16}{total / count:>18.4f}{total / count * self.size:>16.1f}")
        lines.append(f"\n{active} of {len(mean)} latents are active")
        return values, "\n".join(lines) + "\n"


def plot(trained: TrainedModel, batch: Batch, columns: int = 12) -> "Figure":
    """Validation images, their reconstructions, and new images, in rows."""
    images, spec = batch[0][:columns], trained.spec
    with trained.precision.autocast():
        reconstructed = trained.net.predict(images)
        new = trained.net.sample(2 * columns, torch.Generator(trained.device).manual_seed(0))
    mean, std = (torch.tensor(values, device=trained.device).view(-1, 1, 1) for values in (spec.mean, spec.std))
    shown = (images * std + mean).clamp(0, 1)
    rows = {"validation": shown, "reconstructed": reconstructed, "new": new[:columns], "": new[columns:]}
    return plot_rows(rows, columns)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the inputs, the number of new images, and the output."""
    parser.add_argument(
        "inputs",
        type=Path,
        nargs="*",
        help="images to reconstruct, and folders of images; without any, new images are sampled",
    )
    parser.add_argument("--count", type=int, default=64, help="number of new images")
    parser.add_argument("--seed", type=int, default=0, help="random seed for new images")
    parser.add_argument("--output", type=Path, default=Path("images.png"), help="output file, a .png")


def predict(trained: TrainedModel, args: argparse.Namespace) -> None:
    """Write a grid of new images, or of inputs next to their reconstructions.

    Raises:
        UserError: an image cannot be read, or the output cannot be written.
    """
    check_output(args.output, args.count)
    if not args.inputs:
        with trained.precision.autocast():
            images = trained.net.sample(args.count, torch.Generator(trained.device).manual_seed(args.seed))
        write_new(images, args.output)
        return
    module, files = Reconstruction(trained), find_images(args.inputs)
    pairs, shape = [], (trained.spec.size, trained.spec.channels)
    for begin in range(0, len(files), 64):
        levels = torch.stack([load_image(file, *shape) for file in files[begin : begin + 64]]).to(trained.device)
        with trained.precision.autocast():
            pairs.append(torch.stack([levels / 255, module(levels)], dim=1).flatten(0, 1))
    with atomic_write(args.output) as target:
        grid(torch.cat(pairs), 2 * math.ceil(math.sqrt(len(files) / 2))).save(target)
    print(f"{len(files)} pairs of an image and its reconstruction in {args.output}")


class Reconstruction(nn.Module):
    """Images as loaded, uint8 (n, channels, size, size), to reconstructions with values from 0 to 1, fp32."""

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.net, self.prepare = trained.net, trained.prepare

    def forward(self, images: Tensor) -> Tensor:
        prepared, _ = self.prepare((images, images), False, torch.default_generator)  # labels are unused
        reconstructions: Tensor = self.net.predict(prepared)
        return reconstructions


def export_module(trained: TrainedModel) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module to export, and example inputs."""
    spec = trained.spec
    levels = torch.randint(0, 256, (2, spec.channels, spec.size, spec.size), dtype=torch.uint8)
    return Reconstruction(trained), (levels,)
