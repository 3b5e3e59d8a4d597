"""Texts with labels: statements of Python's standard library, or your own file.

This file is yours to edit. Training needs `DataConfig`, `Spec`, `load` and `Prepare`; `describe`
and `load_test` are optional: see contracts.py.
"""

import hashlib
import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .config_base import Section, within
from .errors import UserError
from .text_tables import column, listed, read_table

KEYWORDS = (
    "assert",
    "del",
    "except",
    "for",
    "if",
    "import",
    "raise",
    "return",
    "while",
    "with",
    "yield",
)
VALIDATION = """__future__ __hello__ __phello__ _markupbase _py_warnings _pydatetime _sitebuiltins
_strptime antigravity base64 cProfile cgitb cmd compileall configparser contextvars dataclasses
datetime dbm dis ensurepip glob hashlib importlib json logging mailcap modulefinder operator
profile pstats py_compile re reprlib secrets shlex sqlite3 sre_compile sre_constants sre_parse
struct this token tty warnings"""
"""Modules of the standard library for validation, 10% of its bytes; they share no code with the
others."""
EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class DataConfig(Section):
    """Which texts to load, and how to tokenize them."""

    path: Path | None = None
    """File with a text and its label in each row: .csv, .tsv, .jsonl or .parquet; null: statements
    of Python's standard library, whose label is their hidden keyword."""
    encoding: str = "utf-8"
    """Encoding of your own file, such as latin-1 or utf-16."""
    val_fraction: float = within("(0, 1)", 0.1)
    """Fraction of your own texts for validation. No effect on the built-in texts."""
    test_fraction: float = within("[0, 1)", 0.0)
    """Fraction of your own texts for the test split. No effect on the built-in texts."""
    text: str = "text"
    """Column of the texts."""
    label: str = "label"
    """Column of the classes."""
    tokenizer: str = "train"
    """train: train byte-level BPE on the training texts; or the path of a tokenizer.json of Hugging
    Face. The run keeps a copy."""
    vocabulary: int = within("[300, 1000000]", 8000)
    """Maximum number of tokens of a trained tokenizer; short training texts give fewer."""
    length: int = within("[4, 65536]", 128)
    """Number of tokens per text, with the two that mark its ends; longer texts are cut, shorter
    ones padded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.val_fraction + self.test_fraction >= 1:
            self.refuse("test_fraction", "with data.val_fraction, it leaves no texts for training")


@dataclass(frozen=True)
class Spec:
    """What the model and `Prepare` need to know about the data."""

    vocabulary: int  # number of token ids
    length: int  # number of tokens per text
    classes: tuple[str, ...]
    tokenizer: str  # content of its tokenizer.json, to encode new texts


class Texts(TensorDataset):
    """Token ids (n, length), int32, 0 after the end of a text; lengths (n,) and labels (n,)."""

    def __init__(
        self,
        frame: pd.DataFrame,
        spec: Spec,
        notes: list[str] | None = None,
    ) -> None:
        self.notes = notes or []
        tokens, lengths = encode(frame["text"].tolist(), spec)
        labels = pd.Index(spec.classes).get_indexer(pd.Index(frame["label"]))
        super().__init__(
            tokens,
            lengths,
            torch.from_numpy(labels),
        )

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        return tuple(part.index_select(0, chosen) for part in self.tensors)


class Prepare(nn.Module):
    """Prepares a batch on the device: lengths become the attention mask."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()

    def forward(
        self,
        batch: Batch,
        training: bool,
        generator: torch.Generator,
    ) -> Batch:
        """Return tokens (n, t), int64; a mask (n, t), true for those of a text; and labels (n,)."""
        tokens, lengths, labels = batch
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        mask = positions < lengths.unsqueeze(1)
        return tokens.long(), mask, labels


def load(
    cfg: DataConfig,
    spec: Spec | None = None,
) -> tuple[Texts, Texts, Spec]:
    """Return the training set, the validation set and their `Spec`.

    With the `Spec` of a run, classes and tokens are those of the run.
    """
    train, val, _ = _read(cfg, spec)
    spec = spec or _make_spec(train, cfg)
    train_set = Texts(train, spec, _find_several_labels(train))
    return train_set, Texts(val, spec), spec


def load_test(
    cfg: DataConfig,
    spec: Spec | None = None,
) -> Texts | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    train, _, test = _read(cfg, spec)
    if test.empty:
        return None
    return Texts(test, spec or _make_spec(train, cfg))


def describe(
    train_set: Texts,
    val_set: Texts,
    spec: Spec,
) -> list[str]:
    """Return what was read, and how it was understood."""
    names = spec.classes
    train = train_set.tensors[2].bincount(minlength=len(names)).tolist()
    val = val_set.tensors[2].bincount(minlength=len(names)).tolist()
    counts = []
    for name, in_train, in_val in zip(names, train, val, strict=True):
        counts.append(f"{name} ({in_train:,} + {in_val:,})")
    lengths = train_set.tensors[1]
    full = int((lengths == spec.length).sum())
    lines = [
        f"{len(names)} classes: {listed(counts)} for training + validation",
        *_similar(names),
        *train_set.notes,
        f"{spec.vocabulary:,} tokens in the vocabulary; {full:,} of {len(lengths):,} training "
        f"texts have {spec.length} tokens (data.length), or are cut to them",
    ]
    tokens = train_set.tensors[0]
    is_text = torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)
    is_unknown = is_text & (tokens == _unknown_token(spec.tokenizer))
    unknown = is_unknown.sum() / lengths.sum()
    if unknown > 0:
        lines.append(f"{unknown:.2%} of the training tokens are unknown to the tokenizer")
    return lines


def _unknown_token(tokenizer: str) -> int:
    """Return the id that a tokenizer gives to what its vocabulary lacks; -1 if it has none."""
    model = json.loads(tokenizer)["model"]
    if "unk_id" in model:  # of Unigram
        return -1 if model["unk_id"] is None else int(model["unk_id"])
    return int(model["vocab"].get(model.get("unk_token"), -1))


def _find_several_labels(frame: pd.DataFrame) -> list[str]:
    """Return a line about texts that are there with several labels."""
    labels = frame.groupby("text")["label"].nunique()
    texts = labels.index[labels > 1].tolist()
    return [
        f"texts with several labels: {len(texts):,}, such as {text!r:.40}" for text in texts[:1]
    ]


def _similar(names: tuple[str, ...]) -> list[str]:
    """Return a line about classes that may be one, by mistake two."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.casefold(), []).append(name)
    similar = [" and ".join(group) for group in groups.values() if len(group) > 1]
    return [f"these classes differ only by case: {listed(similar)}"] if similar else []


def encode(
    texts: list[str],
    spec: Spec,
) -> tuple[Tensor, Tensor]:
    """Return the token ids (n, length), int32, with 0 after the end, and the lengths (n,)."""
    try:
        encoded = Tokenizer.from_str(spec.tokenizer).encode_batch_fast(texts)
    except Exception as error:  # such as a word that a vocabulary of words lacks
        raise UserError(f"data.tokenizer cannot encode the texts: {error}") from None
    tokens = torch.tensor([text.ids for text in encoded], dtype=torch.int32)
    lengths = torch.tensor([sum(text.attention_mask) for text in encoded])
    if tokens.max() >= spec.vocabulary:
        raise UserError(
            f"data.tokenizer gives the id {tokens.max()}, "
            f"but its vocabulary has only {spec.vocabulary} tokens"
        )
    if lengths.min() == 0:
        text = texts[lengths.argmin()]
        raise UserError(f"data.tokenizer gives no tokens for the text {text[:40]!r}: remove it")
    return tokens, lengths


def _read(
    cfg: DataConfig,
    spec: Spec | None,
) -> list[pd.DataFrame]:
    """Return the texts and labels for training, for validation and for the test."""
    if cfg.path is None:
        train, val = statements()
        return [train, val, val[:0]]
    path = cfg.path
    frame = _own_texts(cfg, path)
    splits = _split(frame, cfg)
    known = spec.classes if spec else splits[0]["label"].unique()
    new = sorted(set(frame["label"]) - set(known))
    if new and spec:
        raise UserError(f"{path} has classes that the run lacks: {listed(new)}")
    if new:
        raise UserError(
            f"{path} has too few texts of {listed(new)}: none is for training; "
            "add texts, or remove these"
        )
    if len(known) < 2:
        raise UserError(
            f"{path} has only one class in column {cfg.label}: {frame['label'].iloc[0]}"
        )
    _check_sizes(splits, cfg, path)
    return splits


def statements() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return statements for training and for validation, each once, without the first keyword.

    There are at most 4,000 of a keyword for training, and 444 for validation.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    rows = []
    for file in sorted(root.rglob("*.py")):
        names = file.relative_to(root).parts
        if EXCLUDED.intersection(names):
            continue
        in_val = names[0].removesuffix(".py") in VALIDATION.split()
        source = file.read_text(encoding="utf-8", errors="replace")
        for line in source.splitlines():
            keyword, _, rest = line.strip().partition(" ")
            if keyword in KEYWORDS and len(rest) > 2:
                rows.append((rest.strip(), keyword, in_val))
    frame = pd.DataFrame(rows, columns=["text", "label", "in_val"])
    frame = frame.sort_values("in_val", kind="stable")
    frame = frame.drop_duplicates("text")
    frame = frame.sort_values("text", key=_places)
    train = frame[~frame["in_val"]].groupby("label")
    val = frame[frame["in_val"]].groupby("label")
    return train.head(4000), val.head(444)


def _own_texts(cfg: DataConfig, path: Path) -> pd.DataFrame:
    """Return your texts and labels; the index is the number of the row in the file."""
    table = read_table(path, cfg.encoding)
    frame = pd.DataFrame(
        {
            "text": column(table, cfg.text, path),
            "label": column(table, cfg.label, path).str.strip(),
        }
    )
    for name, key in (("text", cfg.text), ("label", cfg.label)):
        empty = frame.index[frame[name].str.strip() == ""]
        if len(empty):
            raise UserError(
                f"{path} has empty cells in column {key} "
                f"({len(empty)}, the first in row {empty[0]}): fill them, or remove the rows"
            )
    # a column of whole numbers with gaps becomes 1.0, 2.0 in many programs
    frame["label"] = frame["label"].str.replace(r"^([+-]?\d+)\.0+$", r"\1", regex=True)
    return frame


def _split(
    frame: pd.DataFrame,
    cfg: DataConfig,
) -> list[pd.DataFrame]:
    """Return the rows for training, for validation and for the test.

    A hash of the text decides, so that new rows move no others, and equal texts are together.
    """
    place = _places(frame["text"])
    in_val = place < cfg.val_fraction
    in_test = (place < cfg.val_fraction + cfg.test_fraction) & ~in_val
    return [
        frame[~in_val & ~in_test],
        frame[in_val],
        frame[in_test],
    ]


def _check_sizes(
    splits: list[pd.DataFrame],
    cfg: DataConfig,
    path: Path,
) -> None:
    for name, rows in zip(("train", "val", "test"), splits, strict=True):
        if rows.empty and (name != "test" or cfg.test_fraction):
            raise UserError(
                f"{path} has no texts for the split {name}, and {sum(map(len, splits))} in all: "
                "add texts, or change data.val_fraction or data.test_fraction"
            )


def _places(texts: "pd.Series[str]") -> "pd.Series[float]":
    """Return a hash of each text, from 0 to 1, which is the same on every machine."""
    return texts.map(_place)


def _place(text: str) -> float:
    digest = hashlib.sha256(text.encode(errors="surrogateescape"))
    return int(digest.hexdigest()[:12], 16) / 2**48


def _make_spec(train: pd.DataFrame, cfg: DataConfig) -> Spec:
    """Return the classes and the tokenizer, which may be trained on these texts."""
    names = sorted(set(train["label"]))
    numbers = pd.to_numeric(pd.Series(names), errors="coerce")
    if np.isfinite(numbers).all():
        names.sort(key=float)
    tokenizer = _tokenizer(train["text"].tolist(), cfg)
    tokenizer.enable_truncation(cfg.length)
    tokenizer.enable_padding(length=cfg.length, pad_id=0)
    return Spec(
        vocabulary=max(tokenizer.get_vocab().values(), default=-1) + 1,
        length=cfg.length,
        classes=tuple(names),
        tokenizer=tokenizer.to_str(),
    )


def _tokenizer(
    texts: list[str],
    cfg: DataConfig,
) -> Tokenizer:
    if cfg.tokenizer == "train":
        return _byte_pairs(texts, cfg.vocabulary)
    file = Path(cfg.tokenizer).expanduser()
    if not file.is_file():
        raise UserError(
            f"data.tokenizer={cfg.tokenizer} is no file: give train, or a tokenizer.json"
        )
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises no subclass
        raise UserError(f"data.tokenizer={cfg.tokenizer} is no tokenizer.json: {error}") from None


def _byte_pairs(
    texts: list[str],
    size: int,
) -> Tokenizer:
    """Train BPE of bytes: Radford et al. 2019 (GPT-2), section 2.2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["[PAD]", "[CLS]", "[SEP]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=None,
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return tokenizer
