"""The tokenizer of a text encoder: BPE trained on your texts, or a tokenizer.json that you have."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError

SPECIAL = ("[PAD]", "[CLS]", "[SEP]")
"""As in BERT: a text is encoded as `[CLS] text [SEP]`."""

MOST = 100_000
"""Characters of a text to train on: a long run of one character takes time that grows with its square."""

Encode = Callable[[list[str]], list[NDArray[np.int32]]]
"""From texts to the token ids of each, at most `length` of them."""


def train_byte_pairs(texts: Iterable[str], vocabulary: int, lowercase: bool) -> str:
    """Train byte-level BPE with at most `vocabulary` tokens, and return the content of its tokenizer.json.

    Radford et al. 2019 (GPT-2), section 2.2; RoBERTa has it, too: no character is unknown. BERT's own WordPiece, as
    tokenizers trains it, numbers its tokens otherwise each time.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would warn in every forked worker process
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    trained = Tokenizer(models.BPE())
    if lowercase:
        trained.normalizer = normalizers.BertNormalizer(lowercase=True)
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator((text[:MOST] for text in texts), trainer)
    ends = [(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")]
    trained.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return str(trained.to_str())


def read_tokenizer(path: Path) -> str:
    """Return the content of a tokenizer.json, or of that in a folder, as transformers saves it.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"data.tokenizer={path} has no tokenizer.json: give one, or `train`; transformers writes it with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)"
        )
    try:
        content = file.read_text(encoding="utf-8")
        _load(content)
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): change its permissions") from error
    except Exception as error:  # the package raises nothing more specific
        reason = " ".join(str(error).split())
        raise UserError(
            f"data.tokenizer={file} is not a tokenizer.json of tokenizers ({reason}): give another"
        ) from error
    return content


def _load(content: str) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    return Tokenizer.from_str(content)


def vocabulary_of(content: str) -> int:
    """The number of token ids."""
    return int(max(_load(content).get_vocab().values())) + 1


def encoder(content: str, length: int) -> Encode:
    """Return the function that encodes texts, cut to `length` tokens; the special tokens remain."""
    tokenizer = _load(content)
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)

    def encode(texts: list[str]) -> list[NDArray[np.int32]]:
        return [np.array(found.ids, np.int32) for found in tokenizer.encode_batch_fast(texts)]

    return encode


def decoder(content: str) -> Callable[[list[int]], str]:
    """Return the function that decodes the token ids of one text, without special tokens."""
    tokenizer = _load(content)
    return lambda tokens: str(tokenizer.decode(tokens))
