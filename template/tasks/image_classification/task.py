"""Image classification with a trained model: a confusion matrix, and the classes of new images.

python -m <package>.tools.predict runs/first images/ more.jpg --top 3 --output classes.csv
"""

import argparse
import csv
import io
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..contracts import Batch
from ..data import Spec
from ..distributed import World
from ..errors import UserError
from ..readers.decoding import find_images, load_image
from .atomic_file import atomic_write
from .confusion import Confusion
from .trained_model import TrainedModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOUT = "Classify images."


class Details:
    """The confusion matrix."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.confusion = Confusion(spec.classes, device)

    def add(self, net: Any, batch: Batch) -> None:
        """Add a prepared batch."""
        images, labels = batch
        self.confusion.add(labels, net.predict(images).argmax(1))

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Over all ranks: the confusion matrix, and the metrics derived from it."""
        return self.confusion.result(world)


def plot(trained: TrainedModel, batch: Batch, limit: int = 24) -> "Figure":
    """The first images of a batch with their predicted classes; wrong ones in red, with the true class."""
    from matplotlib.figure import Figure  # imported here because it takes a second

    spec, (images, labels) = trained.spec, (part[:limit] for part in batch)
    with trained.precision.autocast():
        predicted = trained.net.predict(images).argmax(1).tolist()
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (spec.mean, spec.std))
    rows = math.ceil(len(predicted) / 8)
    figure = Figure(figsize=(12, 1.8 * rows), layout="constrained")
    for number, (image, true) in enumerate(zip(images.float().cpu(), labels.tolist(), strict=True)):
        axes = figure.add_subplot(rows, 8, number + 1)
        axes.set_axis_off()
        axes.imshow((image * std + mean).clamp(0, 1).permute(1, 2, 0).expand(-1, -1, 3).numpy())
        correct = predicted[number] == true
        title = spec.classes[predicted[number]] + ("" if correct else f", not {spec.classes[true]}")
        axes.set_title(title, fontsize=10, color="black" if correct else "crimson")
    return figure


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the inputs and the output."""
    parser.add_argument("inputs", type=Path, nargs="+", help="images, and folders of images")
    parser.add_argument("--top", type=int, default=1, help="number of most likely classes to output")
    parser.add_argument("--output", type=Path, help="a .csv or .json file (default: print a table)")
    parser.add_argument("--batch", type=int, default=64, help="batch size")


def predict(trained: TrainedModel, args: argparse.Namespace) -> None:
    """Classify the images, and write their classes.

    Raises:
        UserError: an image cannot be read, or the file cannot be written.
    """
    classes = trained.spec.classes
    if args.top < 1 or args.batch < 1:
        raise UserError(f"--top {args.top} --batch {args.batch}: both must be 1 or above")
    if args.output is not None and args.output.suffix not in (".csv", ".json"):
        raise UserError(f"--output {args.output}: its name must end with .csv or .json")
    module, files, found = Classifier(trained), find_images(args.inputs), []
    for begin in range(0, len(files), args.batch):
        chosen = files[begin : begin + args.batch]
        images = torch.stack([load_image(file, trained.spec.size, trained.spec.channels) for file in chosen]).to(
            trained.device
        )
        with trained.precision.autocast():
            top = module(images).topk(min(args.top, len(classes)))
        for file, *pairs in zip(chosen, top.values.tolist(), top.indices.tolist(), strict=True):
            found.append(
                (str(file), [(classes[index], probability) for probability, index in zip(*pairs, strict=True)])
            )
    if args.output is None:
        print(_table(found), end="")
    else:
        with atomic_write(args.output) as target:
            target.write_text(_csv(found) if target.suffix == ".csv" else _json(found), encoding="utf-8")
        print(f"{len(found)} images classified in {args.output}")


Found = list[tuple[str, list[tuple[str, float]]]]
"""Each file with its most likely classes and their probabilities."""


def _table(found: Found) -> str:
    width = max(len(file) for file, _ in found)
    cells = [[f"{name} {probability:.4f}" for name, probability in best] for _, best in found]
    cell = max(len(text) for row in cells for text in row)
    lines = [
        f"{file:{width}}  " + "  ".join(f"{text:{cell}}" for text in row)
        for (file, _), row in zip(found, cells, strict=True)
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _csv(found: Found) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ranks = ["", *(f"_{rank}" for rank in range(2, len(found[0][1]) + 1))]
    writer.writerow(["file", *(f"{key}{rank}" for rank in ranks for key in ("class", "probability"))])
    writer.writerows([file, *(value for pair in best for value in pair)] for file, best in found)
    return text.getvalue()


def _json(found: Found) -> str:
    rows = [
        {
            "file": file,
            "class": best[0][0],
            "probability": best[0][1],
            "top": [{"class": name, "probability": probability} for name, probability in best],
        }
        for file, best in found
    ]
    return json.dumps(rows, indent=1) + "\n"


class Classifier(nn.Module):
    """Images as loaded, uint8 (n, channels, size, size), to class probabilities (n, classes), fp32."""

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.net, self.prepare = trained.net, trained.prepare

    def forward(self, images: Tensor) -> Tensor:
        prepared, _ = self.prepare((images, images), False, torch.default_generator)  # labels are unused
        logits: Tensor = self.net.predict(prepared)
        return logits.float().softmax(1)


def export_module(trained: TrainedModel) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module to export, and example inputs."""
    spec = trained.spec
    levels = torch.randint(0, 256, (2, spec.channels, spec.size, spec.size), dtype=torch.uint8)
    return Classifier(trained), (levels,)
