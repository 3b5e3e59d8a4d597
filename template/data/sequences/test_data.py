"""Sequence data: text and time series, built-in and your own, and errors."""

from collections.abc import Callable
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
    assert found.spec.mean[0] == pytest.approx(np.arange(150).mean())
    assert found.spec.std[0] == pytest.approx(np.arange(150).std())
    rows, targets = data.Prepare(found.spec, cfg)((found.train.values[:16].unsqueeze(0),), True, torch.Generator())
    price = (np.arange(150) - found.spec.mean[0]) / found.spec.std[0]
    torch.testing.assert_close(rows[0, :, 0], torch.from_numpy(price[:12]).float())
    torch.testing.assert_close(targets[0, :, 0], torch.from_numpy(price[12:16]).float())


def test_other_columns_are_ignored_and_reported(tmp_path: Path) -> None:
    found = data.load(series(write(tmp_path / "a.csv"), time="price"))
    assert found.spec.columns == ("load",)
    assert found.problems == (
        "column when is ignored: it is not numeric",
        "column note is ignored: it is not numeric",
    )


def test_missing_values_are_forward_filled_and_reported(tmp_path: Path) -> None:
    values: list[Any] = [*[None] * 3, 5.0, None, float("nan"), 7.0, float("inf"), *range(192)]
    write(tmp_path / "a.parquet", a=values)
    found = data.load(series(tmp_path / "a.parquet", columns=("a", "price")))
    assert isinstance(found.train, data.Rows)
    assert found.train.values[:7].tolist() == [[5, 3], [5, 4], [5, 5], [7, 6], [7, 7], [0, 8], [1, 9]]
    assert found.problems == (
        "column a: 6 of 200 values were missing and are forward-filled",
        "the first 3 rows are skipped: a column has no value yet",
    )


def test_constant_column_is_reported_and_stays_finite(tmp_path: Path) -> None:
    cfg = series(write(tmp_path / "a.csv", flat=[4] * 200), columns=("flat", "load"))
    found = data.load(cfg)
    assert found.problems == ("column flat is constant in the training split",)
    rows, _ = data.Prepare(found.spec, cfg)(found.train.__getitems__([0]), False, torch.Generator())
    assert rows[0, :, 0].tolist() == [0] * 12


def write_bytes(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (lambda folder: folder / "nowhere.csv", {}, "nowhere.csv does not exist"),
        (lambda folder: folder, {}, "is a folder: give a file"),
        (lambda folder: write_bytes(folder / "a.xls", b"x"), {}, "ends in .csv, .tsv, .parquet"),
        (lambda folder: write_bytes(folder / "a.csv", b""), {}, "a.csv is empty"),
        (lambda folder: write_bytes(folder / "a.csv", b"a,b\n"), {}, "no rows below its header"),
        (
            lambda folder: write_bytes(folder / "a.csv", "a,größe\n1,2\n".encode("latin-1")),
            {},
            r"is not UTF-8 \(line 1,",
        ),
        (lambda folder: write_bytes(folder / "a.csv", b"a,b,a\n1,2,3\n"), {}, "has more than one column named a"),
        (lambda folder: write_bytes(folder / "a.csv", b"a,b\n1,2\n3,4,5,6\n"), {}, "cannot read .*a.csv"),
        (lambda folder: write_bytes(folder / "a.parquet", b"PAR1 no"), {}, "cannot read .*a.parquet"),
        (lambda folder: write(folder / "a.csv"), {"columns": ("load", "wind")}, "has no column wind: it has when"),
        (lambda folder: write(folder / "a.csv"), {"columns": ("note",)}, "column note is not numeric .*'dry'"),
        (lambda folder: write_bytes(folder / "a.csv", b"a\nx\ny\n"), {}, "all columns are not numeric"),
        (lambda folder: write(folder / "a.csv", a=[None] * 200), {"columns": ("a",)}, "column a"),
        (lambda folder: write(folder / "a.csv"), {"time": "date"}, "has no column date"),
        (lambda folder: write(folder / "a.csv"), {"time": "note"}, "time=note .* neither dates nor numbers, but 'dry'"),
        (
            lambda folder: write(folder / "a.csv", at=[*range(100), 98, *range(100, 199)]),
            {"time": "at"},
            "does not increase at row 100, 98: sort",
        ),
        (lambda folder: write(folder / "a.csv", at=[None, *range(199)]), {"time": "at"}, "not increase at row 0"),
        (lambda folder: write(folder / "a.csv", rows=18), {}, "train split .* 14 rows, .*window=12.*need 16:"),
        (lambda folder: write(folder / "a.csv"), {"val_fraction": 0.01}, "val split .* 2 rows, .*need 4:"),
    ],
)
def test_invalid_series_is_an_error(
    tmp_path: Path, make: Callable[[Path], Path], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        data.load(series(make(tmp_path), **values))


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
