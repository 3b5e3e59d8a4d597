"""Your own texts with labels: the rows of a CSV, Parquet or JSON-lines file."""

import codecs
import difflib
import json
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import polars as pl

from ..errors import UserError
from .common import abbreviate
from .frame import SUFFIXES, check_file, read_frame
from .library import name_digest
from .statements import Rows

JSON = (".jsonl", ".ndjson", ".json")


class LabeledConfig(Protocol):
    """The fields of `DataConfig` that this reader uses."""

    @property
    def text(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def val_fraction(self) -> float: ...

    @property
    def max_unreadable(self) -> float: ...


def read_files(cfg: LabeledConfig, files: list[Path], problems: list[str]) -> tuple[Rows, Rows, tuple[str, ...]]:
    """Read the texts and labels of train and val, and the names of the classes; `files` are one or two.

    Raises:
        UserError: a file or a column is missing or unsuitable, or a class has too few texts.
    """
    keys = ("data.path", "data.val_path")
    parts = [_read_labeled(cfg, file, key, problems) for file, key in zip(files, keys, strict=False)]
    texts, names = parts[0]
    classes = tuple(sorted(set(names), key=numbers_first))
    if len(classes) < 2:
        raise UserError(f"data.label={cfg.label} is {classes[0]} in every row of {files[0]}: it must vary")
    if len(classes) > len(texts) / 2:
        raise UserError(
            f"data.label={cfg.label} has {len(classes)} distinct values in {len(texts)} rows, too many for classes: "
            "name another column"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    train = texts, [numbers[name] for name in names]
    if len(parts) == 1:
        train, val = split(*train, cfg.val_fraction)
        if missing := sorted(set(range(len(classes))) - set(val[1])):
            few = abbreviate([classes[number] for number in missing])
            problems.append(f"classes with too few texts for the validation split: {few}")
        return train, val, classes
    texts, names = parts[1]
    if new := sorted(set(names) - set(classes)):
        raise UserError(
            f"data.val_path={files[1]} has classes that data.path does not have, {abbreviate(new)}: add texts"
        )
    if known := len(set(texts) & set(train[0])):
        problems.append(f"{known} texts of {files[1]} are in {files[0]}, too")
    return train, (texts, [numbers[name] for name in names]), classes


def read_texts(file: Path, column: str, key: str = "") -> tuple[pl.DataFrame, list[str | None]]:
    """Read a table, and the texts in one of its columns; None where there is no text.

    Raises:
        UserError: the file or the column is missing or unsuitable.
    """
    check_file(file, key, (*SUFFIXES, *JSON))
    frame = _read_json(file) if file.suffix.lower() in JSON else read_frame(file, as_text=True)
    if not len(frame):
        raise UserError(f"{file} has no rows: add some")
    texts = _column(frame, column, file, "data.text")
    if texts.dtype not in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        raise UserError(f"column {column} of {file} contains {texts.dtype} instead of text: name another, data.text")
    stripped = texts.cast(pl.String).str.strip_chars()
    return frame, [text or None for text in stripped.to_list()]


def _read_labeled(cfg: LabeledConfig, file: Path, key: str, problems: list[str]) -> tuple[list[str], list[str]]:
    """The texts and the names of their classes, without rows that lack one of them."""
    frame, texts = read_texts(file, cfg.text, key)
    rows = list(zip(texts, _names(_column(frame, cfg.label, file, "data.label"), file), strict=True))
    found = [(text, name) for text, name in rows if text is not None and name is not None]
    if len(found) < len(rows):
        lacking = [number for number, row in enumerate(rows, 1) if None in row]
        message = (
            f"{len(lacking)} of {len(rows)} rows of {file} have no text or no label (row {abbreviate(lacking, 3)})"
        )
        if len(lacking) > cfg.max_unreadable * len(rows) or not found:
            raise UserError(f"{message}: fill or remove them, or raise data.max_unreadable={cfg.max_unreadable:g}")
        problems.append(f"{message} and are skipped")
    return [text for text, _ in found], [name for _, name in found]


def _read_json(file: Path) -> pl.DataFrame:
    """A JSON array of objects, or one object per line."""
    try:
        content = file.read_bytes().removeprefix(codecs.BOM_UTF8)
        is_array = content[:1024].lstrip()[:1] == b"["
        read = pl.read_json if is_array else pl.read_ndjson
        return read(content, infer_schema_length=None)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if not isinstance(error, OSError) and not is_array:
            reason = _broken_line(content) or reason
        raise UserError(f"cannot read {file} ({reason}): give one JSON object per line, in UTF-8") from error


def _broken_line(content: bytes) -> str:
    """Say which line is no JSON; empty if all are."""
    for number, line in enumerate(content.splitlines(), 1):
        try:
            json.loads(line.strip() or b"0")
        except ValueError:  # also of bytes that are not UTF-8
            return f"line {number} is not JSON"
    return ""


def _column(frame: pl.DataFrame, name: str, file: Path, key: str) -> pl.Series:
    if name in frame.columns:
        return frame[name]
    similar = difflib.get_close_matches(name, frame.columns, 1)
    hint = f"did you mean {similar[0]}? " if similar else ""
    raise UserError(f"{key}: {file} has no column {name}; {hint}it has {abbreviate(frame.columns, 20)}")


def _names(column: pl.Series, file: Path) -> list[str | None]:
    """The names of the classes; integers have no decimal point."""
    kind = column.dtype
    if kind.is_float() and bool((column.drop_nulls() == column.drop_nulls().round()).all()):
        column = column.cast(pl.Int64)
    elif kind.is_nested() or kind.is_temporal() or kind.is_float() or kind.is_decimal() or kind == pl.Binary:
        raise UserError(
            f"data.label={column.name} of {file} contains {kind}: each text needs one class, a name or an integer"
        )
    return [(text or "").strip() or None for text in column.cast(pl.String).to_list()]


def split(texts: list[str], labels: list[int], val_fraction: float) -> tuple[Rows, Rows]:
    """Split by a hash of the text, with the same fraction of each class; equal texts are never divided.

    Raises:
        UserError: a split is empty.
    """
    order = sorted(set(zip(labels, texts, strict=True)), key=lambda row: (row[0], name_digest(row[1])))
    quota = [int(number * val_fraction + 0.5) for number in range(len(order) + 1)]
    chosen = {row for row, (before, after) in zip(order, pairwise(quota), strict=True) if after > before}
    trained = {label for label, text in order if (label, text) not in chosen}
    in_val = {text for label, text in chosen if label in trained}
    rows = list(zip(texts, labels, strict=True))
    parts = [[row for row in rows if (row[0] in in_val) == wanted] for wanted in (False, True)]
    if not all(parts):
        raise UserError(f"data.val_fraction={val_fraction} of {len(rows)} texts leaves one split empty: add texts")
    train, val = (([text for text, _ in part], [label for _, label in part]) for part in parts)
    return train, val


def numbers_first(text: str) -> tuple[bool, float, str]:
    """A sort key: numbers by value, then other texts."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text
