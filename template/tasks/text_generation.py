"""Shared by the text tasks: next-token metrics, sampling of continuations, and plots of text."""

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

from ..data import Spec
from ..distributed import World
from ..errors import UserError
from ..readers.tokenizer import open_tokenizer
from ..readers.windows import Windows
from .atomic_file import atomic_write
from .trained_model import TrainedModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class NextTokenMetrics:
    """Perplexity and accuracy of the next token, accumulated on the device."""

    def __init__(self, device: torch.device, last: int = 0) -> None:
        self.last = last
        """Number of tokens counted at the end of each window; 0: all."""
        dtype = torch.float32 if device.type in ("mps", "xpu") else torch.float64
        self.sums = torch.zeros(4, dtype=dtype, device=device)

    def add(self, net: Any, batch: tuple[Tensor, ...]) -> None:
        """Add a prepared batch."""
        tokens, targets = batch
        logits, targets = net.predict(tokens)[:, -self.last :].float(), targets[:, -self.last :]
        nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        hits = logits.topk(min(5, logits.shape[-1])).indices == targets.unsqueeze(-1)
        self.sums += torch.stack([nats, hits[..., 0].sum(), hits.sum(), nats.new_tensor(targets.numel())])

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Perplexity per token, and top-1 and top-5 accuracy."""
        nats, first, five, count = world.all_reduce(self.sums).tolist()
        found = {"perplexity": math.exp(nats / count), "accuracy": first / count, "accuracy_top5": five / count}
        return found, "".join(f"{name:16}{value:.6g}\n" for name, value in found.items())


class OverlappingMetrics(NextTokenMetrics):
    """Metrics of windows that begin every `stride` tokens, of which only the last `stride` tokens are counted."""

    def __init__(self, spec: Spec, device: torch.device, stride: int) -> None:
        super().__init__(device, stride)
        self.nats_to_bits_per_byte = 1 / (math.log(2) * spec.bytes_per_token)

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Bits per byte, the stride, and the other metrics."""
        found, table = super().result(world)
        bits = math.log(found["perplexity"]) * self.nats_to_bits_per_byte
        return {"stride": self.last, "bits_per_byte": bits, **found}, f"{'bits_per_byte':16}{bits:.6g}\n{table}"


def overlapping(val: Any, spec: Spec, device: torch.device, stride: int) -> tuple[Windows, OverlappingMetrics]:
    """Validation windows that overlap, so that each counted token has a context of at least `spec.context - stride`.

    Raises:
        UserError: the stride is longer than a window, or the data are not windows of text.
    """
    if not isinstance(val, Windows):
        raise UserError("--stride is for text, and the validation data of this model are not windows of text")
    if not 1 <= stride <= spec.context:
        raise UserError(f"--stride {stride}: it must be from 1 to data.context={spec.context}")
    return Windows(val.tokens, spec.context, stride), OverlappingMetrics(spec, device, stride)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the prompt and the sampling options."""
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="text to continue")
    parser.add_argument(
        "--tokens", type=int, default=200, metavar="N", help="number of tokens to generate (default: 200)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="sampling temperature; 0: greedy (default: 0.8)"
    )
    parser.add_argument(
        "--top-k",
        type=int,
        default=0,
        metavar="K",
        help="sample from the K most likely tokens; 0: from all (default: 0)",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--tokenizer", metavar="FILE", help="path of the tokenizer, if its file was moved")


def continue_prompts(trained: TrainedModel, args: argparse.Namespace) -> None:
    """Continue `--prompt` and the files; print each with its continuation, or write them to `--output`.

    Raises:
        UserError: there is no prompt, or an option or a file is invalid.
    """
    for name, minimum in (("tokens", 1), ("temperature", 0), ("top_k", 0)):
        if not getattr(args, name) >= minimum:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)}: it must be {minimum} or above")
    if args.output and args.output.suffix not in (".txt", ".json"):
        raise UserError(f"--output {args.output}: its name must end with .txt or .json")
    texts = [("--prompt", text.encode(errors="surrogateescape")) for text in args.prompt]
    texts += [(str(file), _prompt(file)) for file in args.inputs]
    if not texts:
        raise UserError("no prompt: give --prompt TEXT, or files")
    tokenizer = open_tokenizer(args.tokenizer or trained.spec.tokenizer)
    if tokenizer.vocabulary != trained.spec.vocabulary:
        raise UserError(
            f"the tokenizer {tokenizer.name} has {tokenizer.vocabulary} tokens, but the model "
            f"{trained.spec.vocabulary}: give the tokenizer of the training data, --tokenizer FILE"
        )
    results = []
    for name, text in texts:
        try:
            tokens = tokenizer.encode(text or b"\n").tolist()
        except UnicodeDecodeError as error:
            raise UserError(f"{name} is not UTF-8, which {tokenizer.name} needs: convert it") from error
        added = tokenizer.decode(_continuation(trained, tokens, args))
        results.append({"name": name, "prompt": text.decode(errors="replace"), "continuation": added})
    head = "==> {name} <==\n" if len(results) > 1 else ""
    shown = "\n".join((head + "{prompt}{continuation}").format(**found) for found in results)
    if args.output is None:
        print(shown)
        return
    as_json = json.dumps(results, indent=1, ensure_ascii=False)
    with atomic_write(args.output) as target:
        target.write_text((as_json if target.suffix == ".json" else shown) + "\n", encoding="utf-8")


def _prompt(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): give a text file") from error


def _continuation(trained: TrainedModel, tokens: list[int], args: argparse.Namespace) -> list[int]:
    """Sample one token at a time; when the context is full, the oldest tokens are dropped."""
    generator = torch.Generator().manual_seed(args.seed)
    added: list[int] = []
    for _ in range(args.tokens):
        context = torch.tensor([(tokens + added)[-trained.spec.context :]], device=trained.device)
        with trained.precision.autocast():
            logits = trained.net.predict(context)[0, -1]
        added.append(sample(logits.float().cpu(), args.temperature, args.top_k, generator))
    return added


def sample(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """Sample a token from its logits."""
    if temperature == 0:
        return int(logits.argmax())
    if 0 < top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -torch.inf)
    return int(torch.multinomial((logits / temperature).softmax(0), 1, generator=generator))


class NextTokenLogits(nn.Module):
    """Tokens (n, context) to logits of the next token at each position, fp32."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.net.predict(tokens)
        return logits.float()


def summary(train: Windows, val: Windows, vocabulary: int, bytes_per_token: float) -> dict[str, str]:
    """A summary of the text, by name."""
    used = len(train.tokens[: 10**7].unique())
    return {
        "tokens": f"{len(train.tokens):,} in train, {len(val.tokens):,} in val",
        "vocabulary": f"{vocabulary:,} tokens, of which {used:,} occur in the first ten million",
        "bytes per token": f"{bytes_per_token:.4g}",
        "window": f"{train.windows.shape[1]} tokens",
    }


def frequency_bits(tokens: Tensor) -> Tensor:
    """The information content in bits of each token, from its frequency among these tokens."""
    counts = tokens.flatten().bincount()
    return -(counts[tokens] / tokens.numel()).log2()


def token_bits(net: Any, tokens: Tensor, targets: Tensor) -> Tensor:
    """The loss of each target (n, t), in bits."""
    return F.cross_entropy(net.predict(tokens).float().transpose(1, 2), targets, reduction="none") / math.log(2)


def plot_tokens(tokens: Tensor, bits: Tensor, tokenizer: str, title: str) -> Figure:
    """Plot (n, t) tokens as lines of text, on a background that is darker for more bits."""
    from matplotlib.figure import Figure
    from matplotlib.font_manager import findfont, get_font

    decode, width = open_tokenizer(tokenizer).decode, 128
    font = get_font(findfont("DejaVu Sans Mono"))
    figure = Figure(figsize=(16, 1 + 0.3 * len(tokens)), layout="constrained")
    axes = figure.subplots()
    shades = np.zeros((len(tokens), width))
    for row, (line, values) in enumerate(zip(tokens.tolist(), bits.tolist(), strict=True)):
        cells = [(char, value) for token, value in zip(line, values, strict=True) for char in decode([token]) or " "]
        for column, (char, value) in enumerate(cells[:width]):
            shades[row, column] = value
            shown = "↵" if char == "\n" else char if char.isprintable() and font.get_char_index(ord(char)) else "·"
            if shown != " ":
                axes.text(column, row, shown, family="DejaVu Sans Mono", size=8, ha="center", va="center")
    image = axes.imshow(shades, cmap="YlGnBu", vmin=0, vmax=12, aspect="auto")
    figure.colorbar(image, label="bits per token")
    axes.set(xticks=[], yticks=range(len(tokens)), title=title)
    return figure
