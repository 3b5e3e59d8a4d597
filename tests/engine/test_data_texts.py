"""Texts: the tokenizer, cells of CSV, and files that cannot be read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tokenizers import Tokenizer


def load(project: Any, folder: Path, texts: list[str], **keys: Any) -> Any:
    """Write a CSV file of texts with two classes, and load it."""
    labels = [("x", "y")[index % 2] for index in range(len(texts))]
    pd.DataFrame({"text": texts, "label": labels}).to_csv(folder / "a.csv", index=False)
    cfg = project.data.DataConfig(
        path=folder / "a.csv", **{"vocabulary": 300, "length": 32, "val_fraction": 0.3, **keys}
    )
    return project.data.load(cfg)


def decoded(spec: Any, *parts: Any) -> set[str]:
    tokenizer = Tokenizer.from_str(spec.tokenizer)
    return {tokenizer.decode(row).strip() for part in parts for row in part.tensors[0].tolist()}


def test_cells_are_text_and_no_character_is_unknown(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    texts = [
        "NA",
        "null",
        "?",
        "007",
        "1.50",
        "a, b",
        'say "hi"',
        "two\nlines",
        "größer 数据 \N{GRINNING FACE}",
    ]
    texts += [f"text {index}" for index in range(11)]
    train, val, spec = load(package("bert"), tmp_path, texts)
    assert decoded(spec, train, val) == set(texts)


def test_training_a_tokenizer_is_reproducible(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    texts = [f"it was text number {index}" for index in range(100)]
    assert (
        len({load(package("bert"), tmp_path, texts, vocabulary=400)[2].tokenizer for _ in range(3)})
        == 1
    )


def test_a_tokenizer_of_your_own_is_used(package: Callable[[str], Any], tmp_path: Path) -> None:
    project = package("bert")
    texts = [f"it was text number {index}" for index in range(20)]
    spec = load(project, tmp_path, texts, vocabulary=350)[2]
    (tmp_path / "own.json").write_text(spec.tokenizer)
    again = load(project, tmp_path, texts, tokenizer=str(tmp_path / "own.json"), length=8)[2]
    assert (again.vocabulary, again.length) == (spec.vocabulary, 8)


@pytest.mark.parametrize(
    "content", [b"", "text,label\nü,x\n".encode("latin-1"), b"text,label\na,x\nb,y,z,w\n"]
)
def test_what_is_no_table_is_one_line(
    package: Callable[[str], Any], tmp_path: Path, content: bytes
) -> None:
    project = package("bert")
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(project.errors.UserError, match="cannot read columns text and label"):
        project.data.load(project.data.DataConfig(path=tmp_path / "a.csv"))


def test_classes_are_sorted_as_text(package: Callable[[str], Any], tmp_path: Path) -> None:
    project = package("bert")
    stars = [("nan", 2, 10)[index % 3] for index in range(60)]
    pd.DataFrame({"review": [f"n{index}" for index in range(60)], "stars": stars}).to_csv(
        tmp_path / "a.csv"
    )
    cfg = project.data.DataConfig(
        path=tmp_path / "a.csv", text="review", label="stars", vocabulary=300
    )
    assert project.data.load(cfg)[2].classes == ("10", "2", "nan")


def test_long_texts_are_cut_between_the_marks_of_their_ends(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    texts = [f"it was text number {index}" for index in range(20)]
    train, _, _ = load(package("bert"), tmp_path, texts, length=5)
    assert train.tensors[1].unique().tolist() == [5]
    assert train.tensors[0][:, -1].unique().tolist() == [2]


def test_wrong_files_and_columns_are_one_line(
    package: Callable[[str], Any], tmp_path: Path
) -> None:
    p = package("bert")
    texts = [f"it was text number {index}" for index in range(20)]
    message = "cannot read columns text and label of data.path=.*nowhere.csv"
    with pytest.raises(p.errors.UserError, match=message):
        p.data.load(p.data.DataConfig(path=tmp_path / "nowhere.csv"))
    with pytest.raises(p.errors.UserError, match="cannot read columns text and class of .*class"):
        load(p, tmp_path, texts, label="class")
    with pytest.raises(p.errors.UserError, match="has a row without text or without label"):
        load(p, tmp_path, ["", *texts])
    with pytest.raises(p.errors.UserError, match="needs two classes or more"):
        load(p, tmp_path, texts[:1])
    with pytest.raises(p.errors.UserError, match="data.tokenizer=none.json does not exist"):
        load(p, tmp_path, texts, tokenizer="none.json")
