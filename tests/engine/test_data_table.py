"""Tables: the built-in ones against scikit-learn, and the contents of your own files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import datasets

ROWS = 60
LABELS = ["x", "y"] * (ROWS // 2)


def load(p: Any, folder: Path, content: dict[str, Any], suffix: str = ".csv", **keys: Any) -> Any:
    """Write a table with these columns and a label, and load it."""
    file, frame = folder / f"table{suffix}", pd.DataFrame({"label": LABELS, **content})
    if suffix == ".parquet":
        frame.to_parquet(file)
    else:
        frame.to_csv(file, index=False, sep=";" if keys.get("decimal") == "comma" else ",")
    return p.data.load(p.data.DataConfig(path=file, **{"target": "label", **keys}))


def joined(splits: Any) -> list[torch.Tensor]:
    return [torch.cat(parts) for parts in zip(splits[0].tensors, splits[1].tensors, strict=True)]


def test_breast_cancer_is_that_of_scikit_learn(package: Callable[[str], Any]) -> None:
    p = package("mlp")
    known = datasets.load_breast_cancer()
    train, val, spec = p.data.load(p.data.DataConfig())
    assert (len(train), len(val), len(spec.numeric), spec.categories) == (456, 113, 30, {})
    rows = {tuple(row) for row in joined((train, val))[0].tolist()}
    assert rows == {tuple(row) for row in known.data.astype(np.float32).tolist()}
    assert val.tensors[2].double().mean().item() == pytest.approx(known.target.mean(), abs=0.01), (
        "stratified"
    )
    mean, std = np.array(list(spec.numeric.values())).T
    assert mean == pytest.approx(train.tensors[0].double().mean(0).numpy())
    assert std == pytest.approx(train.tensors[0].double().std(0, correction=0).numpy())


def test_diabetes_is_that_of_scikit_learn(package: Callable[[str], Any]) -> None:
    p = package("mlp")
    known = datasets.load_diabetes(scaled=False)
    train, val, spec = p.data.load(p.data.DataConfig(builtin="diabetes"))
    numbers, codes, targets = joined((train, val))
    rows = torch.cat([numbers[:, :1], codes, numbers[:, 1:]], 1)
    expected = {tuple(row) for row in known.data.astype(np.float32).tolist()}
    assert {tuple(row) for row in rows.tolist()} == expected
    original = targets.double() * spec.target_std + spec.target_mean
    assert sorted(original.tolist()) == pytest.approx(sorted(known.target), rel=1e-5)


def test_large_targets_keep_their_differences(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    """In float32, 2e9 and 2e9 + 1 are equal."""
    p = package("mlp")
    train, _, spec = load(
        p, tmp_path, {"a": range(ROWS), "label": np.arange(ROWS) + 2e9}, task="regression"
    )
    original = train.tensors[2].double() * spec.target_std + spec.target_mean - 2e9
    assert len(set(original.round().tolist())) == 48


COMMAS = ["1,234", "2,500", "12"]
POINTS = ["1.234", "2.500", "12"]
THOUSANDS = ["1.234,5", "0,5", "12"]


@pytest.mark.parametrize(
    ("cells", "decimal", "expected"),
    [
        (COMMAS, "point", "'1,234', which can be 1234 or 1.234: "),
        (COMMAS, "comma", [1.234, 2.5, 12]),
        (POINTS, "point", [1.234, 2.5, 12]),
        (POINTS, "comma", "'1.234', which can be 1.234 or 1234: "),
        (THOUSANDS, "point", "'1.234,5', which can be 1.2345 or 1234.5: "),
        (THOUSANDS, "comma", "'1.234,5', which can be 1.2345 or 1234.5: "),
    ],
)
def test_separators_in_numbers_need_the_option(
    package: Callable[[str], Any], tmp_path: Path, cells: list[str], decimal: str, expected: Any
) -> None:
    p, content = package("mlp"), {"a": cells * (ROWS // 3)}
    if isinstance(expected, str):
        with pytest.raises(p.errors.UserError, match=expected):
            load(p, tmp_path, content, decimal=decimal)
        spec = load(p, tmp_path, content, decimal=decimal, categorical=("a",))[2]
        assert spec.categories == {"a": tuple(sorted(cells))}
        return
    numbers = joined(load(p, tmp_path, content, decimal=decimal))[0]
    assert sorted(set(numbers.flatten().tolist())) == pytest.approx(sorted(expected))


@pytest.mark.parametrize(
    "cells",
    [
        ["A1,234", "B2,500", "C3"],
        ["1,5", "Rome, Italy", "Paris, France"],
        ["01.02.2024", "03.02.2024", "04.05.2024"],
        ["1.2.3", "1.10.0", "2.0.1"],
        ["10-20", "20-30", "30+"],
        ["1", "2", "3a"],
    ],
)
def test_categories_that_contain_digits_are_categories(
    package: Callable[[str], Any], tmp_path: Path, cells: list[str]
) -> None:
    spec = load(package("mlp"), tmp_path, {"a": cells * (ROWS // 3)})[2]
    assert spec.categories == {"a": tuple(sorted(cells))}


@pytest.mark.parametrize(
    ("values", "keys", "classes"),
    [
        ([2, 10, 1], {}, ("1", "2", "10")),
        (["2", "10", "b"], {}, ("10", "2", "b")),
        ([True, False, True], {}, ("False", "True")),
        ([2.0, 10.0, 1.0], {}, ("1", "2", "10")),
        ([2, 10, 1], {"task": "regression"}, ()),
        ([0.5, 1.5, 1.0], {}, ()),
    ],
)
def test_classes_are_sorted_by_value_if_all_are_numbers(
    package: Callable[[str], Any],
    tmp_path: Path,
    values: list[Any],
    keys: dict[str, Any],
    classes: tuple[str, ...],
) -> None:
    content = {"a": range(ROWS), "label": values * (ROWS // 3)}
    assert load(package("mlp"), tmp_path, content, ".parquet", **keys)[2].classes == classes


def test_integer_categories_with_missing_values_have_no_point(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    spec = load(package("mlp"), tmp_path, {"a": [1, 2, None] * (ROWS // 3)}, categorical=("a",))[2]
    assert spec.categories == {"a": ("", "1", "2")}


def test_infinite_values_count_as_missing(package: Callable[[str], Any], tmp_path: Path) -> None:
    spec = load(package("mlp"), tmp_path, {"a": [1.0, 2.0, np.inf] * (ROWS // 3)}, ".parquet")[2]
    assert list(spec.numeric) == ["a", "a is missing"]
    assert np.isfinite(list(spec.numeric.values())).all()


def test_saved_index_is_ignored(package: Callable[[str], Any], tmp_path: Path) -> None:
    p, file = package("mlp"), tmp_path / "table.csv"
    pd.DataFrame({"a": range(ROWS), "label": LABELS}).to_csv(file)
    assert list(p.data.load(p.data.DataConfig(path=file, target="label"))[2].numeric) == ["a"]


@pytest.mark.parametrize(
    "column", [{"a": [1.0] * ROWS}, {"a": [None] * ROWS}, {"a": ["same"] * ROWS}]
)
def test_constant_column_does_not_make_inputs_nonfinite(
    package: Callable[[str], Any], tmp_path: Path, column: dict[str, Any]
) -> None:
    p = package("mlp")
    train, _, spec = load(p, tmp_path, {"b": range(ROWS), **column})
    prepared = p.data.Prepare(spec, p.data.DataConfig())(
        train.__getitems__([0, 1, 2]), True, torch.Generator()
    )
    assert prepared[0].isfinite().all()


def test_corrupt_parquet_is_one_line(package: Callable[[str], Any], tmp_path: Path) -> None:
    p, file = package("mlp"), tmp_path / "table.parquet"
    file.write_bytes(b"PAR1 nonsense")
    for path in (file, tmp_path, tmp_path / "missing.csv"):
        with pytest.raises(p.errors.UserError, match="cannot read the table") as caught:
            p.data.load(p.data.DataConfig(path=path, target="label"))
        assert "\n" not in str(caught.value)


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
    ],
)
def test_unusable_file_is_one_line(
    package: Callable[[str], Any], tmp_path: Path, content: str, keys: dict[str, Any], message: str
) -> None:
    p, file = package("mlp"), tmp_path / "table.csv"
    file.write_text(content)
    with pytest.raises(p.errors.UserError, match=message) as caught:
        p.data.load(p.data.DataConfig(path=file, **{"target": "label", **keys}))
    assert "\n" not in str(caught.value)


def test_a_test_file_with_another_class_is_one_line(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    p = package("mlp")
    test = tmp_path / "test.csv"
    test.write_text("a,label\n1,x\n2,z\n")
    splits = load(p, tmp_path, {"a": range(ROWS)}, test_path=test)
    assert splits[2].classes == ("x", "y")
    cfg = p.data.DataConfig(path=tmp_path / "table.csv", target="label", test_path=test)
    with pytest.raises(p.errors.UserError, match="the test has a class that the training lacks"):
        p.data.load_test(cfg)


def test_a_class_of_one_row_is_no_error(package: Callable[[str], Any], tmp_path: Path) -> None:
    labels = ["rare", *LABELS[1:]]
    train, val, spec = load(package("mlp"), tmp_path, {"a": range(ROWS), "label": labels})
    assert (len(train) + len(val), spec.classes) == (ROWS, ("rare", "x", "y"))
