"""What `predict` writes for texts: classes with probabilities."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import data
from ..text_tables import column, read_table


def predict(
    options: Namespace,
    cfg: data.DataConfig,
    spec: data.Spec,
    model: Any,
    val_set: Any,
    outputs: Callable[[Any], Iterator[tuple[Tensor, Tensor]]],
) -> list[dict[str, Any]]:
    """Return a row for each text in the column `data.text`, or of the validation set."""
    samples = val_set
    names = [f"{number:05}" for number in range(len(val_set))]
    if options.files:
        names = read_texts(options.files, cfg)
        tokens, lengths = data.encode(names, spec)
        samples = [(ids, length, 0) for ids, length in zip(tokens, lengths, strict=True)]
    rows = []
    for name, (output, target) in zip(names, outputs(samples), strict=True):
        row = {"sample": name, "predicted": spec.classes[int(output.argmax())]}
        if not options.files:
            row["label"] = spec.classes[int(target)]
        for label, probability in zip(spec.classes, output.softmax(0).tolist(), strict=True):
            row[f"p({label})"] = f"{probability:.6g}"
        rows.append(row)
    return rows


def read_texts(files: list[Path], cfg: data.DataConfig) -> list[str]:
    """Return the texts of all files."""
    texts: list[str] = []
    for file in files:
        table = read_table(file, cfg.encoding)
        texts += column(table, cfg.text, file).tolist()
    return texts
