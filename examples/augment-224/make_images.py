"""Write scikit-learn's digits from 0 to 4 as JPEG files of several sizes into build/images/{train,val}/<digit>."""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

VALIDATION = 181
"""Images that are not for training."""


def draw(levels: np.ndarray, random: np.random.Generator) -> Image.Image:
    """Draw one digit, of levels 0 to 16, on 240 to 400 pixels a side, with noise."""
    first, second = random.integers(150, 256, 3), random.integers(0, 100, 3)
    size = tuple(random.integers(240, 401, 2).tolist())
    mask = (
        np.asarray(
            Image.fromarray((levels * 15).astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
        )
        / 240
    )
    image = first + mask[..., None] * (second - first) + random.normal(0, 10, (*mask.shape, 1))
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


def main() -> None:
    """Draw both splits."""
    random, digits = np.random.default_rng(0), load_digits(n_class=5)
    for number, (levels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        folder = Path("build/images", "val" if number < VALIDATION else "train", str(label))
        folder.mkdir(parents=True, exist_ok=True)
        draw(levels, random).save(folder / f"{number:04}.jpg", quality=90)


if __name__ == "__main__":
    main()
