"""Sequences: text and series, built-in and your own, and errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from .. import data
from ..errors import UserError


def write(file: Path, rows: int = 200, **others: Any) -> Path:
    """Write a table with two numeric columns and one of words."""
    frame = pd.DataFrame(
        {"load": np.sin(np.arange(rows)) * 3 + 10, "price": range(rows), "note": "dry", **others}
    )
    if file.suffix == ".csv":
        frame.to_csv(file, index=False)
    else:
        frame.to_parquet(file)
    return file


def series(path: Path | None = None, **values: Any) -> data.DataConfig:
    """Return a config for small files."""
    return data.DataConfig(**{"kind": "series", "path": path, "window": 12, "horizon": 4, **values})


def test_text_is_the_default_and_targets_are_shifted_by_one() -> None:
    cfg = data.DataConfig()
    train, val, spec = data.load(cfg)
    assert spec == data.Spec(vocabulary=256, context=128)
    assert 0.005 < len(val) / (len(train) + len(val)) < 0.06
    inputs, targets = data.Prepare(spec, cfg)(train.__getitems__([0, 5]), True, torch.Generator())
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.dtype == torch.int64


def test_the_end_of_your_own_text_is_for_validation(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_bytes(bytes([number]) * 100)
    train, val, _ = data.load(data.DataConfig(path=tmp_path, context=9, val_fraction=0.25))
    assert (len(train), len(val)) == (299 // 9, 99 // 9)
    assert val.__getitems__([0])[0].tolist() == [[3] * 10]


def test_the_built_in_series_is_a_voltage() -> None:
    train, val, spec = data.load(data.DataConfig(kind="series"))
    assert (spec.vocabulary, spec.columns) == (0, ("millivolts",))
    assert (len(train), len(val)) == (2000 - 80 + 1, 500 - 16 + 1)
    assert -80 < spec.mean[0] < -20


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_series_is_split_by_time_and_standardized_by_the_training_rows(
    tmp_path: Path, suffix: str
) -> None:
    cfg = series(write(tmp_path / f"a{suffix}"), columns=("price", "load"), val_fraction=0.25)
    train, val, spec = data.load(cfg)
    assert len(train) == 150 - 16 + 1
    assert spec.mean[0] == pytest.approx(np.arange(150).mean())
    assert spec.std[0] == pytest.approx(np.arange(150).std())
    batch = val.__getitems__([0, len(val) - 1])
    inputs, targets = data.Prepare(spec, cfg)(batch, True, torch.Generator())
    assert (inputs.shape, targets.shape) == ((2, 12, 2), (2, 4, 2))
    price = targets[:, :, 0] * spec.std[0] + spec.mean[0]
    torch.testing.assert_close(price, torch.tensor([[150.0, 151, 152, 153], [196, 197, 198, 199]]))


def test_missing_values_repeat_the_last_one_and_constants_are_zero(tmp_path: Path) -> None:
    holes = [np.nan, 5.0, np.nan, *range(197)]
    train, _, spec = data.load(
        series(write(tmp_path / "a.csv", a=holes, flat=0.1), columns=("a", "flat"))
    )
    rows = train.__getitems__([0])[0][0]
    torch.testing.assert_close(
        rows[:3, 0] * spec.std[0] + spec.mean[0], torch.tensor([5.0, 5.0, 0.0])
    )
    assert rows[:, 1].abs().max() < 1e-6


def test_wrong_files_and_columns_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read data.path=.*nowhere.csv"):
        data.load(series(tmp_path / "nowhere.csv"))
    with pytest.raises(
        UserError, match=r"\['wind'\] are not all numbers: set data.columns, or data.decimal"
    ):
        data.load(series(write(tmp_path / "a.csv"), columns=("wind",)))
    with pytest.raises(
        UserError, match=r"'big'\] are not all numbers: set data.columns, or data.decimal"
    ):
        data.load(series(write(tmp_path / "a.csv", big="1,234")))
    with pytest.raises(UserError, match="10 values in a split, but a window has 16"):
        data.load(series(write(tmp_path / "a.csv", rows=12)))
