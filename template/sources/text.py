"""Text as tokens: the standard library's source or your own files, windows of them, and what a model makes of them.

Your own files are made into tokens once, in parallel, and from then on mapped into memory.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import math
import os
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from ..errors import UserError
from .common import Skipped, list_files, made_once

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..distributed import World
    from ..tools.trained import Trained

CHUNK = 2**20
"""Bytes that are made into tokens at once: enough to keep a thread busy, little enough to wait in memory."""
PAGE_CACHE = 2**31
"""Bytes that the system surely keeps in memory once they were read."""


# What stands between text and tokens.


@dataclass(frozen=True)
class Tokenizer:
    """From the bytes of a text to the numbers of its tokens, all below `vocabulary`, and from these to text."""

    name: str
    vocabulary: int
    encode: Callable[[bytes], NDArray[Any]]
    decode: Callable[[Sequence[int]], str]


def open_tokenizer(name: str) -> Tokenizer:
    """Open `bytes`, a file of Hugging Face's tokenizers, or an encoding that tiktoken knows.

    Raises:
        UserError: there is no such tokenizer, or its package or its vocabulary cannot be had.
    """
    if name == "bytes":
        return Tokenizer(name, 256, _as_bytes, lambda tokens: bytes(tokens).decode(errors="replace"))
    try:
        return _hugging_face(name) if name.endswith(".json") else _tiktoken(name)
    except ImportError as error:
        raise UserError(f"data.tokenizer={name} needs a package ({error}): pip install -e '.[tokenizers]'") from error


def _as_bytes(text: bytes) -> NDArray[Any]:
    return np.frombuffer(text, np.uint8)


def _hugging_face(name: str) -> Tokenizer:
    # The threads are ours; its own would be stopped, with a warning, in every loader process.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    if not Path(name).is_file():
        raise UserError(f"data.tokenizer={name} does not exist: give a tokenizer.json, bytes, or a name of tiktoken's")
    try:
        file = tokenizers.Tokenizer.from_file(name)
    except Exception as error:  # the package has no narrower type
        raise UserError(f"data.tokenizer={name} is not of the tokenizers package ({error}): give another") from error
    file.no_truncation()
    file.no_padding()

    def encode(text: bytes) -> NDArray[Any]:
        return np.array(file.encode_batch_fast([text.decode()], add_special_tokens=False)[0].ids, np.int32)

    def decode(tokens: Sequence[int]) -> str:
        return str(file.decode(list(tokens), skip_special_tokens=False))

    return Tokenizer(name, max(file.get_vocab().values()) + 1, encode, decode)


def _tiktoken(name: str) -> Tokenizer:
    import tiktoken

    known = tiktoken.list_encoding_names()
    if name not in known:
        raise UserError(f"data.tokenizer={name} is unknown: give bytes, a .json file or one of {', '.join(known)}")
    try:
        encoding = tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # from the network, or of a file that is not what it should be
        raise UserError(
            f"the vocabulary of data.tokenizer={name} cannot be fetched ({type(error).__name__}): connect this machine "
            "once, or copy the folder TIKTOKEN_CACHE_DIR from one that was"
        ) from error
    return Tokenizer(
        name,
        encoding.n_vocab,
        lambda text: encoding.encode_to_numpy(text.decode(), disallowed_special=()),
        lambda tokens: encoding.decode(list(tokens)),
    )


# Windows of tokens.


class Windows:
    """Tokens cut into pieces of `context`, each with the token that follows it."""

    def __init__(self, tokens: Tensor, context: int) -> None:
        self.tokens = tokens
        self.windows = tokens.unfold(0, context + 1, context)  # a view: a batch copies whole rows, and not tokens

    def __len__(self) -> int:
        return len(self.windows)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        return (self.windows.index_select(0, torch.as_tensor(indices)),)


def as_indices(tokens: Tensor) -> Tensor:
    """Tokens as loaded, to int64. torch cannot index uint16, so it gets int16, where the large ones are negative."""
    return tokens.long() & 0xFFFF if tokens.dtype == torch.int16 else tokens.long()


@dataclass(frozen=True)
class Text:
    """Both splits as tokens, and what they have in common."""

    train: Tensor
    val: Tensor
    vocabulary: int = 256
    bytes_per_token: float = 1.0
    """Of the held-out text."""
    in_memory: bool = True
    problems: tuple[str, ...] = ()

    def windows(self, context: int) -> tuple[Windows, Windows]:
        """Cut both splits.

        Raises:
            UserError: one is too short.
        """
        for name, tokens in (("train", self.train), ("val", self.val)):
            if len(tokens) <= context:
                raise UserError(
                    f"the {name} split has {len(tokens)} tokens: more than data.context={context} are needed; give "
                    "more text, or change data.val_fraction"
                )
        return Windows(self.train, context), Windows(self.val, context)


# The files.


@dataclass(frozen=True)
class Piece:
    """Some bytes of a file."""

    file: Path
    begin: int
    end: int


def standard_library(val_fraction: float) -> Text:
    """The source of Python's standard library, as bytes in memory.

    Raises:
        UserError: it cannot be read.
    """
    root, files = _standard_library()
    try:
        splits = _split(root, [(file, file.stat().st_size) for file in files], val_fraction)
        train, val = (bytearray().join(chain.from_iterable(map(_chunks, pieces))) for pieces in splits)
    except OSError as error:
        raise UserError(f"cannot read {error.filename} ({error.strerror}): give another text, data.path") from error
    return Text(torch.frombuffer(train, dtype=torch.uint8), torch.frombuffer(val, dtype=torch.uint8))


def read(
    path: Path | None, pattern: str, tokenizer: str, val_fraction: float, max_unreadable: float, cache: Path
) -> Text:
    """Your own files (or the standard library) as tokens, which are made once and then mapped into memory.

    Raises:
        UserError: there is no such file, folder or tokenizer; too many cannot be read; the cache cannot be written.
    """
    root, files = _standard_library() if path is None else _find(path, pattern)
    settings = {"path": (path or root).absolute(), "pattern": pattern, "tokenizer": tokenizer}
    settings |= {"val_fraction": val_fraction, "max_unreadable": max_unreadable}
    own_file = [Path(tokenizer)] if tokenizer.endswith(".json") and Path(tokenizer).is_file() else []

    def make(folder: Path) -> dict[str, Any]:
        opened = open_tokenizer(tokenizer)
        sound, problems = _sound(files, opened, max_unreadable)
        return {**_write(folder, _split(root, sound, val_fraction), opened), "problems": problems}

    folder, manifest = made_once(cache, "text", settings, [*files, *own_file], make)
    train, val = (_mapped(folder / name, manifest["vocabulary"], manifest[name]) for name in ("train", "val"))
    small = train.nbytes + val.nbytes < PAGE_CACHE
    return Text(train, val, manifest["vocabulary"], manifest["bytes_per_token"], small, tuple(manifest["problems"]))


def _standard_library() -> tuple[Path, list[Path]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    aside = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
    return root, [file for file in list_files(root, "*.py") if not aside.intersection(file.relative_to(root).parts)]


def _find(path: Path, pattern: str) -> tuple[Path, list[Path]]:
    """The files, and the folder to which their names are relative."""
    if path.is_file():
        return path.parent, [path]
    if path.is_dir():
        if files := list_files(path, pattern):
            return path, files
        raise UserError(f"data.path={path} has no file that matches data.pattern={pattern}: change one of the two")
    if not glob.has_magic(str(path)):
        raise UserError(f"data.path={path} does not exist: give a text file, a folder of them or a glob")
    found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
    if not found:
        raise UserError(f"data.path={path} matches no file: mend the glob; ** stands for folders at any depth")
    fixed = next(number for number, part in enumerate(path.parts) if glob.has_magic(part))
    return Path(*path.parts[:fixed]), found


def _sound(files: list[Path], tokenizer: Tokenizer, most: float) -> tuple[list[tuple[Path, int]], list[str]]:
    """Those files that can be used, each with its size, and what is to be said of the others."""
    skipped, sound, empty = Skipped(len(files), most), [], 0
    for file in tqdm(files, desc="files", disable=None):
        try:
            size = file.stat().st_size
            for chunk in _chunks(Piece(file, 0, size)):
                if tokenizer.name == "bytes":
                    break  # these may be anything; that it can be read at all is enough
                chunk.decode()
        except UnicodeDecodeError as error:
            skipped.add(file, f"not UTF-8 ({error.reason}), which any data.tokenizer but bytes needs")
        except OSError as error:
            skipped.add(file, str(error.strerror))
        else:
            empty += not size
            sound += [(file, size)] if size else []
    return sound, skipped.problems + ([f"{empty} of {len(files)} files are empty"] if empty else [])


def _split(root: Path, files: list[tuple[Path, int]], val_fraction: float) -> tuple[list[Piece], list[Piece]]:
    """By a hash of each file's relative name; where that leaves a split empty, at a place in the text."""
    splits: tuple[list[Piece], list[Piece]] = ([], [])
    for file, size in files:
        digest = hashlib.sha256(file.relative_to(root).as_posix().encode(errors="surrogateescape")).digest()
        splits[int.from_bytes(digest[:4], "big") < val_fraction * 2**32].append(Piece(file, 0, size))
    return splits if all(splits) else _cut(files, val_fraction)


def _cut(files: list[tuple[Path, int]], val_fraction: float) -> tuple[list[Piece], list[Piece]]:
    """Hold out the end of the text, from the next whole character on."""
    train, val = [], []
    left = round(sum(size for _, size in files) * (1 - val_fraction))
    for file, size in files:
        place = min(left, size)
        left -= place
        if 0 < place < size:
            with file.open("rb") as stream:
                stream.seek(place)
                place += _continuing(stream.read(3))
        train += [Piece(file, 0, place)] if place else []
        val += [Piece(file, place, size)] if place < size else []
    return train, val


def _continuing(block: bytes) -> int:
    """How many of these bytes belong to a character of UTF-8 that began before them."""
    return len(block) - len(block.lstrip(bytes(range(0x80, 0xC0))))


def _chunks(piece: Piece) -> Iterator[bytes]:
    """Read a piece in parts of about `CHUNK` bytes, each up to the end of a line or, at worst, of a character."""
    with piece.file.open("rb") as stream:
        stream.seek(piece.begin)
        left, rest = piece.end - piece.begin, b""
        while block := stream.read(min(CHUNK, left)):
            left -= len(block)
            block = rest + block
            cut = (block.rfind(b"\n") + 1 or _whole(block)) if left else len(block)
            yield block[:cut]
            rest = block[cut:]
        if rest:
            yield rest


def _whole(block: bytes) -> int:
    """The length of a block without its last character of UTF-8, as that may be cut short."""
    begins = [len(block) - back for back in range(1, min(4, len(block)) + 1) if block[-back] & 0xC0 != 0x80]
    return max(begins, default=len(block))


def _write(folder: Path, splits: tuple[list[Piece], list[Piece]], tokenizer: Tokenizer) -> dict[str, Any]:
    """Write the tokens of train and of val, as plain arrays."""
    about: dict[str, Any] = {"vocabulary": tokenizer.vocabulary}
    sizes = [sum(piece.end - piece.begin for piece in pieces) for pieces in splits]
    with tqdm(total=sum(sizes), desc="tokens", unit="B", unit_scale=True, disable=None) as bar:
        for name, pieces in zip(("train", "val"), splits, strict=True):
            about[name] = 0
            with (folder / name).open("wb") as target:
                for tokens, size in _in_order(tokenizer.encode, chain.from_iterable(map(_chunks, pieces))):
                    tokens.astype(_stored(tokenizer.vocabulary), copy=False).tofile(target)
                    about[name] += len(tokens)
                    bar.update(size)
    return {**about, "bytes_per_token": sizes[1] / max(about["val"], 1)}


def _in_order(encode: Callable[[bytes], NDArray[Any]], chunks: Iterable[bytes]) -> Iterator[tuple[NDArray[Any], int]]:
    """Encode chunks in threads, as tokenizers do not hold Python's lock; a few wait in memory and no more."""
    threads = os.cpu_count() or 1
    waiting: deque[tuple[Future[NDArray[Any]], int]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for chunk in chunks:
            waiting.append((pool.submit(encode, chunk), len(chunk)))
            if len(waiting) > 2 * threads:
                done, size = waiting.popleft()
                yield done.result(), size
        for done, size in waiting:
            yield done.result(), size


def _stored(vocabulary: int) -> type[np.integer[Any]]:
    return np.uint8 if vocabulary <= 2**8 else np.uint16 if vocabulary <= 2**16 else np.int32


def _mapped(file: Path, vocabulary: int, count: int) -> Tensor:
    dtype = {np.uint8: torch.uint8, np.uint16: torch.int16, np.int32: torch.int32}[_stored(vocabulary)]
    if not count:
        return torch.empty(0, dtype=dtype)
    try:
        return torch.from_file(str(file), shared=False, size=count, dtype=dtype)
    except RuntimeError as error:
        raise UserError(f"the cache {file.parent} is broken ({file.name} is missing or short): remove it") from error


# What a trained model makes of text.


class NextToken:
    """How well the next token is foreseen, as sums on the device: what `evaluate` adds to the metrics."""

    def __init__(self, device: torch.device) -> None:
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self.sums = torch.zeros(4, dtype=dtype, device=device)

    def add(self, net: Any, batch: tuple[Tensor, ...]) -> None:
        """Take in a prepared batch."""
        tokens, targets = batch
        scores = net.predict(tokens).float()
        nats = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
        hits = scores.topk(min(5, scores.shape[-1])).indices == targets.unsqueeze(-1)
        self.sums += torch.stack([nats, hits[..., 0].sum(), hits.sum(), nats.new_tensor(targets.numel())])

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Perplexity a token, and how often it was the first choice or among the first five."""
        nats, first, five, count = world.sum(self.sums).tolist()
        found = {"perplexity": math.exp(nats / count), "accuracy": first / count, "accuracy_top5": five / count}
        return found, "".join(f"{name:16}{value:.6g}\n" for name, value in found.items())


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a continuation starts from, and how it is drawn."""
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="what is continued")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="how many to add (200)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T", help="0: the likeliest token (0.8)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest; 0: from all (0)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (0)")
    parser.add_argument("--tokenizer", metavar="FILE", help="where the tokenizer's file is now, if it has been moved")


def continue_prompts(trained: Trained, args: argparse.Namespace) -> None:
    """Continue `--prompt` and the files; print each with its continuation, or write them to `--output`.

    Raises:
        UserError: there is nothing to continue, or an option or a file is not fit for it.
    """
    for name, least in (("tokens", 1), ("temperature", 0), ("top_k", 0)):
        if not getattr(args, name) >= least:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)}: it must be {least} or above")
    if args.output and args.output.suffix not in (".txt", ".json"):
        raise UserError(f"--output {args.output}: its name must end with .txt or .json")
    texts = [("--prompt", text.encode(errors="surrogateescape")) for text in args.prompt]
    texts += [(str(file), _prompt(file)) for file in args.inputs]
    if not texts:
        raise UserError("there is nothing to continue: give --prompt TEXT, or files")
    tokenizer = open_tokenizer(args.tokenizer or trained.spec.tokenizer)
    if tokenizer.vocabulary != trained.spec.vocabulary:
        raise UserError(
            f"the tokenizer {tokenizer.name} has {tokenizer.vocabulary} tokens, and the model "
            f"{trained.spec.vocabulary}: give the one that it was trained with, --tokenizer FILE"
        )
    results = []
    for name, text in texts:
        try:
            tokens = tokenizer.encode(text or b"\n").tolist()
        except UnicodeDecodeError as error:
            raise UserError(f"{name} is not UTF-8, as {tokenizer.name} needs: convert it") from error
        added = tokenizer.decode(_continuation(trained, tokens, args))
        results.append({"name": name, "prompt": text.decode(errors="replace"), "continuation": added})
    if args.output and args.output.suffix == ".json":
        write(args.output, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        return
    head = "==> {name} <==\n" if len(results) > 1 else ""
    shown = "\n".join((head + "{prompt}{continuation}").format(**found) for found in results)
    if args.output:
        write(args.output, shown + "\n")
    else:
        print(shown)


def _prompt(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): give a text file") from error


def _continuation(trained: Trained, tokens: list[int], args: argparse.Namespace) -> list[int]:
    """Draw one token after another; when the context is full, the oldest drop out of it."""
    generator = torch.Generator().manual_seed(args.seed)
    added: list[int] = []
    for _ in range(args.tokens):
        seen = torch.tensor([(tokens + added)[-trained.spec.context :]], device=trained.device)
        with trained.precision.autocast():
            scores = trained.net.predict(seen)[0, -1]
        added.append(choose(scores.float().cpu(), args.temperature, args.top_k, generator))
    return added


def choose(scores: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """Draw a token by its scores."""
    if temperature == 0:
        return int(scores.argmax())
    if 0 < top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(top_k).values[-1], -torch.inf)
    return int(torch.multinomial((scores / temperature).softmax(0), 1, generator=generator))


def write(target: Path, content: str | bytes) -> None:
    """Write a whole file or none.

    Raises:
        UserError: it cannot be written.
    """
    partial = target.with_name(f".partial-{target.name}")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"cannot write {target} ({error.strerror}): give another --output") from error


class Scores(nn.Module):
    """Tokens (n, context) to scores of the token that follows each, in fp32."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: Tensor) -> Tensor:
        net: Any = self.net
        scores: Tensor = net.predict(tokens)
        return scores.float()


# Text as a picture.


def summary(train: Windows, val: Windows, vocabulary: int, bytes_per_token: float) -> dict[str, str]:
    """What `python -m <package>.data --show` says of text."""
    used = len(train.tokens[: 10**7].unique())
    return {
        "tokens": f"{len(train.tokens):,} in train, {len(val.tokens):,} in val",
        "vocabulary": f"{vocabulary:,} tokens, {used:,} of them in the first ten million",
        "bytes a token": f"{bytes_per_token:.4g}",
        "window": f"{train.windows.shape[1]} tokens",
    }


def rarity(tokens: Tensor) -> Tensor:
    """For each of some tokens, the bits that its share of all of them comes to."""
    counts = tokens.flatten().bincount()
    return -(counts[tokens] / tokens.numel()).log2()


def surprise(net: Any, tokens: Tensor, targets: Tensor) -> Tensor:
    """The bits that each target (n, t) costs the model."""
    return F.cross_entropy(net.predict(tokens).float().transpose(1, 2), targets, reduction="none") / math.log(2)


def draw(tokens: Tensor, bits: Tensor, tokenizer: str, title: str) -> Figure:
    """Draw (n, t) tokens as lines of text, each in a shade that is the darker, the more bits go with it."""
    from matplotlib.figure import Figure
    from matplotlib.font_manager import findfont, get_font

    decode, width = open_tokenizer(tokenizer).decode, 128
    font = get_font(findfont("DejaVu Sans Mono"))
    figure = Figure(figsize=(16, 1 + 0.3 * len(tokens)), layout="constrained")
    axes = figure.subplots()
    shades = np.zeros((len(tokens), width))
    for row, (line, costs) in enumerate(zip(tokens.tolist(), bits.tolist(), strict=True)):
        cells = [(sign, cost) for token, cost in zip(line, costs, strict=True) for sign in decode([token]) or " "]
        for column, (sign, cost) in enumerate(cells[:width]):
            shades[row, column] = cost
            shown = "↵" if sign == "\n" else sign if sign.isprintable() and font.get_char_index(ord(sign)) else "·"
            if shown != " ":
                axes.text(column, row, shown, family="DejaVu Sans Mono", size=8, ha="center", va="center")
    image = axes.imshow(shades, cmap="YlGnBu", vmin=0, vmax=12, aspect="auto")
    figure.colorbar(image, label="bits a token")
    axes.set(xticks=[], yticks=range(len(tokens)), title=title)
    return figure
