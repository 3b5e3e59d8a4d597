"""Tables: the built-in ones, and your own files."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from .. import data
from ..errors import UserError

ROWS = 60


def columns() -> dict[str, list[Any]]:
    """A table with all kinds of columns and some missing values."""
    indices = range(ROWS)
    return {
        "age": [None if index % 7 == 3 else 20 + index % 31 for index in indices],
        "height": [1.5 + index * 0.01 for index in indices],
        "city": [("Bonn", "Rome", "Oslo")[index % 3] if index else "Lima" for index in indices],
        "label": [("no", "yes")[index % 5 > 2] for index in indices],
    }


def load(
    folder: Path, content: Any, suffix: str = ".csv", **keys: Any
) -> tuple[data.Rows, data.Rows, data.Spec]:
    """Write a table and load it."""
    file = folder / f"table{suffix}"
    if isinstance(content, str):
        file.write_text(content, encoding="utf-8")
    elif suffix == ".parquet":
        pd.DataFrame(content).to_parquet(file)
    else:
        pd.DataFrame(content).to_csv(file, index=False)
    return data.load(data.DataConfig(path=file, **{"target": "label", **keys}))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_own_file_is_loaded(tmp_path: Path, suffix: str) -> None:
    train, val, spec = load(tmp_path, columns(), suffix)
    assert (len(train), len(val), spec.classes) == (48, 12, ("no", "yes"))
    assert list(spec.numeric) == ["age", "height", "age is missing"]
    assert spec.categories == {"city": ("Bonn", "Oslo", "Rome")}, "Lima is in one row only"
    numbers, codes, labels = (
        torch.cat(parts) for parts in zip(train.tensors, val.tensors, strict=True)
    )
    order = numbers[:, 1].argsort()
    assert codes[order, 0].tolist()[:4] == [0, 3, 2, 1]
    assert labels[order].tolist() == [name == "yes" for name in columns()["label"]]


def test_missing_numbers_become_the_mean_and_are_marked(tmp_path: Path) -> None:
    train, _, spec = load(tmp_path, columns())
    batch = train.__getitems__([*range(len(train))])
    prepared = data.Prepare(spec, data.DataConfig())(batch, False, torch.Generator())[0]
    missing = batch[0][:, 0].isnan()
    assert missing.any()
    assert (prepared[missing, 0] == 0).all()
    assert prepared[missing, 2].min() > prepared[~missing, 2].max()


def test_rows_for_validation_may_be_in_their_own_file(tmp_path: Path) -> None:
    pd.DataFrame(columns()).head(9).assign(age=99).to_csv(tmp_path / "val.csv", index=False)
    train, val, spec = load(tmp_path, columns(), val_path=tmp_path / "val.csv")
    assert (len(train), len(val), spec.classes) == (60, 9, ("no", "yes"))
    assert (val.tensors[0][:, 0] == 99).all()


def test_regression_targets_are_standardized() -> None:
    train, val, spec = data.load(data.DataConfig(builtin="diabetes"))
    assert (len(train), len(val), spec.classes, spec.categories) == (
        354,
        88,
        (),
        {"sex": ("1", "2")},
    )
    targets = train.tensors[2]
    assert targets.dtype == torch.float32
    assert targets.mean().item() == pytest.approx(0, abs=1e-6)
    assert targets.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert spec.center == pytest.approx(val.tensors[2].mean().item(), abs=1e-6)


@pytest.mark.parametrize(
    ("content", "keys", "message"),
    [
        ("", {}, "cannot read the table .*table.csv .No columns"),
        (
            "a,label\n1,x,y\n1,x,y,z\n",
            {},
            "cannot read the table .*Expected 3 fields in line 3, saw 4",
        ),
        ("a,label\n1,x\n", {"target": "lable"}, "no column 'lable' .*it has a, label"),
        ("a,label\n1,x\n2,x\n", {}, "column label of .*: each row needs a value, which varies"),
        ("a,label\n1,x\n2,\n3,y\n", {}, "column label of .*: each row needs a value"),
        (
            "a,label\n" + '"1,234",x\n"2,500",y\n' * 9,
            {},
            "column a has '1,234', which can be 1234 or 1.234",
        ),
    ],
)
def test_unusable_file_is_one_line(
    tmp_path: Path, content: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load(tmp_path, content, **keys)
    assert "\n" not in str(caught.value)
