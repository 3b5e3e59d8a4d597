"""The confusion matrix of a classifier, and the metrics derived from it."""

from typing import Any

import torch
from torch import Tensor

from ..distributed import World

MAX_CLASSES = 30
"""Maximum number of classes to print the whole confusion matrix; for more, the most frequent confusions."""


class Confusion:
    """The confusion matrix, accumulated on the device."""

    def __init__(self, classes: tuple[str, ...], device: torch.device) -> None:
        self.classes = classes
        self.pairs = torch.zeros(len(classes) ** 2, dtype=torch.int64, device=device)

    def add(self, labels: Tensor, predicted: Tensor) -> None:
        """Add the true and the predicted classes of samples, both (n,), int64."""
        pairs = labels * len(self.classes) + predicted
        self.pairs.scatter_add_(0, pairs, torch.ones_like(pairs))

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Over all ranks: the confusion matrix, with one row per true class, and the metrics derived from it.

        `f1` is the mean over the classes that occur, each with the same weight (macro average).
        """
        matrix = world.all_reduce(self.pairs).view(len(self.classes), -1).cpu()
        correct, true, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
        by_class = {
            name: {
                "precision": _fraction(hits, predictions),
                "recall": _fraction(hits, count),
                "f1": _fraction(2 * hits, predictions + count),
                "count": count,
            }
            for name, hits, predictions, count in zip(
                self.classes, correct.tolist(), predicted.tolist(), true.tolist(), strict=True
            )
        }
        scores = [found["f1"] for found in by_class.values() if found["f1"] is not None]
        values: dict[str, Any] = {
            "accuracy": _fraction(int(correct.sum()), int(matrix.sum())),
            "f1": sum(scores) / len(scores) if scores else None,
            "classes": by_class,
            "confusion": matrix.tolist(),
        }
        if len(self.classes) > MAX_CLASSES:
            table = _most_confused(self.classes, matrix)
        else:
            table = _scores(by_class) + _matrix(self.classes, matrix)
        return values, (f"{'f1':16}{values['f1']:.6g}\n" if scores else "") + table


def _fraction(part: int, total: int) -> float | None:
    return part / total if total else None


def _scores(by_class: dict[str, dict[str, Any]]) -> str:
    width, keys = max(5, *map(len, by_class)), ("precision", "recall", "f1")
    lines = [f"\n{'class':{width}}  precision  recall      f1  count"]
    for name, found in by_class.items():
        cells = ("-" if found[key] is None else f"{found[key]:.4f}" for key in keys)
        lines.append("{:{}}  {:>9}  {:>6}  {:>6}  {:>5}".format(name, width, *cells, found["count"]))
    return "\n".join(lines) + "\n"


def _matrix(classes: tuple[str, ...], matrix: Tensor) -> str:
    """The matrix, with the names of the classes as column headers if these are short, else their numbers."""
    short = max(map(len, classes)) <= 5
    heads = list(classes) if short else [str(number) for number in range(len(classes))]
    names = list(classes) if short else [f"{number} {name}" for number, name in enumerate(classes)]
    width, cell = max(9, *map(len, names)), max(len(str(int(matrix.max()))), *map(len, heads)) + 1
    lines = [f"\n{'true|pred':{width}} " + "".join(f"{head:>{cell}}" for head in heads)]
    for name, row in zip(names, matrix.tolist(), strict=True):
        lines.append(f"{name:{width}} " + "".join(f"{count or '.':>{cell}}" for count in row))
    return "\n".join(lines) + "\n"


def _most_confused(classes: tuple[str, ...], matrix: Tensor, limit: int = 20) -> str:
    wrong = matrix - matrix.diagonal().diag()
    counts, cells = wrong.flatten().topk(min(limit, wrong.numel()))
    lines = ["\nmost confused"]
    for count, cell in zip(counts.tolist(), cells.tolist(), strict=True):
        true, predicted = divmod(cell, len(classes))
        if count:
            lines.append(f"{count:>7} of {int(matrix[true].sum())} {classes[true]} predicted as {classes[predicted]}")
    return "\n".join(lines) + "\n"
