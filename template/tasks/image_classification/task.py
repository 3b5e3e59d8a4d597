"""Classifying images: how well each class is told from the others, and the classes of new pictures.

python -m <package>.tools.predict runs/first pictures/ more.jpg --top 3 --output classes.csv
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
from ..readers.images import named, opened
from .atomic_file import whole
from .trained_model import Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOUT = "Say of which class images are."
MOST = 30
"""Classes up to which the whole confusion matrix is shown; of more, what is confused most."""


class Details:
    """Which class was taken for which."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.classes = spec.classes
        self.pairs = torch.zeros(len(spec.classes) ** 2, dtype=torch.int64, device=device)

    def add(self, net: Any, batch: Batch) -> None:
        """Take in a prepared batch."""
        images, labels = batch
        pairs = labels * len(self.classes) + net.predict(images).argmax(1)
        self.pairs.scatter_add_(0, pairs, torch.ones_like(pairs))

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Over all ranks: the confusion matrix (a row a true class), and what follows from it."""
        matrix = world.all_reduce(self.pairs).view(len(self.classes), -1).cpu()
        right, true, said = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
        by_class = {
            name: {"precision": _share(hits, claims), "recall": _share(hits, count), "count": count}
            for name, hits, claims, count in zip(
                self.classes, right.tolist(), said.tolist(), true.tolist(), strict=True
            )
        }
        values: dict[str, Any] = {"accuracy": _share(int(right.sum()), int(matrix.sum()))}
        values |= {"classes": by_class, "confusion": matrix.tolist()}
        whole = len(self.classes) <= MOST
        return values, (_scores(by_class) + _whole(self.classes, matrix) if whole else _worst(self.classes, matrix))


def _share(part: int, of: int) -> float | None:
    return part / of if of else None


def _scores(by_class: dict[str, dict[str, Any]]) -> str:
    wide = max(5, *map(len, by_class))
    lines = [f"\n{'class':{wide}}  precision  recall  count"]
    for name, found in by_class.items():
        precision, recall = ("-" if found[key] is None else f"{found[key]:.4f}" for key in ("precision", "recall"))
        lines.append(f"{name:{wide}}  {precision:>9}  {recall:>6}  {found['count']:>5}")
    return "\n".join(lines) + "\n"


def _whole(classes: tuple[str, ...], matrix: Tensor) -> str:
    """The matrix, with columns headed by the classes' names if these are short, else by their numbers."""
    short = max(map(len, classes)) <= 5
    heads = list(classes) if short else [str(number) for number in range(len(classes))]
    names = list(classes) if short else [f"{number} {name}" for number, name in enumerate(classes)]
    wide, cell = max(9, *map(len, names)), max(len(str(int(matrix.max()))), *map(len, heads)) + 1
    lines = [f"\n{'true|said':{wide}} " + "".join(f"{head:>{cell}}" for head in heads)]
    for name, row in zip(names, matrix.tolist(), strict=True):
        lines.append(f"{name:{wide}} " + "".join(f"{count or '.':>{cell}}" for count in row))
    return "\n".join(lines) + "\n"


def _worst(classes: tuple[str, ...], matrix: Tensor, most: int = 20) -> str:
    wrong = matrix - matrix.diagonal().diag()
    counts, places = wrong.flatten().topk(min(most, wrong.numel()))
    lines = ["\nconfused most"]
    for count, place in zip(counts.tolist(), places.tolist(), strict=True):
        true, said = divmod(place, len(classes))
        if count:
            lines.append(f"{count:>7} of {int(matrix[true].sum())} {classes[true]} taken for {classes[said]}")
    return "\n".join(lines) + "\n"


def picture(trained: Trained, batch: Batch, most: int = 24) -> "Figure":
    """The first held-out images with the class that each is taken for; a wrong one in red, with the right one."""
    from matplotlib.figure import Figure  # takes a second to import, so only where it is used

    spec, (images, labels) = trained.spec, (part[:most] for part in batch)
    with trained.precision.autocast():
        said = trained.net.predict(images).argmax(1).tolist()
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (spec.mean, spec.std))
    rows = math.ceil(len(said) / 8)
    figure = Figure(figsize=(12, 1.8 * rows), layout="constrained")
    for number, (image, true) in enumerate(zip(images.float().cpu(), labels.tolist(), strict=True)):
        axes = figure.add_subplot(rows, 8, number + 1)
        axes.set_axis_off()
        axes.imshow((image * std + mean).clamp(0, 1).permute(1, 2, 0).expand(-1, -1, 3).numpy())
        right = said[number] == true
        title = spec.classes[said[number]] + ("" if right else f", not {spec.classes[true]}")
        axes.set_title(title, fontsize=10, color="black" if right else "crimson")
    return figure


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to classify, and where to."""
    parser.add_argument("inputs", type=Path, nargs="+", help="images, and folders of them")
    parser.add_argument("--top", type=int, default=1, help="how many of the likeliest classes to give")
    parser.add_argument("--output", type=Path, help="a .csv or .json file; without it, a table on the screen")
    parser.add_argument("--batch", type=int, default=64, help="images at once")


def predict(trained: Trained, args: argparse.Namespace) -> None:
    """Classify the images, and write their classes.

    Raises:
        UserError: an image cannot be read, or the file cannot be written.
    """
    classes = trained.spec.classes
    if args.top < 1 or args.batch < 1:
        raise UserError(f"--top {args.top} --batch {args.batch}: both must be 1 or above")
    if args.output is not None and args.output.suffix not in (".csv", ".json"):
        raise UserError(f"--output {args.output}: its name must end with .csv or .json")
    module, files, found = Classifier(trained), named(args.inputs), []
    for begin in range(0, len(files), args.batch):
        chosen = files[begin : begin + args.batch]
        images = torch.stack([opened(file, trained.spec.size, trained.spec.channels) for file in chosen]).to(
            trained.device
        )
        with trained.precision.autocast():
            likeliest = module(images).topk(min(args.top, len(classes)))
        for file, *pairs in zip(chosen, likeliest.values.tolist(), likeliest.indices.tolist(), strict=True):
            found.append((str(file), [(classes[index], chance) for chance, index in zip(*pairs, strict=True)]))
    if args.output is None:
        print(_table(found), end="")
    else:
        with whole(args.output) as target:
            target.write_text(_csv(found) if target.suffix == ".csv" else _json(found), encoding="utf-8")
        print(f"{len(found)} images classified in {args.output}")


Found = list[tuple[str, list[tuple[str, float]]]]
"""Each file with its likeliest classes and their probabilities."""


def _table(found: Found) -> str:
    wide = max(len(file) for file, _ in found)
    cells = [[f"{name} {chance:.4f}" for name, chance in best] for _, best in found]
    cell = max(len(text) for row in cells for text in row)
    lines = [
        f"{file:{wide}}  " + "  ".join(f"{text:{cell}}" for text in row)
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
            "top": [{"class": name, "probability": chance} for name, chance in best],
        }
        for file, best in found
    ]
    return json.dumps(rows, indent=1) + "\n"


class Classifier(nn.Module):
    """Images as loaded, uint8 (n, channels, size, size), to the probability of each class (n, classes), in fp32."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.net, self.prepare = trained.net, trained.prepare

    def forward(self, images: Tensor) -> Tensor:
        prepared, _ = self.prepare((images, images), False, torch.default_generator)  # labels pass through
        scores: Tensor = self.net.predict(prepared)
        return scores.float().softmax(1)


def exported(trained: Trained) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The classifier, and two images to trace it with."""
    spec = trained.spec
    levels = torch.randint(0, 256, (2, spec.channels, spec.size, spec.size), dtype=torch.uint8)
    return Classifier(trained), (levels,)
