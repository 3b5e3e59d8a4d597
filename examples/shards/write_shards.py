"""Write scikit-learn's digits as tar shards in the layout of WebDataset, into build/shards of the present folder."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SHARD = 200
"""Samples per shard."""


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def main() -> None:
    """Write one fifth of the images for validation."""
    folder = Path("build/shards")
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    cut = len(labels) // 5
    for split, chosen in (("train", order[cut:]), ("val", order[:cut])):
        for begin in range(0, len(chosen), SHARD):
            with tarfile.open(folder / f"{split}-{begin // SHARD:04}.tar", "w") as archive:
                for index in chosen[begin : begin + SHARD]:
                    png = io.BytesIO()
                    Image.fromarray(
                        (images[index].reshape(8, 8) * (255 / 16)).round().astype(np.uint8)
                    ).save(png, "png")
                    add(archive, f"{index:04}.png", png.getvalue())
                    add(archive, f"{index:04}.cls", str(labels[index]).encode())


if __name__ == "__main__":
    main()
