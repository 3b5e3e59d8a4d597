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
VALIDATION = """__future__ __hello__ __phello__ _markupbase _py_warnings _pydatetime _sitebuiltins _strptime antigravity
base64 cProfile cgitb cmd compileall configparser contextvars dataclasses datetime dbm dis ensurepip glob hashlib
importlib json logging mailcap modulefinder operator profile pstats py_compile re reprlib secrets shlex sqlite3
sre_compile sre_constants sre_parse struct this token tty warnings"""
"""Modules of the standard library for validation, 10% of its bytes; they share no code with the others."""
EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}


@dataclass(frozen=True)
class DataConfig(Section):
    """Which texts to load, and how to tokenize them."""

    path: Path | None = None
    """CSV or Parquet file; null: statements of Python's standard library, whose label is their hidden keyword."""
    val_fraction: float = within("(0, 1)", 0.1)
    """Fraction of each class of your own texts for validation. No effect on the built-in texts."""
    text: str = "text"
    """Column of the texts."""
    label: str = "label"
    """Column of the classes."""
    tokenizer: str = "train"
    """train: train byte-level BPE on the training texts; or the path of a tokenizer.json of Hugging Face."""
    vocabulary: int = within("[300, 1000000]", 8000)
    """Maximum number of tokens of a trained tokenizer; short training texts give fewer."""
    length: int = within("[4, 65536]", 128)
    """Number of tokens per text, with the two that mark its ends; longer texts are cut, shorter ones padded."""


@dataclass(frozen=True)
class Spec:
    """What the model and `Prepare` need to know about the data."""

    vocabulary: int  # number of token ids
    length: int  # number of tokens per text
    classes: tuple[str, ...]
    tokenizer: str  # content of its tokenizer.json, to encode new texts


class Texts(TensorDataset):
    """Token ids (n, length), int32, 0 after the end of a text; lengths (n,), int64; and labels (n,), int64."""

    def __init__(self, frame: pd.DataFrame, tokenizer: Tokenizer, classes: tuple[str, ...]) -> None:
        encoded = tokenizer.encode_batch_fast(frame["text"].tolist())
        lengths = torch.tensor([sum(text.attention_mask) for text in encoded])
        labels = torch.tensor([classes.index(name) for name in frame["label"]])
        super().__init__(
            torch.tensor([text.ids for text in encoded], dtype=torch.int32), lengths, labels
        )

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        chosen = torch.as_tensor(indices)
        return tuple(part.index_select(0, chosen) for part in self.tensors)


def load(cfg: DataConfig) -> tuple[Texts, Texts, Spec]:
    """Return the training set, the validation set and their `Spec`."""
    train, val = _statements() if cfg.path is None else _own_texts(cfg, cfg.path)
    names = sorted(set(train["label"]))
    values = pd.to_numeric(pd.Series(names), errors="coerce")
    classes = tuple(sorted(names, key=float) if np.isfinite(values).all() else names)
    trained = cfg.tokenizer == "train"
    if not trained and not Path(cfg.tokenizer).is_file():
        raise UserError(
            f"data.tokenizer={cfg.tokenizer} does not exist: give a tokenizer.json, or `train`"
        )
    tokenizer = (
        _byte_pairs(train["text"].tolist(), cfg.vocabulary)
        if trained
        else Tokenizer.from_file(cfg.tokenizer)
    )
    tokenizer.enable_truncation(cfg.length)
    tokenizer.enable_padding(length=cfg.length, pad_id=0)
    spec = Spec(max(tokenizer.get_vocab().values()) + 1, cfg.length, classes, tokenizer.to_str())
    return Texts(train, tokenizer, classes), Texts(val, tokenizer, classes), spec


class Prepare(nn.Module):
    """Prepares a batch on the device: tokens become indices, and lengths the attention mask."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()

    def forward(
        self, batch: tuple[Tensor, ...], training: bool, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Return tokens (n, t), int64; the mask (n, t), true for the tokens of a text; and labels (n,)."""
        tokens, lengths, labels = batch
        return (
            tokens.long(),
            torch.arange(tokens.shape[1], device=tokens.device) < lengths.unsqueeze(1),
            labels,
        )


def _statements() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return statements without the keyword that they begin with, each once, at most 4,000 of a keyword in training."""
    root = Path(sysconfig.get_paths()["stdlib"])
    rows = []
    for file in sorted(root.rglob("*.py")):
        names = file.relative_to(root).parts
        lines = (
            []
            if EXCLUDED.intersection(names)
            else file.read_text(encoding="utf-8", errors="replace").splitlines()
        )
        for line in lines:
            keyword, _, rest = line.strip().partition(" ")
            if keyword in KEYWORDS and len(rest) > 2:
                rows.append(
                    (rest.strip(), keyword, names[0].removesuffix(".py") in VALIDATION.split())
                )
    frame = pd.DataFrame(rows, columns=["text", "label", "in_val"]).sort_values(
        "in_val", kind="stable"
    )
    frame = frame.drop_duplicates("text").sort_values("text", key=lambda texts: texts.map(_hash))
    return frame[~frame["in_val"]].groupby("label").head(4000), frame[frame["in_val"]].groupby(
        "label"
    ).head(444)


def _own_texts(cfg: DataConfig, path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    try:
        df = (
            pd.read_parquet(path)
            if path.suffix == ".parquet"
            else pd.read_csv(path, dtype=str, keep_default_na=False)
        )
        frame = (
            df[[cfg.text, cfg.label]]
            .set_axis(["text", "label"], axis=1)
            .astype("string")
            .fillna("")
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"cannot read columns {cfg.text} and {cfg.label} of data.path={path}: {error}"
        ) from error
    if "" in frame.to_numpy():
        raise UserError(
            f"data.path={path} has a row without text or without label: fill or remove it"
        )
    place = frame["text"].map(_hash)
    in_val = place < place.groupby(frame["label"]).transform("quantile", cfg.val_fraction)
    if not in_val.any() or frame["label"].nunique() < 2:
        raise UserError(
            f"data.label={cfg.label} of {path} needs two classes or more, with several texts of each"
        )
    return frame[~in_val], frame[in_val]


def _hash(text: str) -> float:  # from 0 to 1, the same on every machine
    return int(hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12], 16) / 2**48


def _byte_pairs(texts: list[str], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())  # of bytes: Radford et al. 2019 (GPT-2), section 2.2
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    marks, alphabet = ["[PAD]", "[CLS]", "[SEP]"], pre_tokenizers.ByteLevel.alphabet()
    rules = trainers.BpeTrainer(
        vocab_size=size, special_tokens=marks, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, rules)
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", None, [("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer
