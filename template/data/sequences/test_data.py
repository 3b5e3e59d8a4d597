"""Sequences: text and series, built-in and your own."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from .. import data


def write(
    file: Path,
    rows: int = 200,
    **others: Any,
) -> Path:
    """Write a table with two numeric columns and one of words."""
    columns = {
        "load": np.sin(np.arange(rows)) * 3 + 10,
        "price": range(rows),
        "note": "dry",
        **others,
    }
    frame = pd.DataFrame(columns)
    if file.suffix == ".csv":
        frame.to_csv(file, index=False)
    else:
        frame.to_parquet(file)
    return file


def series(
    path: Path,
    **values: Any,
) -> data.DataConfig:
    """Return a config for small files."""
    return data.DataConfig(
        kind="series",
        path=path,
        window=12,
        horizon=4,
        **values,
    )


def prices(
    windows: data.Windows,
    spec: data.Spec,
) -> list[list[int]]:
    """Return the first and the last forecast of the first column, in its unit."""
    batch = windows.__getitems__([0, len(windows) - 1])
    targets = batch[0][:, spec.context :, 0]
    values = targets * spec.std[0] + spec.mean[0]
    rounded: list[list[int]] = values.round().int().tolist()
    return rounded


def test_text_is_the_default_and_targets_are_shifted_by_one() -> None:
    cfg = data.DataConfig()
    train, val, spec = data.load(cfg)
    assert spec == data.Spec(vocabulary=256, context=128)
    assert 0.005 < len(val) / len(train) < 0.06
    prepare = data.Prepare(spec, cfg)
    batch = train.__getitems__([0, 5])
    inputs, targets = prepare(batch, True, torch.Generator())
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.dtype == torch.int64


def test_the_end_of_your_own_text_is_for_validation_and_the_test(tmp_path: Path) -> None:
    for number in range(4):
        file = tmp_path / f"{number}.txt"
        file.write_bytes(bytes([number + 1]) * 100)
    cfg = data.DataConfig(
        path=tmp_path,
        context=9,
        val_fraction=0.25,
        test_fraction=0.25,
    )
    train, val, _ = data.load(cfg)
    test = data.load_test(cfg)
    assert test
    splits = []
    for split in (train, val, test):
        tokens = split.tensors[0].unique()
        splits.append(tokens.tolist())
    assert splits == [
        [1, 2],
        [3],
        [4],
    ]
    assert data.load_test(data.DataConfig()) is None


def test_the_built_in_series_is_a_voltage() -> None:
    cfg = data.DataConfig(kind="series")
    train, val, spec = data.load(cfg)
    assert spec.columns == ("millivolts",)
    assert len(train) == 2000 - 80 + 1
    assert len(val) == 500 - 16 + 1
    assert -80 < spec.mean[0] < -20


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_series_is_split_by_time(tmp_path: Path, suffix: str) -> None:
    file = write(tmp_path / f"a{suffix}")
    cfg = series(
        file,
        columns=("price", "load"),
        val_fraction=0.25,
        test_fraction=0.1,
    )
    train, val, spec = data.load(cfg)
    test = data.load_test(cfg)
    assert test
    assert prices(train, spec) == [[12, 13, 14, 15], [126, 127, 128, 129]]
    assert prices(val, spec) == [[130, 131, 132, 133], [176, 177, 178, 179]]
    assert prices(test, spec) == [[180, 181, 182, 183], [196, 197, 198, 199]]
    known = np.arange(130)
    assert spec.mean[0] == pytest.approx(known.mean())
    assert spec.std[0] == pytest.approx(known.std())
