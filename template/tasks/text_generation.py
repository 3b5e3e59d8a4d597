"""What models of text have in common after training: scores of the next token, continuations, pictures of text."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..distributed import World
from ..errors import UserError
from ..readers.text import open_tokenizer
from ..readers.windows import Windows
from .atomic_file import whole
from .trained_model import Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        nats, first, five, count = world.all_reduce(self.sums).tolist()
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
    head = "==> {name} <==\n" if len(results) > 1 else ""
    shown = "\n".join((head + "{prompt}{continuation}").format(**found) for found in results)
    if args.output is None:
        print(shown)
        return
    as_json = json.dumps(results, indent=1, ensure_ascii=False)
    with whole(args.output) as target:
        target.write_text((as_json if target.suffix == ".json" else shown) + "\n", encoding="utf-8")


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


class Scores(nn.Module):
    """Tokens (n, context) to scores of the token that follows each, in fp32."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: Tensor) -> Tensor:
        net: Any = self.net
        scores: Tensor = net.predict(tokens)
        return scores.float()


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
