"""Sequence data: text and time series, built-in and your own, and errors.

Delete this file and test_readers.py together with the example's data.py: nothing else needs them.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tokenizers
import torch

from .. import data
from ..errors import UserError
from ..tools import view

pytestmark = pytest.mark.fast


def write(file: Path, rows: int = 200, **others: list[Any]) -> Path:
    """Write a table with two numeric columns, one of dates and one of words."""
    hours = pl.datetime_range(pl.datetime(2024, 1, 1), pl.datetime(2024, 1, 9, 7), "1h", eager=True)
    columns: dict[str, Any] = {"when": hours[:rows], "load": np.sin(np.arange(rows)) * 3 + 10, "price": range(rows)}
    frame = pl.DataFrame({**columns, "note": ["dry", "wet"] * (rows // 2), **others})
    if file.suffix == ".csv":
        frame.write_csv(file)
    else:
        frame.write_parquet(file)
    return file


def series(path: Path | None = None, **values: Any) -> data.DataConfig:
    """A config for the small files of these tests."""
    return data.DataConfig(**{"kind": "series", "path": path, "window": 12, "horizon": 4, **values})


def test_text_is_the_default() -> None:
    cfg = data.DataConfig()
    found = data.load(cfg)
    assert found.spec == data.Spec(256, 128, 1.0, "bytes")
    assert 0.005 < len(found.val) / (len(found.train) + len(found.val)) < 0.06
    inputs, targets = data.Prepare(found.spec, cfg)(found.train.__getitems__([0, 5]), True, torch.default_generator)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.dtype == torch.int64
    assert torch.equal(inputs.view(-1), inputs.flatten()), "as in many published models"
    assert torch.equal(targets.view(-1), targets.flatten())


def test_own_text_with_a_tokenizer(tmp_path: Path) -> None:
    words = [f"w{number % 300}" for number in range(2000)]
    (tmp_path / "a.txt").write_text(" ".join(words))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{number}": number for number in range(300)}, "w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "words.json"))
    cfg = data.DataConfig(path=tmp_path / "a.txt", tokenizer=str(tmp_path / "words.json"), context=8, val_fraction=0.1)
    cfg = replace(cfg, cache_dir=tmp_path / "cache")
    found = data.load(cfg)
    assert (found.spec.vocabulary, found.spec.tokenizer) == (300, str(tmp_path / "words.json"))
    assert found.spec.bytes_per_token == pytest.approx(4.5, abs=0.1)
    inputs, _ = data.Prepare(found.spec, cfg)(found.train.__getitems__([40]), False, torch.default_generator)
    assert inputs.tolist() == [[number % 300 for number in range(320, 328)]]
    assert view.summary(found)["vocabulary"].startswith("300 tokens")


def test_built_in_series_is_loaded() -> None:
    cfg = data.DataConfig(kind="series")
    found = data.load(cfg)
    assert isinstance(found.train, data.Rows)
    assert isinstance(found.val, data.Rows)
    assert (found.spec.vocabulary, found.spec.columns) == (0, ("millivolts",))
    assert (len(found.train.values), len(found.val.values)) == (2000, 500 + 64)
    assert -80 < float(found.train.values.min()) < -40
    rows, targets = data.Prepare(found.spec, cfg)(found.val.__getitems__([0, 1, 2]), False, torch.Generator())
    assert (rows.shape, targets.shape) == ((3, 64, 1), (3, 16, 1))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_own_series_is_split_by_time_and_normalized_by_train(tmp_path: Path, suffix: str) -> None:
    cfg = series(write(tmp_path / f"a{suffix}"), columns=("price", "load"), time="when", val_fraction=0.25)
    found = data.load(cfg)
    assert isinstance(found.train, data.Rows)
    assert isinstance(found.val, data.Rows)
    assert found.train.values[:, 0].tolist() == list(range(150))
    assert len(found.train) == 150 - 16 + 1
    (windows,) = found.train.__getitems__([0, len(found.train) - 1])
    assert windows[:, :, 0].tolist() == [list(range(16)), list(range(134, 150))]
    (windows,) = found.val.__getitems__([0, len(found.val) - 1])
    assert windows[0, :, 0].tolist() == list(range(150 - 12, 154))  # the first forecast is that of row 150
    assert windows[1, -1, 0] == 199
    for part in data.Prepare(found.spec, cfg)((windows,), True, torch.Generator()):
        assert part.is_contiguous(), "as models that use `view` need"
    assert found.spec.mean[0] == pytest.approx(np.arange(150).mean())
    assert found.spec.std[0] == pytest.approx(np.arange(150).std())
    rows, targets = data.Prepare(found.spec, cfg)((found.train.values[:16].unsqueeze(0),), True, torch.Generator())
    price = (np.arange(150) - found.spec.mean[0]) / found.spec.std[0]
    torch.testing.assert_close(rows[0, :, 0], torch.from_numpy(price[:12]).float())
    torch.testing.assert_close(targets[0, :, 0], torch.from_numpy(price[12:16]).float())


def test_invalid_config_is_an_error() -> None:
    with pytest.raises(UserError, match="data.columns is .*one column, millivolts"):
        data.load(data.DataConfig(kind="series", columns=("load",)))
    with pytest.raises(UserError, match="data.time is a: it must not be one of"):
        data.DataConfig(kind="series", columns=("a", "b"), time="a")


def test_summary_and_plot(tmp_path: Path) -> None:
    cfg = series(write(tmp_path / "a.csv"))
    found = data.load(cfg)
    assert view.summary(found)["rows"] == "160 in train, 40 in val"
    batch = data.Prepare(found.spec, cfg)(found.train.__getitems__([0, 1]), True, torch.Generator())
    plotted = [np.asarray(line.get_ydata()) for line in view.plot(batch, found.spec).axes[0].lines]
    assert [len(line) for line in plotted] == [12, 4]
    assert plotted[1].tolist() == pytest.approx((np.sin(np.arange(12, 16)) * 3 + 10).tolist(), abs=1e-4)
