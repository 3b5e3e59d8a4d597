"""Segmenting images: how well each class is told from the others by pixels, and masks of new pictures.

python -m <package>.tools.predict runs/first pictures/ more.jpg --output predictions --overlay
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
from ..readers.common import UnreadableError
from ..readers.images import named, opened
from ..readers.masks import shape_of
from .atomic_file import whole
from .trained_model import Trained
from .view import palette, strips

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOUT = "Say of each pixel of images to which class it belongs."
MOST = 20
"""Classes up to which the whole confusion matrix is shown."""

Pixels = NDArray[np.uint8]


class Details:
    """Which class was taken for which, pixel by pixel."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.classes, self.ignore = spec.classes, spec.ignore
        self.pairs = torch.zeros(len(spec.classes) ** 2, dtype=torch.int64, device=device)

    def add(self, net: Any, batch: Batch) -> None:
        """Take in a prepared batch."""
        images, masks = batch
        pairs = masks * len(self.classes) + net.predict(images).argmax(1)
        counted = pairs.flatten() if self.ignore is None else pairs[masks != self.ignore]
        self.pairs += torch.bincount(counted, minlength=len(self.pairs))

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Over all ranks: the confusion matrix (a row a true class), and what follows from it."""
        matrix = world.all_reduce(self.pairs).view(len(self.classes), -1).cpu()
        by_class = {}
        for index, name in enumerate(self.classes):
            hits, true, said = int(matrix[index, index]), int(matrix[index].sum()), int(matrix[:, index].sum())
            by_class[name] = {
                "iou": _share(hits, true + said - hits),
                "precision": _share(hits, said),
                "recall": _share(hits, true),
                "pixels": true,
            }
        there = [found["iou"] for found in by_class.values() if found["iou"] is not None]
        values = {
            "pixel_accuracy": _share(int(matrix.trace()), int(matrix.sum())),
            "mean_iou": sum(there) / len(there) if there else None,
            "classes": by_class,
            "confusion": matrix.tolist(),
        }
        return values, _scores(by_class) + (_whole(self.classes, matrix) if len(self.classes) <= MOST else "")


def _share(part: int, of: int) -> float | None:
    return part / of if of else None


def _scores(by_class: dict[str, dict[str, Any]]) -> str:
    wide = max(5, *map(len, by_class))
    lines = [f"\n{'class':{wide}}     iou  precision  recall      pixels"]
    for name, found in by_class.items():
        iou, precision, recall = (
            "-" if found[key] is None else f"{found[key]:.4f}" for key in ("iou", "precision", "recall")
        )
        lines.append(f"{name:{wide}}  {iou:>6}  {precision:>9}  {recall:>6}  {found['pixels']:>10}")
    return "\n".join(lines) + "\n"


def _whole(classes: tuple[str, ...], matrix: Tensor) -> str:
    """The matrix in percent of each true class's pixels."""
    heads = [name if len(name) <= 6 else f"{name[:5]}." for name in classes]
    wide = max(9, *map(len, classes))
    lines = [f"\n{'true|said':{wide}} " + "".join(f"{head:>7}" for head in heads) + "  (% of the true class)"]
    for name, row in zip(classes, matrix.tolist(), strict=True):
        cells = [f"{100 * count / sum(row):.1f}" if count else "." for count in row]
        lines.append(f"{name:{wide}} " + "".join(f"{cell:>7}" for cell in cells))
    return "\n".join(lines) + "\n"


def picture(trained: Trained, batch: Batch) -> "Figure":
    """Up to 12 images of a prepared batch, each with its mask and then with the model's."""
    images, masks = (part[:12] for part in batch)
    with trained.precision.autocast():
        said = trained.net.predict(images).argmax(1)
    return strips(images.cpu(), {"mask": masks.cpu(), "the model's mask": said.cpu()}, trained.spec)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to segment, and where to."""
    parser.add_argument("inputs", type=Path, nargs="+", help="images, and folders of them")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("predictions"),
        help="a folder for a PNG mask of each image, or a .json file for each class's share of its pixels",
    )
    parser.add_argument("--overlay", action="store_true", help="beside each mask, the image with the mask over it")
    parser.add_argument("--batch", type=int, default=16, help="images at once")


def predict(trained: Trained, args: argparse.Namespace) -> None:
    """Segment the images: a mask each, as large as its image, with the values of the training masks and a palette.

    Raises:
        UserError: an image cannot be read, or what comes out cannot be written.
    """
    if args.batch < 1:
        raise UserError(f"--batch {args.batch}: it must be 1 or above")
    to_json = args.output.suffix == ".json"
    if to_json and args.overlay:
        raise UserError(f"--overlay has no place in --output {args.output}: give a folder")
    targets = _targets(args.inputs, args.output)
    files, classes, shares = list(targets), trained.spec.classes, []
    module = Segmenter(trained)
    for begin in range(0, len(files), args.batch):
        chosen = files[begin : begin + args.batch]
        images = torch.stack([opened(file, trained.spec.size, trained.spec.channels) for file in chosen]).to(
            trained.device
        )
        with trained.precision.autocast():
            scores = module(images)
        for file, found in zip(chosen, scores, strict=True):
            mask = _enlarged(found, _shape(file)).cpu().numpy()
            if to_json:
                counts = np.bincount(mask.reshape(-1), minlength=len(classes)) / mask.size
                shares.append({"file": str(file), "pixels": dict(zip(classes, counts.tolist(), strict=True))})
                continue
            values = np.asarray(trained.spec.values, np.uint8)[mask]
            _save(_painted(values), targets[file])
            if args.overlay:
                _save(_overlay(file, values), targets[file].with_suffix(".overlay.png"))
    if to_json:
        with whole(args.output) as target:
            target.write_text(json.dumps(shares, indent=1) + "\n", encoding="utf-8")
    print(f"{len(files)} images segmented in {args.output}")


def _targets(inputs: list[Path], folder: Path) -> dict[Path, Path]:
    """Each image with the file of its mask, which lies in `folder` as the image lies in the input."""
    found: dict[Path, Path] = {}
    taken: dict[Path, Path] = {}
    for path in inputs:
        for file in named([path]):
            name = file.relative_to(path) if path.is_dir() else Path(file.name)
            found[file] = (folder / name).with_suffix(".png")
    sources = {file.resolve() for file in found}
    for file, target in found.items():
        if target in taken:
            raise UserError(f"{taken[target]} and {file} would both become {target}: give them one at a time")
        if target.resolve() in sources:
            raise UserError(f"the mask of {file} would be written over an image, {target}: give another --output")
        taken[target] = file
    return found


def _shape(file: Path) -> tuple[int, int]:
    try:
        return shape_of(file)
    except UnreadableError as error:
        raise UserError(f"cannot read the image {file} ({error}): mend it, or leave it out") from error


def _enlarged(scores: Tensor, shape: tuple[int, int]) -> Tensor:
    """The best class of each pixel of (classes, size, size) scores, when these are resized to width and height.

    One class after the other, as all at once would need their number of times the memory.
    """
    width, height = shape
    best = torch.full((height, width), -torch.inf, device=scores.device)
    mask = torch.zeros((height, width), dtype=torch.int64, device=scores.device)
    for index, plane in enumerate(scores):
        wide = F.interpolate(plane[None, None], (height, width), mode="bilinear", align_corners=False)[0, 0]
        mask = torch.where(wide > best, index, mask)
        best = torch.maximum(wide, best)
    return mask


def _painted(values: Pixels) -> Image.Image:
    image = Image.fromarray(values)
    image.putpalette(palette().tobytes())
    return image


def _overlay(file: Path, values: Pixels) -> Image.Image:
    """The image, half covered with the colours of the classes; what is black in the palette leaves it as it is."""
    with Image.open(file) as image:
        under = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    colours = palette()[values]
    mixed = np.where(colours.any(-1, keepdims=True), under // 2 + colours // 2, under)
    return Image.fromarray(mixed)


def _save(image: Image.Image, target: Path) -> None:
    with whole(target) as file:
        target.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)


class Segmenter(nn.Module):
    """Images as loaded, uint8 (n, channels, size, size), to scores of the classes (n, classes, size, size), in fp32."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.net, self.prepare = trained.net, trained.prepare

    def forward(self, images: Tensor) -> Tensor:
        prepared, _ = self.prepare((images, images[:, 0]), False, torch.default_generator)  # masks pass through
        scores: Tensor = self.net.predict(prepared)
        return scores.float()


def exported(trained: Trained) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The segmenter, and two images to trace it with."""
    spec = trained.spec
    levels = torch.randint(0, 256, (2, spec.channels, spec.size, spec.size), dtype=torch.uint8)
    return Segmenter(trained), (levels,)
