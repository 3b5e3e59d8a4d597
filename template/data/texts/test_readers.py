"""Your own texts: files, labels, tokenizers, caches, and errors.

Delete this file together with the example's data.py: nothing else needs it.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tokenizers
import torch

from .. import data
from ..errors import UserError
from ..readers import encoded, labeled, subwords
from .test_data import decoded, rows, write_and_load


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., data.Data]:
    """`write_and_load` in a temporary folder."""
    return partial(write_and_load, tmp_path)


def write_words(folder: Path) -> Path:
    """The folder of a tokenizer with one token per word, as transformers saves it, with a limit and padding."""
    known = ["[CLS]", "[SEP]", "it", "was", "very", "good", "bad", "?"]
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: number for number, word in enumerate(known)}, "?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    words.enable_truncation(3)
    words.enable_padding(length=50)
    folder.mkdir()
    words.save(str(folder / "tokenizer.json"))
    return folder


def test_tokenizer_of_your_own(load: Callable[..., data.Data], tmp_path: Path) -> None:
    folder = write_words(tmp_path / "words")
    for path in (folder, folder / "tokenizer.json"):
        found = load(rows(), tokenizer=str(path))
        assert found.spec.vocabulary == 8
        tokens, lengths, _ = found.train.__getitems__([0, 1, 2])
        for row, length in zip(tokens, lengths.tolist(), strict=True):
            assert row[:4].tolist()[:3] == [0, 2, 3]
            assert row[length - 1] == 1
    shutil.rmtree(folder)
    assert subwords.encoder(found.spec.tokenizer, 32)(["it was bad"])[0].tolist() == [0, 2, 3, 6, 1]
    with pytest.raises(UserError, match=r"data.tokenizer=.*words has no tokenizer.json: give one, or `train`"):
        load(rows(), tokenizer=str(folder))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UserError, match=r"bad.json is not a tokenizer.json of tokenizers \("):
        load(rows(), tokenizer=str(tmp_path / "bad.json"))


def test_training_a_tokenizer_is_reproducible() -> None:
    texts = rows(200)["text"]
    found = {subwords.train_byte_pairs(texts, 400, False) for _ in range(5)}
    assert len(found) == 1


def test_a_tokenizer_is_trained_on_the_first_part_of_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subwords, "MOST", 8)
    assert subwords.train_byte_pairs(["ab ab ab" + "cd" * 50], 300, False) == subwords.train_byte_pairs(
        ["ab ab ab"], 300, False
    )


def test_json_lines_may_begin_with_a_byte_order_mark(load: Callable[..., data.Data]) -> None:
    lines = pl.DataFrame(rows()).write_ndjson().encode()
    assert len(load(b"\xef\xbb\xbf" + lines, ".jsonl").train) == 54


def test_texts_are_encoded_once(load: Callable[..., data.Data], monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    build = encoded._build

    def note(*of: Any) -> Any:
        built.append(of)
        return build(*of)

    monkeypatch.setattr(encoded, "_build", note)
    first, again = load(rows()), load(rows())
    assert len(built) == 2, "the file was written again"
    cfg = built[0][0]
    for _ in range(2):
        again = data.load(cfg)
    assert len(built) == 2
    assert first.spec == again.spec
    assert torch.equal(first.val.tokens, again.val.tokens)
    assert data.load(replace(cfg, padding="batch")).train.padding == "batch"
    assert len(built) == 2
    data.load(replace(cfg, length=9))
    assert len(built) == 3


def test_columns_and_kinds_of_labels(load: Callable[..., data.Data]) -> None:
    texts = rows()["text"]
    for labels, expected in (
        ([index % 3 * 5 for index in range(60)], ("0", "5", "10")),
        ([float(index % 2) for index in range(60)], ("0", "1")),
        ([index % 2 == 0 for index in range(60)], ("false", "true")),
    ):
        found = load({"review": texts, "stars": labels}, ".parquet", text="review", label="stars")
        assert found.spec.classes == expected


def test_cells_of_csv_are_text(load: Callable[..., data.Data]) -> None:
    """Numbers, and what stands for a missing value in a table."""
    texts = ["NA", "null", "?", "007", "1.50", "a, b", 'say "hi"', "two\nlines"] * 5
    found = load({"text": texts, "label": ["n/a", "x"] * 20}, val_fraction=0.2)
    assert found.spec.classes == ("n/a", "x")
    assert set(decoded(found.train, found.spec) + decoded(found.val, found.spec)) == set(texts)


def test_rows_without_text_or_label_are_skipped_up_to_a_limit(load: Callable[..., data.Data]) -> None:
    content = rows()
    content["text"][3], content["text"][8], content["label"][20] = None, "  ", None
    found = load(content, max_unreadable=0.05)
    assert len(found.train) + len(found.val) == 57
    assert any("3 of 60 rows" in line and "row 4, 9, 21" in line for line in found.problems)
    with pytest.raises(UserError, match="3 of 60 rows .* have no text or no label .* raise data.max_unreadable=0.04"):
        load(content, max_unreadable=0.04)


def test_validation_file(load: Callable[..., data.Data], tmp_path: Path) -> None:
    val = {"text": ["it was good", rows()["text"][0]], "label": ["pos", "pos"]}
    pl.DataFrame(val).write_ndjson(tmp_path / "val.jsonl")
    found = load(rows(), val_path=tmp_path / "val.jsonl")
    assert (len(found.train), len(found.val)) == (60, 2)
    assert any(line.startswith("1 texts of") for line in found.problems)
    pl.DataFrame({**val, "label": ["pos", "odd"]}).write_ndjson(tmp_path / "val.jsonl")
    with pytest.raises(UserError, match="data.val_path=.* has classes that data.path does not have, odd"):
        load(rows(), val_path=tmp_path / "val.jsonl")


def test_missing_files_are_named(tmp_path: Path) -> None:
    pl.DataFrame(rows()).write_csv(tmp_path / "a.csv")
    given: dict[str, dict[str, Any]] = {
        "path": {"path": tmp_path / "none.csv"},
        "val_path": {"path": tmp_path / "a.csv", "val_path": tmp_path / "none"},
    }
    for key, options in given.items():
        with pytest.raises(UserError, match=f"^data.{key}=.*none.* does not exist: give a file$"):
            data.load(data.DataConfig(cache_dir=tmp_path / "cache", **options))


def test_classes_too_small_for_validation_stay_in_training(load: Callable[..., data.Data]) -> None:
    content = rows()
    content["label"][7] = "once"
    found = load(content)
    assert any("too few texts for the validation split: once" in line for line in found.problems)
    assert 1 in found.train.labels.bincount().tolist()


def test_split_depends_only_on_the_texts(tmp_path: Path) -> None:
    content = rows()
    (first, _), (second, _) = (
        labeled.split(*order, 0.3)[1]
        for order in (
            (content["text"], [0] * 60),
            (content["text"][::-1], [0] * 60),
        )
    )
    assert sorted(first) == sorted(second)


CSV = "text,label\n" + "".join(f"text {index},{'xy'[index % 2]}\n" for index in range(30))
NESTED = '{"text": "a", "label": ["x", "y"]}\n{"text": "b", "label": ["x"]}\n'


@pytest.mark.parametrize(
    ("content", "suffix", "keys", "message"),
    [
        ("", ".csv", {}, "data.path=.*texts.csv is empty"),
        ("text,label\n", ".csv", {}, "has no rows"),
        (CSV, ".xlsx", {}, "give a file that ends in .csv, .tsv, .parquet, .jsonl, .ndjson, .json"),
        (CSV, ".csv", {"text": "txt"}, "data.text: .* has no column txt; did you mean text"),
        (CSV, ".csv", {"label": "class"}, "data.label: .* has no column class; it has text, label"),
        (CSV.replace("y\n", "x\n"), ".csv", {}, "data.label=label is x in every row"),
        (CSV, ".csv", {"label": "text"}, "has 30 distinct values in 30 rows, too many for classes"),
        (CSV.encode() + "ü,x\n".encode("latin-1"), ".csv", {}, r"is not UTF-8 \(line 32"),
        (CSV + "a,x,more\n", ".csv", {}, "cannot read .*found more fields"),
        (
            '{"text": "a"}\n\n{"text": "a", "label"\n',
            ".jsonl",
            {},
            "line 3 is not JSON.: give one JSON object per line",
        ),
        ("[1, 2]", ".json", {}, "cannot read|has no column"),
        (NESTED * 5, ".jsonl", {}, r"data.label=label of .* contains List.*each text needs one class"),
        ('{"text": 1, "label": "x"}\n{"text": 2, "label": "y"}\n', ".jsonl", {}, "contains Int64 instead of text"),
        ({"text": ["a", "b"] * 9, "label": [0.5, 1.0] * 9}, ".parquet", {}, "contains Float64: each text needs one"),
        (CSV, ".csv", {"val_fraction": 0.001}, "of 30 texts leaves one split empty"),
        ({"text": ["same"] * 9, "label": ["x", "y", "z"] * 3}, ".csv", {}, "leaves one split empty"),
    ],
)
def test_invalid_file_is_an_error(
    load: Callable[..., data.Data], content: Any, suffix: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load(content, suffix, **keys)
    assert "\n" not in str(caught.value)
