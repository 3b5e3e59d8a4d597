"""Texts: the tokenizer, cells of CSV, and files that cannot be read."""

import dataclasses
import io
import json
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from engine import Package
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

MODEL = "bert"


def load(
    project: Any,
    folder: Path,
    texts: list[str],
    **keys: Any,
) -> Any:
    """Write a CSV file of texts with two classes, and load it."""
    labels = [("x", "y")[index % 2] for index in range(len(texts))]
    pd.DataFrame({"text": texts, "label": labels}).to_csv(folder / "a.csv", index=False)
    cfg = project.data.DataConfig(
        path=folder / "a.csv", **{"vocabulary": 300, "length": 32, "val_fraction": 0.3, **keys}
    )
    return project.data.load(cfg)


def decoded(spec: Any, *parts: Any) -> set[str]:
    tokenizer = Tokenizer.from_str(spec.tokenizer)
    found = set()
    for part in parts:
        found |= {tokenizer.decode(row).strip() for row in part.tensors[0].tolist()}
    return found


def test_cells_are_text_and_no_character_is_unknown(p: Package, tmp_path: Path) -> None:
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
    train, val, spec = load(p, tmp_path, texts)
    assert decoded(spec, train, val) == set(texts)


def test_training_a_tokenizer_is_reproducible(p: Package, tmp_path: Path) -> None:
    texts = [f"it was text number {index}" for index in range(100)]
    assert len({load(p, tmp_path, texts, vocabulary=400)[2].tokenizer for _ in range(3)}) == 1


def test_a_tokenizer_of_your_own_is_used(p: Package, tmp_path: Path) -> None:
    project = p
    texts = [f"it was text number {index}" for index in range(20)]
    spec = load(project, tmp_path, texts, vocabulary=350)[2]
    (tmp_path / "own.json").write_text(spec.tokenizer)
    again = load(project, tmp_path, texts, tokenizer=str(tmp_path / "own.json"), length=8)[2]
    assert (again.vocabulary, again.length) == (spec.vocabulary, 8)


def test_classes_are_sorted_as_text(p: Package, tmp_path: Path) -> None:
    project = p
    stars = [("nan", 2, 10)[index % 3] for index in range(60)]
    pd.DataFrame({"review": [f"n{index}" for index in range(60)], "stars": stars}).to_csv(
        tmp_path / "a.csv"
    )
    cfg = project.data.DataConfig(
        path=tmp_path / "a.csv", text="review", label="stars", vocabulary=300
    )
    assert project.data.load(cfg)[2].classes == ("10", "2", "nan")


def test_long_texts_are_cut_between_the_marks_of_their_ends(p: Package, tmp_path: Path) -> None:
    texts = [f"it was text number {index}" for index in range(20)]
    train, _, _ = load(p, tmp_path, texts, length=5)
    assert train.tensors[1].unique().tolist() == [5]
    assert train.tensors[0][:, -1].unique().tolist() == [2]


def table(rows: list[dict[str, Any]], kind: str) -> bytes:
    """Return the content of a file; columns of Parquet may have the same name."""
    frame = pd.DataFrame(rows)
    return frame.to_csv(index=False).encode() if kind == "csv" else parquet(frame)


def parquet(frame: pd.DataFrame) -> bytes:
    """Return the content of a file."""
    stream = io.BytesIO()
    frame.to_parquet(stream)
    return stream.getvalue()


def make_rows(labels: list[Any], count: int = 40) -> list[dict[str, Any]]:
    return [
        {"text": f"text {index}", "label": labels[index % len(labels)]} for index in range(count)
    ]


def lines(labels: list[Any]) -> bytes:
    return "\n".join(json.dumps(row) for row in make_rows(labels)).encode()


TEXTS = "".join(f"text {index},{'ab'[index % 2]}\n" for index in range(40))
CSV = f"text,label\n{TEXTS}"
UNDERSTOOD: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    "plain": ("a.csv", CSV.encode(), ("a", "b")),
    "a byte-order mark": ("a.csv", CSV.encode("utf-8-sig"), ("a", "b")),
    "Windows line ends": ("a.csv", CSV.replace("\n", "\r\n").encode(), ("a", "b")),
    "an upper-case suffix": ("a.CSV", CSV.encode(), ("a", "b")),
    "tabs": ("a.tsv", CSV.replace(",", "\t").encode(), ("a", "b")),
    "semicolons": ("a.csv", CSV.replace(",", ";").encode(), ("a", "b")),
    "separators in names": (
        "a.tsv",
        CSV.replace(",", "\t\t").replace("\t\t", "\t(raw, clean, long, short)\t", 1).encode(),
        ("a", "b"),
    ),
    "separators in quoted names": (
        "a.csv",
        CSV.replace(",", ";;").replace(";;", ';"title, or, headline";', 1).encode(),
        ("a", "b"),
    ),
    "tabs in CSV": ("a.csv", CSV.replace(",", "\t").encode(), ("a", "b")),
    "blank rows": (
        "a.csv",
        CSV.replace("\ntext 3,", "\n\n,\ntext 3,").encode() + b"\n,\n",
        ("a", "b"),
    ),
    "a blank first row": ("a.csv", b"\n" + CSV.encode(), ("a", "b")),
    "blanks before quotes": ("a.csv", CSV.replace(",label", ', "label"').encode(), ("a", "b")),
    "blanks around names": (
        "a.csv",
        CSV.replace("text,label", " text , label").encode(),
        ("a", "b"),
    ),
    "blanks around labels": ("a.csv", CSV.replace(",a\n", ", a \n").encode(), ("a", "b")),
    "another column twice": (
        "a.csv",
        CSV.replace(",", ",0,0,").replace(",0,0,label", ",x,x,label").encode(),
        ("a", "b"),
    ),
    "JSON": ("a.jsonl", lines(["a", "b"]), ("a", "b")),
    "JSON with blank lines": ("a.jsonl", b"\n" + lines(["a", "b"]) + b"\r\n\n", ("a", "b")),
    "JSON numbers": ("a.jsonl", lines([1, 1.0, "1", 2, 10]), ("1", "2", "10")),
    "JSON booleans": ("a.jsonl", lines([True, False]), ("False", "True")),
    "numbers with a fraction": ("a.jsonl", lines([1, 0.5, 2.0]), ("0.5", "1", "2")),
    "CSV numbers": ("a.csv", table(make_rows(["1", "1.0", "2", "10"]), "csv"), ("1", "2", "10")),
    "Parquet numbers": (
        "a.parquet",
        table(make_rows([1.0, 2.0, 10.0]), "parquet"),
        ("1", "2", "10"),
    ),
    "Parquet with an index": (
        "a.parquet",
        parquet(pd.DataFrame(make_rows(["a", "b"])).set_index("text")),
        ("a", "b"),
    ),
    "Parquet of words": ("a.parquet", table(make_rows(["a", "b"]), "parquet"), ("a", "b")),
    "versions": ("a.csv", table(make_rows(["v1.0", "v1"]), "csv"), ("v1", "v1.0")),
}


@pytest.mark.parametrize("case", UNDERSTOOD)
def test_files_are_understood(p: Package, tmp_path: Path, case: str) -> None:
    data = p.data
    name, content, classes = UNDERSTOOD[case]
    (tmp_path / name).write_bytes(content)
    cfg = data.DataConfig(
        path=tmp_path / name,
        vocabulary=300,
        length=16,
    )
    train, val, spec = data.load(cfg)
    assert spec.classes == classes
    assert decoded(spec, train, val) == {f"text {index}" for index in range(40)}


REFUSED: dict[str, tuple[str, bytes, str]] = {
    "an empty file": ("a.csv", b"", "a.csv has no rows of texts"),
    "an empty JSON file": ("a.jsonl", b"", "a.jsonl has no rows of texts"),
    "an empty Parquet file": ("a.parquet", b"", "cannot read .*a.parquet as .parquet: .*0 bytes"),
    "only names": ("a.csv", b"text,label\n", "a.csv has no rows of texts"),
    "a spreadsheet": (
        "a.xlsx",
        b"PK",
        "a.xlsx is no file that ends with .csv, .tsv, .jsonl, .parq",
    ),
    "Latin-1": (
        "a.csv",
        "text,label\nü,x\n".encode("latin-1"),
        "a.csv is not utf-8 at byte 11: set data.enc",
    ),
    "UTF-16": ("a.csv", CSV.encode("utf-16"), "a.csv is not utf-8 at byte 0: set data.encoding"),
    "UTF-16 without a mark": ("a.csv", CSV.encode("utf-16-le"), "a.csv is binary"),
    "no table": ("a.parquet", CSV.encode(), "cannot read .*a.parquet as .parquet: "),
    "too many cells": (
        "a.csv",
        b"text,label\na,x\nb,y,z\n",
        "as .csv: row 3 has more cells than the first row has names: quote texts that",
    ),
    "row names of R": (
        "a.csv",
        b"text,label\n1,a,x\n2,b,y\n",
        "as .csv: row 2 has more cells than the first row has names: quote texts that",
    ),
    "commas in texts": (
        "a.csv",
        b"text,label,\na,x,\nb, c,y\n",
        "row 3 has more cells than the first row has names: quote texts that contain ','",
    ),
    "an open quote": ("a.csv", b'text,label\n"a,x\nb,y\n', "as .csv: line 3: unexpected end"),
    "quotes that join rows": (
        "a.csv",
        b'text,label\n"a,x\nb,y\n"c" d,x\n',
        "as .csv: line 4: ',' expected after '\"'; double the quotes in texts",
    ),
    "escaped quotes": (
        "a.csv",
        b'text,label\n"a \\"b\\" c",x\n',
        "as .csv: line 2: ',' expected after '\"'; double the quotes in texts",
    ),
    "no JSON": ("a.jsonl", lines(["a", "b"]) + b"\n{oops", "a.jsonl as .jsonl: line 41 is no JSON"),
    "a JSON array": ("a.jsonl", b'["text", "label"]', "line 1 is no JSON object"),
    "no such column": (
        "a.csv",
        b"review,stars\na,1\n",
        "no column text, only review, stars: set data.text",
    ),
    "a column twice": (
        "a.csv",
        b"text,label,text\na,x,b\n",
        "a.csv has 2 columns text: rename one",
    ),
    "a text is empty": (
        "a.csv",
        b"text,label\na,x\n ,y\n,z\n",
        r"in column text \(2, the first in row 3\)",
    ),
    "a label is blank": (
        "a.csv",
        b"text,label\na,x\n\nb, \n",
        r"in column label \(1, the first in row 4\)",
    ),
    "a cell is missing": (
        "a.csv",
        b"text,label\na,x\nb\n",
        r"in column label \(1, the first in row 3\)",
    ),
    "a label is null": (
        "a.jsonl",
        lines(["a", None, "b"]),
        r"in column label \(13, the first in row 2\)",
    ),
    "half of an emoji": (
        "a.jsonl",
        lines(["a", "b"]) + b"\n" + rb'{"text": "\ud83d", "label": "a"}',
        "a.jsonl has a broken character in column text",
    ),
    "several labels": (
        "a.jsonl",
        lines(["a", ["a", "b"]]),
        "row 2 of .* has several values in column label",
    ),
    "one class": (
        "a.csv",
        table(make_rows(["x"]), "csv"),
        "a.csv has only one class in column label: x",
    ),
    "one row": ("a.csv", b"text,label\ntext 0,x\n", "a.csv has only one class in column label: x"),
    "no validation": (
        "a.csv",
        b"text,label\ntext 0,x\ntext 2,y\n",
        "no texts for the split val, and 2 in all",
    ),
    "a class only in validation": (
        "a.csv",
        CSV.encode() + b"text 43,rare\n",
        "too few texts of rare: none is for",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_are_refused_in_one_line(p: Package, tmp_path: Path, case: str) -> None:
    project = p
    name, content, message = REFUSED[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(project.errors.UserError, match=message) as raised:
        project.data.load(project.data.DataConfig(path=tmp_path / name))
    assert "\n" not in str(raised.value)


def test_wrong_options_are_one_line(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = p
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "none.json").write_text("{}")

    def expect(
        message: str,
        path: str = "~/a.csv",
        **keys: Any,
    ) -> None:
        with pytest.raises(project.errors.UserError, match=message):
            project.data.load(project.data.DataConfig(path=Path(path), **keys))

    expect("data.path is empty", path="")
    expect("nowhere.csv does not exist: give a file", path="nowhere.csv")
    expect(f"{tmp_path} is no file that ends with", path="~")
    expect("data.encoding=utf9 is none of Python's", encoding="utf9")
    expect("data.tokenizer=none.json is no file", tokenizer="none.json")
    expect("~nobody-here/a.csv does not exist: give a file", path="~nobody-here/a.csv")
    expect("data.tokenizer=~/none.json is no tokenizer.json", tokenizer="~/none.json")
    expect("no texts for the split test, and 40 in all", test_fraction=0.001)
    expect("data.test_fraction is 0.5: .* leaves no texts", val_fraction=0.5, test_fraction=0.5)


@pytest.mark.parametrize("end", ['text 7"  ', 'text 7"'])
def test_quotes_between_tabs_are_text(p: Package, tmp_path: Path, end: str) -> None:
    rows = CSV.replace(",", "\t").replace("text 3\t", '"text 3\t').replace("text 7", end)
    (tmp_path / "a.tsv").write_text(rows)
    cfg = p.data.DataConfig(path=tmp_path / "a.tsv", vocabulary=300, length=16)
    train, val, spec = p.data.load(cfg)
    assert len(train) + len(val) == 40
    assert '"text 3' in decoded(spec, train, val)


def test_long_texts_are_read(p: Package, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{CSV}{'long ' * 50_000},a\n")
    cfg = p.data.DataConfig(path=tmp_path / "a.csv", vocabulary=300, length=16)
    train, val, _ = p.data.load(cfg)
    assert len(train) + len(val) == 41


def test_the_encoding_is_an_option(p: Package, tmp_path: Path) -> None:
    data = p.data
    (tmp_path / "a.csv").write_bytes(CSV.replace("text ", "größer ").encode("utf-16"))
    cfg = data.DataConfig(
        path=tmp_path / "a.csv",
        encoding="utf-16",
        text="größer",
        vocabulary=300,
    )
    (tmp_path / "a.csv").write_bytes(
        CSV.replace("text ", "größer ").replace("text,", "größer,").encode("utf-16")
    )
    train, val, spec = data.load(cfg)
    assert decoded(spec, train, val) == {f"größer {index}" for index in range(40)}


def test_new_rows_do_not_move_others(p: Package, tmp_path: Path) -> None:
    data = p.data
    cfg = data.DataConfig(
        path=tmp_path / "a.csv",
        vocabulary=300,
        val_fraction=0.3,
    )
    validation = []
    for count in (200, 300):
        pd.DataFrame(make_rows(["a", "b"], count)).to_csv(tmp_path / "a.csv")
        _, val, spec = data.load(cfg)
        validation.append(decoded(spec, val))
    added = {f"text {index}" for index in range(200, 300)}
    assert validation[1] - added == validation[0]
    assert 40 < len(validation[0]) < 80


def test_a_run_keeps_its_classes_and_its_tokenizer(p: Package, tmp_path: Path) -> None:
    project = p
    data = project.data
    cfg = data.DataConfig(
        path=tmp_path / "a.csv",
        vocabulary=300,
        length=16,
        test_fraction=0.3,
    )
    pd.DataFrame(make_rows(["a", "b", "c"])).to_csv(tmp_path / "a.csv")
    spec = data.load(cfg)[2]
    assert data.Spec(**dataclasses.asdict(spec)) == spec
    pd.DataFrame(make_rows(["c", "a"], 60)).to_csv(tmp_path / "a.csv")
    train, val, again = data.load(cfg, spec)
    test = data.load_test(cfg, spec)
    assert again is spec
    assert decoded(spec, train, val, test) == {f"text {index}" for index in range(60)}
    assert train.tensors[2].unique().tolist() == [0, 2]
    pd.DataFrame(make_rows(["a", "new"])).to_csv(tmp_path / "a.csv")
    with pytest.raises(project.errors.UserError, match="a.csv has classes that the run lacks: new"):
        data.load(cfg, spec)


def test_tokenizers_that_do_not_fit_are_one_line(p: Package, tmp_path: Path) -> None:
    project = p
    words = Tokenizer(WordLevel({"text": 0}, "?"))
    words.pre_tokenizer = WhitespaceSplit()
    words.save(str(tmp_path / "words.json"))
    own = {"tokenizer": str(tmp_path / "words.json")}
    with pytest.raises(project.errors.UserError, match="cannot encode the texts: .*UNK"):
        load(
            project,
            tmp_path,
            [f"text {index}" for index in range(30)],
            **own,
        )
    words.post_processor = TemplateProcessing(
        single="[CLS] $A", pair=None, special_tokens=[("[CLS]", 101)]
    )
    words.save(str(tmp_path / "words.json"))
    texts = ["text " * count for count in range(1, 30)]
    with pytest.raises(
        project.errors.UserError, match="gives the id 101, but its voc.* has only 1"
    ):
        load(project, tmp_path, texts, **own)
    pairs = Tokenizer(BPE({"t": 0}, []))
    pairs.save(str(tmp_path / "words.json"))
    with pytest.raises(project.errors.UserError, match="gives no tokens for the text 'abc'"):
        load(project, tmp_path, [*texts, "abc", "abc"], **own)


def test_a_description_has_classes_and_tokens(p: Package, tmp_path: Path) -> None:
    data = p.data
    rows = make_rows(["Cat", "cat", "dog"], 60)
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv")
    cfg = data.DataConfig(
        path=tmp_path / "a.csv",
        vocabulary=300,
        length=4,
    )
    classes, similar, tokens = data.describe(*data.load(cfg))
    counts = [list(map(int, pair)) for pair in re.findall(r"(\d+) \+ (\d+)", classes)]
    assert [sum(pair) for pair in counts] == [20, 20, 20]
    assert classes.startswith("3 classes: Cat ")
    assert similar == "these classes differ only by case: Cat and cat"
    train = sum(pair[0] for pair in counts)
    assert tokens.startswith(f"300 tokens in the vocabulary; {train} of {train} training texts")


def test_a_description_names_texts_with_several_labels(p: Package, tmp_path: Path) -> None:
    texts = [f"it was text number {index}" for index in range(61)]
    texts += [*texts[:3], texts[4]]  # the first three with the other label, the last with the same
    lines = p.data.describe(*load(p, tmp_path, texts, val_fraction=0.01))
    assert "texts with several labels: 3, such as 'it was text number 0'" in lines


def test_a_description_counts_unknown_tokens(p: Package, tmp_path: Path) -> None:
    """A published vocabulary of another language makes one token of all that it lacks."""
    words = Tokenizer(WordLevel({"[UNK]": 0, "it": 1}, "[UNK]"))  # 0 is also what pads
    words.pre_tokenizer = WhitespaceSplit()
    words.save(str(tmp_path / "words.json"))
    own = {"tokenizer": str(tmp_path / "words.json")}
    lines = p.data.describe(*load(p, tmp_path, ["it is"] * 5 + ["it was"] * 5, **own))
    assert "50.00% of the training tokens are unknown to the tokenizer" in lines
    lines = p.data.describe(*load(p, tmp_path, ["it it"] * 5 + ["it"] * 5, **own))
    assert "unknown" not in "".join(lines)


def test_new_texts_are_read_as_those_of_the_run(
    package: Callable[[str, str], Any], tmp_path: Path
) -> None:
    p = package("bert", "predict")
    reader = import_module(f"{p.name}.components.predict_data")
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "b.jsonl").write_bytes(lines(["new"]))
    (tmp_path / "c.tsv").write_text("text\nabout\ttabs\n")
    cfg = p.data.DataConfig(
        path=tmp_path / "a.csv",
        vocabulary=300,
        length=8,
    )
    train, _, spec = p.data.load(cfg)
    files = [tmp_path / "a.csv", tmp_path / "b.jsonl"]
    names = reader.read_texts(files, cfg)
    tokens, lengths = p.data.encode(names, spec)
    assert names == 2 * [f"text {index}" for index in range(40)]
    first = names.index(Tokenizer.from_str(spec.tokenizer).decode(train.tensors[0][0].tolist())[1:])
    assert torch.equal(tokens[first], train.tensors[0][0])
    assert lengths[first] == train.tensors[1][0]
    for name, message in (
        ("c.tsv", "row 2 has more cells than the first row has names"),
        ("nowhere.csv", "nowhere.csv does not exist: give a file of texts"),
    ):
        with pytest.raises(p.errors.UserError, match=message):
            reader.read_texts([tmp_path / name], cfg)
