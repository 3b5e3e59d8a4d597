"""Texts with labels: statements of Python's standard library, or your own file.

This file is yours to edit.
"""

import hashlib
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
    """CSV or Parquet file; null: statements of Python's standard library, whose label is their
    hidden keyword."""
    val_fraction: float = within("(0, 1)", 0.1)
    """Fraction of each class of your own texts for validation. No effect on the built-in texts."""
    test_fraction: float = within("[0, 1)", 0.0)
    """Fraction of each class of your own texts for the test split. No effect on the built-in
    texts."""
    text: str = "text"
    """Column of the texts."""
    label: str = "label"
    """Column of the classes."""
    tokenizer: str = "train"
    """train: train byte-level BPE on the training texts; or the path of a tokenizer.json of Hugging
    Face."""
    vocabulary: int = within("[300, 1000000]", 8000)
    """Maximum number of tokens of a trained tokenizer; short training texts give fewer."""
    length: int = within("[4, 65536]", 128)
    """Number of tokens per text, with the two that mark its ends; longer texts are cut, shorter
    ones padded."""


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
    ) -> None:
        texts = frame["text"].tolist()
        encoded = Tokenizer.from_str(spec.tokenizer).encode_batch_fast(texts)
        ids = [text.ids for text in encoded]
        lengths = [sum(text.attention_mask) for text in encoded]
        labels = pd.Index(spec.classes).get_indexer(pd.Index(frame["label"]))
        super().__init__(
            torch.tensor(ids, dtype=torch.int32),
            torch.tensor(lengths),
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


def load(cfg: DataConfig) -> tuple[Texts, Texts, Spec]:
    """Return the training set, the validation set and their `Spec`."""
    train, val, _ = _read(cfg)
    spec = _describe(train, cfg)
    return Texts(train, spec), Texts(val, spec), spec


def load_test(cfg: DataConfig) -> Texts | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    train, _, test = _read(cfg)
    return Texts(test, _describe(train, cfg)) if len(test) else None


def _read(cfg: DataConfig) -> list[pd.DataFrame]:
    """Return the texts and labels for training, for validation and for the test."""
    if cfg.path is None:
        train, val = statements()
        return [train, val, val[:0]]
    return _own_texts(cfg, cfg.path)


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


def _own_texts(
    cfg: DataConfig,
    path: Path,
) -> list[pd.DataFrame]:
    frame = _own_table(cfg, path)
    if "" in frame.to_numpy():
        raise UserError(
            f"data.path={path} has a row without text or without label: fill or remove it"
        )
    place = _places(frame["text"])
    by_class = place.groupby(frame["label"])
    in_val = place < by_class.transform("quantile", cfg.val_fraction)
    out = place < by_class.transform("quantile", cfg.val_fraction + cfg.test_fraction)
    if not in_val.any() or frame["label"].nunique() < 2:
        raise UserError(
            f"data.label={cfg.label} of {path} needs two classes or more, "
            "with several texts of each"
        )
    return [
        frame[~out],
        frame[in_val],
        frame[out & ~in_val],
    ]


def _own_table(cfg: DataConfig, path: Path) -> pd.DataFrame:
    """Return your texts and labels, "" for missing ones."""
    try:
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            table = pd.read_csv(path, dtype=str, keep_default_na=False)
        frame = table[[cfg.text, cfg.label]]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"cannot read columns {cfg.text} and {cfg.label} of data.path={path}: {error}"
        ) from error
    frame = frame.set_axis(["text", "label"], axis=1)
    return frame.astype("string").fillna("")


def _places(texts: "pd.Series[str]") -> "pd.Series[float]":
    """Return a hash of each text, from 0 to 1, which is the same on every machine."""
    return texts.map(_place)


def _place(text: str) -> float:
    digest = hashlib.sha256(text.encode(errors="surrogateescape"))
    return int(digest.hexdigest()[:12], 16) / 2**48


def _describe(train: pd.DataFrame, cfg: DataConfig) -> Spec:
    """Return the classes and the tokenizer, which may be trained on these texts."""
    names = sorted(set(train["label"]))
    numbers = pd.to_numeric(pd.Series(names), errors="coerce")
    if np.isfinite(numbers).all():
        names.sort(key=float)
    tokenizer = _tokenizer(train["text"].tolist(), cfg)
    tokenizer.enable_truncation(cfg.length)
    tokenizer.enable_padding(length=cfg.length, pad_id=0)
    return Spec(
        vocabulary=max(tokenizer.get_vocab().values()) + 1,
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
    if not Path(cfg.tokenizer).is_file():
        raise UserError(
            f"data.tokenizer={cfg.tokenizer} does not exist: give a tokenizer.json, or `train`"
        )
    return Tokenizer.from_file(cfg.tokenizer)


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
