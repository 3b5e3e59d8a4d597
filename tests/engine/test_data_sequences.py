"""Series: files that cannot be read, and the kinds of columns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b""),
        ("a.csv", "größe\n1\n".encode("latin-1")),
        ("a.csv", b"a,b\n1,2\n3,4,5,6\n"),
        ("a.parquet", b"PAR1 no"),
    ],
)
def test_what_is_no_table_is_one_line(
    package: Callable[[str], Any], tmp_path: Path, name: str, content: bytes
) -> None:
    project = package("lstm")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(project.errors.UserError, match="cannot read data.path=") as caught:
        project.data.load(project.data.DataConfig(kind="series", path=tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_table_without_numbers_is_refused(package: Callable[[str], Any], tmp_path: Path) -> None:
    project = package("lstm")
    (tmp_path / "a.csv").write_text("note\n" + "dry\n" * 200)
    with pytest.raises(project.errors.UserError, match="are not all numbers"):
        project.data.load(project.data.DataConfig(kind="series", path=tmp_path / "a.csv"))


def test_dates_and_words_are_ignored(package: Callable[[str], Any], tmp_path: Path) -> None:
    project = package("lstm")
    dates = pd.date_range("2024-01-01", periods=300, freq="h").astype(str)
    frame = pd.DataFrame({"when": dates, "day": "01.02.2024", "load": range(300), "wet": True})
    frame.to_csv(tmp_path / "a.csv", index=False)
    _, _, spec = project.data.load(
        project.data.DataConfig(kind="series", path=tmp_path / "a.csv", window=8, horizon=2)
    )
    assert spec.columns == ("load",)


def test_an_empty_text_is_one_line(package: Callable[[str], Any], tmp_path: Path) -> None:
    project = package("lstm")
    with pytest.raises(project.errors.UserError, match="0 values in a split"):
        project.data.load(project.data.DataConfig(path=tmp_path))


def test_a_decimal_comma_is_read_with_the_option_and_large_numbers_keep_their_differences(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    """In float32, numbers around 1e9 differ by 64 at least."""
    project, file = package("lstm"), tmp_path / "a.csv"
    file.write_text("load;note\n" + "".join(f"{10**9 + index},5;x\n" for index in range(200)))
    cfg = project.data.DataConfig(kind="series", path=file, window=12, horizon=4, decimal="comma")
    train, _, spec = project.data.load(cfg)
    assert spec.columns == ("load",)
    assert spec.mean[0] == pytest.approx(1e9 + 80, abs=0.01)
    assert train.__getitems__([0])[0][0, :, 0].unique().numel() == 16


def write(file: Path, rows: int = 200, **others: Any) -> Path:
    """Write a table with two numeric columns and one of words."""
    columns = {"load": range(10, 10 + rows), "price": range(rows), "note": "dry", **others}
    pd.DataFrame(columns).to_csv(file, index=False)
    return file


def test_missing_values_repeat_the_last_one_and_constants_are_zero(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    data = package("lstm").data
    holes = [None, 5.0, None, *range(197)]
    file = write(tmp_path / "a.csv", a=holes, flat=0.1)
    cfg = data.DataConfig(kind="series", path=file, window=12, horizon=4, columns=("a", "flat"))
    train, _, spec = data.load(cfg)
    rows = train.__getitems__([0])[0][0]
    values = rows[:3, 0] * spec.std[0] + spec.mean[0]
    assert values.tolist() == pytest.approx([5.0, 5.0, 0.0], abs=1e-4)
    assert rows[:, 1].abs().max() < 1e-6


def test_wrong_columns_are_one_line(package: Callable[[str], Any], tmp_path: Path) -> None:
    p = package("lstm")

    def load(file: Path, **keys: Any) -> None:
        cfg = p.data.DataConfig(kind="series", path=file, window=12, horizon=4, **keys)
        p.data.load(cfg)

    file = tmp_path / "a.csv"
    with pytest.raises(p.errors.UserError, match="cannot read data.path=.*a.csv"):
        load(file)
    with pytest.raises(
        p.errors.UserError,
        match=r"\['wind'\] are not all numbers: set data.columns, or data.decimal",
    ):
        load(write(file), columns=("wind",))
    with pytest.raises(
        p.errors.UserError, match=r"'big'\] are not all numbers: set data.columns, or data.decimal"
    ):
        load(write(file, big="1,234"))
    with pytest.raises(p.errors.UserError, match="10 values in a split, but a window has 16"):
        load(write(file, rows=12))
