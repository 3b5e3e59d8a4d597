"""Image segmentation with a trained model: a confusion matrix of pixels, and masks of new images.

python -m <package>.tools.predict runs/first images/ more.jpg --output predictions --overlay
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor, nn

from ..data import Batch, Spec
from ..distributed import World
from ..errors import UserError
from ..readers.decoding import find_images, load_image
from ..readers.mask_folder import displayed_size
from ..readers.unreadable import UnreadableError
from .atomic_file import atomic_write
from .trained_model import TrainedModel
from .view import palette, plot_masks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOUT = "Segment images: predict the class of each pixel."
MAX_CLASSES = 20
"""Maximum number of classes to print the confusion matrix."""

Pixels = NDArray[np.uint8]


class Details:
    """The confusion matrix of pixels, accumulated on the device."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.classes, self.ignore = spec.classes, spec.ignore
        self.pairs = torch.zeros(len(spec.classes) ** 2, dtype=torch.int64, device=device)

    def add(self, net: Any, batch: Batch) -> None:
        """Add a prepared batch."""
        images, masks = batch
        pairs = masks * len(self.classes) + net.predict(images).argmax(1)
        counted = pairs.flatten() if self.ignore is None else pairs[masks != self.ignore]
        self.pairs += torch.bincount(counted, minlength=len(self.pairs))

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Over all ranks: the confusion matrix, with one row per true class, and the metrics derived from it."""
        matrix = world.all_reduce(self.pairs).view(len(self.classes), -1).cpu()
        by_class = {}
        for index, name in enumerate(self.classes):
            hits, true, predicted = int(matrix[index, index]), int(matrix[index].sum()), int(matrix[:, index].sum())
            by_class[name] = {
                "iou": _fraction(hits, true + predicted - hits),
                "precision": _fraction(hits, predicted),
                "recall": _fraction(hits, true),
                "pixels": true,
            }
        present = [found["iou"] for found in by_class.values() if found["iou"] is not None]
        values = {
            "pixel_accuracy": _fraction(int(matrix.trace()), int(matrix.sum())),
            "mean_iou": sum(present) / len(present) if present else None,
            "classes": by_class,
            "confusion": matrix.tolist(),
        }
        return values, _scores(by_class) + (
            _confusion(self.classes, matrix) if len(self.classes) <= MAX_CLASSES else ""
        )


def _fraction(part: int, total: int) -> float | None:
    return part / total if total else None


def _scores(by_class: dict[str, dict[str, Any]]) -> str:
    width = max(5, *map(len, by_class))
    lines = [f"\n{'class':{width}}     iou  precision  recall      pixels"]
    for name, found in by_class.items():
        iou, precision, recall = (
            "-" if found[key] is None else f"{found[key]:.4f}" for key in ("iou", "precision", "recall")
        )
        lines.append(f"{name:{width}}  {iou:>6}  {precision:>9}  {recall:>6}  {found['pixels']:>10}")
    return "\n".join(lines) + "\n"


def _confusion(classes: tuple[str, ...], matrix: Tensor) -> str:
    """The matrix in percent of the pixels of each true class."""
    heads = [name if len(name) <= 6 else f"{name[:5]}." for name in classes]
    width = max(9, *map(len, classes))
    lines = [f"\n{'true|pred':{width}} " + "".join(f"{head:>7}" for head in heads) + "  (% of the true class)"]
    for name, row in zip(classes, matrix.tolist(), strict=True):
        cells = [f"{100 * count / sum(row):.1f}" if count else "." for count in row]
        lines.append(f"{name:{width}} " + "".join(f"{cell:>7}" for cell in cells))
    return "\n".join(lines) + "\n"


def plot(trained: TrainedModel, batch: Batch) -> "Figure":
    """Up to 12 images of a prepared batch, each with its mask and the predicted mask."""
    images, masks = (part[:12] for part in batch)
    with trained.precision.autocast():
        predicted = trained.net.predict(images).argmax(1)
    return plot_masks(images.cpu(), {"mask": masks.cpu(), "predicted mask": predicted.cpu()}, trained.spec)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the inputs and the output."""
    parser.add_argument("inputs", type=Path, nargs="+", help="images, and folders of images")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("predictions"),
        help="folder for a PNG mask per image, or a .json file for the fraction of pixels of each class",
    )
    parser.add_argument("--overlay", action="store_true", help="also write each image with its mask as an overlay")
    parser.add_argument("--batch", type=int, default=16, help="batch size")


def predict(trained: TrainedModel, args: argparse.Namespace) -> None:
    """Write a mask per image, of the size of the image, with the values of the training masks and a palette.

    Raises:
        UserError: an image cannot be read, or an output cannot be written.
    """
    if args.batch < 1:
        raise UserError(f"--batch {args.batch}: it must be 1 or above")
    to_json = args.output.suffix == ".json"
    if to_json and args.overlay:
        raise UserError(f"--overlay needs a folder, not --output {args.output}")
    targets = _targets(args.inputs, args.output)
    files, classes, fractions = list(targets), trained.spec.classes, []
    module = Segmenter(trained)
    for begin in range(0, len(files), args.batch):
        chosen = files[begin : begin + args.batch]
        images = torch.stack([load_image(file, trained.spec.size, trained.spec.channels) for file in chosen]).to(
            trained.device
        )
        with trained.precision.autocast():
            logits = module(images)
        for file, found in zip(chosen, logits, strict=True):
            mask = _resized_argmax(found, _size(file)).cpu().numpy()
            if to_json:
                counts = np.bincount(mask.reshape(-1), minlength=len(classes)) / mask.size
                fractions.append({"file": str(file), "pixels": dict(zip(classes, counts.tolist(), strict=True))})
                continue
            values = np.asarray(trained.spec.values, np.uint8)[mask]
            _save(_with_palette(values), targets[file])
            if args.overlay:
                _save(_overlay(file, values), targets[file].with_suffix(".overlay.png"))
    if to_json:
        with atomic_write(args.output) as target:
            target.write_text(json.dumps(fractions, indent=1) + "\n", encoding="utf-8")
    print(f"{len(files)} images segmented in {args.output}")


def _targets(inputs: list[Path], folder: Path) -> dict[Path, Path]:
    """The mask file of each image, with the same relative path in `folder` as the image in the input."""
    found: dict[Path, Path] = {}
    taken: dict[Path, Path] = {}
    for path in inputs:
        for file in find_images([path]):
            name = file.relative_to(path) if path.is_dir() else Path(file.name)
            found[file] = (folder / name).with_suffix(".png")
    sources = {file.resolve() for file in found}
    for file, target in found.items():
        if target in taken:
            raise UserError(f"{taken[target]} and {file} would both be written to {target}: predict them one at a time")
        if target.resolve() in sources:
            raise UserError(f"the mask of {file} would overwrite the image {target}: give another --output")
        taken[target] = file
    return found


def _size(file: Path) -> tuple[int, int]:
    try:
        return displayed_size(file)
    except UnreadableError as error:
        raise UserError(f"cannot read the image {file} ({error}): fix or remove it") from error


def _resized_argmax(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """The most likely class per pixel, after resizing (classes, size, size) logits to width and height.

    Resized one class at a time to save memory.
    """
    width, height = size
    best = torch.full((height, width), -torch.inf, device=logits.device)
    mask = torch.zeros((height, width), dtype=torch.int64, device=logits.device)
    for index, plane in enumerate(logits):
        resized = F.interpolate(plane[None, None], (height, width), mode="bilinear", align_corners=False)[0, 0]
        mask = torch.where(resized > best, index, mask)
        best = torch.maximum(resized, best)
    return mask


def _with_palette(values: Pixels) -> Image.Image:
    image = Image.fromarray(values)
    image.putpalette(palette().tobytes())
    return image


def _overlay(file: Path, values: Pixels) -> Image.Image:
    """The image, blended with the colors of the classes; black in the palette leaves it unchanged."""
    with Image.open(file) as image:
        pixels = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    colors = palette()[values]
    blended = np.where(colors.any(-1, keepdims=True), pixels // 2 + colors // 2, pixels)
    return Image.fromarray(blended)


def _save(image: Image.Image, target: Path) -> None:
    with atomic_write(target) as file:
        target.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)


class Segmenter(nn.Module):
    """Images as loaded, uint8 (n, channels, size, size), to class logits (n, classes, size, size), fp32."""

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.net, self.prepare = trained.net, trained.prepare

    def forward(self, images: Tensor) -> Tensor:
        prepared, _ = self.prepare((images, images[:, 0]), False, torch.default_generator)  # masks are unused
        logits: Tensor = self.net.predict(prepared)
        return logits.float()


def export_module(trained: TrainedModel) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module to export, and example inputs."""
    spec = trained.spec
    levels = torch.randint(0, 256, (2, spec.channels, spec.size, spec.size), dtype=torch.uint8)
    return Segmenter(trained), (levels,)
