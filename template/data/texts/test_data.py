"""Texts with labels: built-in statements, tokens, padding, splits, and the summary.

Delete this file and test_readers.py together with the example's data.py: nothing else needs them.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from .. import data
from ..config import parse
from ..errors import UserError
from ..readers import library, statements
from ..readers.subwords import decoder, encoder
from ..tools import view

pytestmark = pytest.mark.fast

WORDS = ("good", "fine", "lovely", "bad", "awful", "dull")


def rows(count: int = 60) -> dict[str, list[Any]]:
    """Texts of three to eight words, whose label says of which kind their last word is; no two are equal."""
    texts = [" ".join(["it", "was", *["very"] * (index % 6), f"n{index}", WORDS[index % 6]]) for index in range(count)]
    return {"text": texts, "label": [("pos", "neg")[index % 6 // 3] for index in range(count)]}


def write_and_load(folder: Path, content: Any, suffix: str = ".csv", **keys: Any) -> data.Data:
    """Write a file of texts, and load it with these config keys."""
    file = folder / f"texts{suffix}"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif isinstance(content, str):
        file.write_text(content, encoding="utf-8")
    else:
        frame = pl.DataFrame(content)
        writers: dict[str, Callable[[Path], Any]] = {
            ".parquet": frame.write_parquet,
            ".jsonl": frame.write_ndjson,
            ".json": frame.write_json,
        }
        writers.get(suffix, partial(frame.write_csv, separator="\t" if suffix == ".tsv" else ","))(file)
    return data.load(data.DataConfig(path=file, cache_dir=folder / "cache", vocabulary=300, **{"length": 32, **keys}))


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., data.Data]:
    """`write_and_load` in a temporary folder."""
    return partial(write_and_load, tmp_path)


def decoded(split: data.Texts, spec: data.Spec) -> list[str]:
    """The texts of a split, from its tokens."""
    tokens, lengths, _ = split.__getitems__(list(range(len(split))))
    decode = decoder(spec.tokenizer)
    return [decode(row[:length].tolist()).strip() for row, length in zip(tokens, lengths.tolist(), strict=True)]


def test_built_in_statements_have_their_keyword_as_label(tmp_path: Path) -> None:
    found = data.load(data.DataConfig(vocabulary=300, length=512, cache_dir=tmp_path))
    assert found.spec.classes == statements.KEYWORDS
    splits = [
        set(zip(decoded(split, found.spec), split.labels.tolist(), strict=True)) for split in (found.train, found.val)
    ]
    root, files = library.library_files()
    in_val = library.library_validation(root, files, 0.1)
    lines: tuple[set[str], set[str]] = (set(), set())
    for file in files:
        lines[file in in_val].update(line.strip() for line in file.read_text(errors="replace").splitlines())
    whole = [{f"{statements.KEYWORDS[label]} {text}" for text, label in split} for split in splits]
    for number in (0, 1):
        assert len(whole[number] - lines[number]) < 0.02 * len(whole[number]), "some have another space"
        assert splits[number]
    assert found.problems == ()
    assert {text for text, _ in splits[0]}.isdisjoint(text for text, _ in splits[1])
    counts = found.train.labels.bincount()
    assert counts.max() == statements.MOST
    assert counts.min() > 50


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".jsonl", ".json"])
def test_own_file_is_loaded(load: Callable[..., data.Data], suffix: str) -> None:
    content = rows()
    found = load(content, suffix, val_fraction=0.2)
    assert (len(found.train), len(found.val), found.spec.classes) == (48, 12, ("neg", "pos"))
    assert found.val.labels.bincount().tolist() == [6, 6], "stratified"
    both = zip(
        decoded(found.train, found.spec) + decoded(found.val, found.spec),
        torch.cat([found.train.labels, found.val.labels]).tolist(),
        strict=True,
    )
    assert sorted((text, found.spec.classes[label]) for text, label in both) == sorted(
        zip(*content.values(), strict=True)
    )


@pytest.mark.parametrize("padding", ["length", "batch"])
def test_batch_has_padding_and_mask(load: Callable[..., data.Data], padding: Any) -> None:
    found = load(rows(), length=32, padding=padding)
    encode = encoder(found.spec.tokenizer, 32)
    chosen = [3, 0, 17, len(found.train) - 1]
    expected = encode([decoded(found.train, found.spec)[index] for index in chosen])
    loaded = found.train.__getitems__(chosen)
    tokens, mask, labels = data.Prepare(found.spec, data.DataConfig())(loaded, True, torch.default_generator)
    longest = max(map(len, expected))
    assert tokens.shape == mask.shape == (4, 32 if padding == "length" else -(-longest // 8) * 8)
    assert (tokens.dtype, mask.dtype, labels.dtype) == (torch.int64, torch.bool, torch.int64)
    for row, ids in enumerate(expected):
        assert tokens[row][mask[row]].tolist() == ids.tolist()
        assert mask[row].nonzero().flatten().tolist() == list(range(len(ids)))
        assert not tokens[row][len(ids) :].any()
    assert torch.equal(labels, found.train.labels[chosen])


def test_long_texts_are_cut_between_the_marks_of_their_ends(load: Callable[..., data.Data]) -> None:
    found = load(rows(), length=5)
    tokens, lengths, _ = found.train.__getitems__(list(range(len(found.train))))
    assert lengths.tolist() == [5] * len(tokens)
    assert tokens[:, 0].tolist() == [1] * len(tokens)
    assert tokens[:, -1].tolist() == [2] * len(tokens)
    assert found.problems[0] == "train: 54 of 54 texts have data.length=5 tokens or more"


def test_no_character_is_unknown(load: Callable[..., data.Data]) -> None:
    content = rows()
    content["text"][4] = "größer 数据 \N{GRINNING FACE} é"
    found = load(content, length=64)
    assert content["text"][4] in decoded(found.train, found.spec) + decoded(found.val, found.spec)
    found = load(content, length=64, lowercase=True)
    encode = encoder(found.spec.tokenizer, 64)
    assert encode(["GOOD É"])[0].tolist() == encode(["good e"])[0].tolist()


def test_equal_texts_are_in_one_split(load: Callable[..., data.Data]) -> None:
    content = rows()
    content = {name: values * 3 for name, values in content.items()}
    content["label"][100] = "pos" if content["label"][100] == "neg" else "neg"  # one text has both labels
    found = load(content, val_fraction=0.3)
    assert len(found.train) + len(found.val) == 180
    assert set(decoded(found.train, found.spec)).isdisjoint(decoded(found.val, found.spec))


def test_summary_and_plot(load: Callable[..., data.Data]) -> None:
    content = rows()
    content["text"][0] = "costs $5 or $6"
    found = load(content)
    summary = view.summary(found)
    assert summary["train classes"] == "neg: 27, pos: 27"
    assert summary["tokens per text"].startswith("median ")
    batch = data.Prepare(found.spec, data.DataConfig())(
        found.train.__getitems__(list(range(len(found.train)))), True, torch.Generator()
    )
    figure = view.plot(batch, found.spec)
    assert [label.get_text() for label in figure.axes[0].texts][::2] == [
        found.spec.classes[label] for label in found.train.labels.tolist()
    ]
    figure.savefig(os.devnull, format="png")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data.val_path=a.csv"], "data.val_path is a.csv: it needs a file of your own"),
        (["--data.padding=batch", "--data.cache=device"], "data.cache is device: .* use data.padding=length"),
    ],
)
def test_contradictory_keys_are_an_error(options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse("test", "", options)


def test_spec_is_all_that_new_texts_need(load: Callable[..., data.Data]) -> None:
    assert json.loads(load(rows()).spec.tokenizer)["model"]["type"] == "BPE"
