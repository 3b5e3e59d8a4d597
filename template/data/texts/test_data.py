"""Texts with labels: built-in statements, padding, classes, your own files."""

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tokenizers import Tokenizer

from .. import data

WORDS = ("good", "fine", "lovely", "bad", "awful", "dull")
"""The first three are in texts with the label `pos`, the others in those with `neg`."""


def make_texts(copies: int = 1) -> pd.DataFrame:
    """Return 60 different texts with labels, each several times."""
    rows = []
    for number in range(60):
        word = WORDS[number % 6]
        label = "pos" if number % 6 < 3 else "neg"
        very = "very " * (number % 6)
        rows.append((f"it was {very}n{number} {word}", label))
    return pd.DataFrame(rows * copies, columns=["text", "label"])


def config(
    file: Path,
    frame: pd.DataFrame,
    **keys: Any,
) -> data.DataConfig:
    """Write a file of texts, and return a config that reads it."""
    if file.suffix == ".csv":
        frame.to_csv(file, index=False)
    else:
        frame.to_parquet(file)
    options = {"vocabulary": 300, "length": 32, **keys}
    return data.DataConfig(path=file, **options)


def decode(
    split: data.Texts,
    spec: data.Spec,
) -> set[str]:
    """Return the texts of a split, from its tokens."""
    tokenizer = Tokenizer.from_str(spec.tokenizer)
    tokens = split.tensors[0].tolist()
    return {tokenizer.decode(row).strip() for row in tokens}


def test_statements_lack_the_keyword_and_are_in_one_split() -> None:
    cfg = data.DataConfig(length=32, vocabulary=1000)
    train, val, spec = data.load(cfg)
    assert spec.vocabulary == 1000
    assert spec.classes == data.KEYWORDS
    assert train.tensors[2].bincount().max() == 4000
    texts = decode(train, spec)
    assert len(texts & decode(val, spec)) < 30  # those that were cut to 32 tokens
    assert sum(text.startswith("if ") for text in texts) < 20
    assert data.load_test(cfg) is None


def test_the_mask_covers_the_tokens_of_a_text(tmp_path: Path) -> None:
    cfg = config(tmp_path / "a.csv", make_texts())
    train, _, spec = data.load(cfg)
    prepare = data.Prepare(spec, cfg)
    batch = train.__getitems__([3, 0, 17])
    tokens, mask, labels = prepare(
        batch,
        True,
        torch.Generator(),
    )
    assert tokens.shape == mask.shape == (3, 32)
    assert labels.shape == (3,)
    assert tokens.dtype == torch.int64
    assert torch.equal(mask, tokens != 0)
    ends = mask.sum(1) - 1
    assert tokens[:, 0].tolist() == [1, 1, 1]
    assert tokens[range(3), ends].tolist() == [2, 2, 2]


def test_splits_have_their_fraction_and_equal_texts_are_not_divided(tmp_path: Path) -> None:
    cfg = config(
        tmp_path / "a.parquet",
        make_texts(copies=3),
        val_fraction=0.3,
        test_fraction=0.2,
    )
    train, val, spec = data.load(cfg)
    test = data.load_test(cfg)
    assert test
    assert len(train) + len(val) + len(test) == 180
    assert 30 < len(val) < 80
    assert 10 < len(test) < 60
    texts = [decode(split, spec) for split in (train, val, test)]
    assert len(set.union(*texts)) == sum(map(len, texts))
