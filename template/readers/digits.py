"""The handwritten digits that ship with scikit-learn."""

import gzip

import numpy as np
import torch
from torch import Tensor

from .common import packaged_file


def load_digits() -> tuple[Tensor, Tensor]:
    """All 1,797 images, uint8 (n, 8, 8), and their labels, int64 (n,).

    Read from scikit-learn's file, because importing scikit-learn takes about a second.

    Raises:
        UserError: the file is missing.
    """
    with gzip.open(packaged_file("sklearn", "datasets/data/digits.csv.gz"), "rt") as file:
        rows = np.loadtxt(file, delimiter=",")
    images = (rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    return torch.from_numpy(images), torch.from_numpy(rows[:, -1].astype(np.int64))
