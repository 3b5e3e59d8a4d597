"""Texts with labels: built-in statements, padding, classes, your own files, and errors."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer

from .. import data
from ..errors import UserError

WORDS = ("good", "fine", "lovely", "bad", "awful", "dull")


def rows(count: int = 60) -> dict[str, list[Any]]:
    """Return texts whose label says of which kind their last word is; no two are equal."""
    texts = [
        " ".join(["it", "was", *["very"] * (index % 6), f"n{index}", WORDS[index % 6]])
        for index in range(count)
    ]
    return {"text": texts, "label": [("pos", "neg")[index % 6 // 3] for index in range(count)]}


def write_and_load(
    folder: Path, content: dict[str, list[Any]], suffix: str = ".csv", **keys: Any
) -> Any:
    """Write a file of texts, and load it."""
    file = folder / f"texts{suffix}"
    frame = pd.DataFrame(content)
    if suffix == ".csv":
        frame.to_csv(file, index=False)
    else:
        frame.to_parquet(file)
    return data.load(data.DataConfig(path=file, vocabulary=300, **{"length": 32, **keys}))


def decoded(part: data.Texts, spec: data.Spec) -> list[str]:
    """Return the texts of a split, from its tokens."""
    tokenizer = Tokenizer.from_str(spec.tokenizer)
    return [tokenizer.decode(tokens).strip() for tokens in part.tensors[0].tolist()]


def test_statements_lack_the_keyword_and_are_in_one_split() -> None:
    train, val, spec = data.load(data.DataConfig(length=32, vocabulary=1000))
    assert (spec.vocabulary, len(spec.classes), spec.classes[4]) == (1000, 11, "if")
    assert train.tensors[2].bincount().max() == 4000
    texts = [set(decoded(part, spec)) for part in (train, val)]
    assert len(texts[0] & texts[1]) < 30  # those that were cut to 32 tokens
    assert sum(text.startswith("if ") for text in texts[0]) < 20


def test_the_mask_covers_the_tokens_of_a_text(tmp_path: Path) -> None:
    train, _, spec = write_and_load(tmp_path, rows())
    cfg = data.DataConfig()
    tokens, mask, labels = data.Prepare(spec, cfg)(
        train.__getitems__([3, 0, 17]), True, torch.Generator()
    )
    assert (tokens.shape, mask.shape, labels.shape) == ((3, 32), (3, 32), (3,))
    assert (tokens.dtype, mask.dtype) == (torch.int64, torch.bool)
    assert torch.equal(mask, tokens != 0)
    assert tokens[:, 0].tolist() == [1, 1, 1]
    assert [row[keep][-1].item() for row, keep in zip(tokens, mask, strict=True)] == [2, 2, 2]


def test_long_texts_are_cut_between_the_marks_of_their_ends(tmp_path: Path) -> None:
    train, _, _ = write_and_load(tmp_path, rows(), length=5)
    assert train.tensors[1].unique().tolist() == [5]
    assert train.tensors[0][:, -1].unique().tolist() == [2]


def test_each_class_has_its_fraction_and_equal_texts_are_not_divided(tmp_path: Path) -> None:
    content = {name: values * 3 for name, values in rows().items()}
    train, val, spec = write_and_load(tmp_path, content, ".parquet", val_fraction=0.3)
    assert len(train) + len(val) == 180
    assert val.tensors[2].bincount().tolist() == [27, 27]
    assert set(decoded(train, spec)).isdisjoint(decoded(val, spec))


def test_wrong_files_and_columns_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="cannot read columns text and label of data.path=.*nowhere.csv"
    ):
        data.load(data.DataConfig(path=tmp_path / "nowhere.csv"))
    with pytest.raises(UserError, match="cannot read columns text and class of .*class"):
        write_and_load(tmp_path, rows(), label="class")
    content = rows()
    content["text"][7] = ""
    with pytest.raises(UserError, match="has a row without text or without label"):
        write_and_load(tmp_path, content)
    with pytest.raises(UserError, match="needs two classes or more"):
        write_and_load(tmp_path, rows() | {"label": ["x"] * 60})
    with pytest.raises(UserError, match="data.tokenizer=none.json does not exist"):
        write_and_load(tmp_path, rows(), tokenizer="none.json")
