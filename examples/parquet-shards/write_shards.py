"""Write scikit-learn's digits as Parquet shards with several row groups, into .cache/parquet of the present folder."""

import io
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image
from sklearn.datasets import load_digits

SHARD, GROUP = 400, 64
"""Samples per shard and per row group."""


def main() -> None:
    """Write one fifth of the images for validation."""
    folder = Path(".cache/parquet")
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(return_X_y=True)
    pngs = []
    for image in images:
        png = io.BytesIO()
        Image.fromarray((image.reshape(8, 8) * (255 / 16)).round().astype(np.uint8)).save(png, "png")
        pngs.append(png.getvalue())
    table = pyarrow.table({"id": range(len(labels)), "png": pngs, "label": labels})
    order = np.random.default_rng(0).permutation(len(labels))
    cut = len(labels) // 5
    for split, chosen in (("train", order[cut:]), ("val", order[:cut])):
        for begin in range(0, len(chosen), SHARD):
            file = folder / f"{split}-{begin // SHARD:04}.parquet"
            pyarrow.parquet.write_table(table.take(chosen[begin : begin + SHARD]), file, row_group_size=GROUP)


if __name__ == "__main__":
    main()
