"""The tables that ship with scikit-learn, read from its files: importing scikit-learn takes about a second."""

import csv
import gzip
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .common import packaged_file

FOLDER = "datasets/data/"
MEASURES = ("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points")
CELLS = (*MEASURES, "symmetry", "fractal dimension")


@dataclass(frozen=True)
class BuiltinTable:
    """A table of numbers and its target."""

    values: NDArray[np.float64]
    """(rows, columns)."""
    target: NDArray[np.float64]
    """(rows,): class indices, or numbers."""
    columns: tuple[str, ...]
    classes: tuple[str, ...]
    """Empty for a regression target."""


def load_breast_cancer() -> BuiltinTable:
    """569 rows: 30 measurements of cell nuclei, and whether the tumor is malignant.

    Raises:
        UserError: the file is missing.
    """
    with packaged_file("sklearn", f"{FOLDER}breast_cancer.csv").open(encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    rows = np.array(lines, dtype=np.float64)
    columns = [*(f"mean {name}" for name in CELLS), *(f"{name} error" for name in CELLS)]
    columns += [f"worst {name}" for name in CELLS]
    return BuiltinTable(rows[:, :-1], rows[:, -1], tuple(columns), tuple(header[2:]))


def load_diabetes() -> BuiltinTable:
    """442 rows: 10 baseline measurements of patients, and the disease progression after one year.

    Raises:
        UserError: a file is missing.
    """
    values, target = (_numbers(f"diabetes_{name}.csv.gz") for name in ("data_raw", "target"))
    return BuiltinTable(values, target, ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"), ())


def _numbers(name: str) -> NDArray[np.float64]:
    with gzip.open(packaged_file("sklearn", FOLDER + name), "rt") as file:
        return np.loadtxt(file)
