"""What `predict` prints for text: the prompt and its continuation."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .. import data
from ..errors import UserError


def predict(
    options: Namespace,
    cfg: data.DataConfig,
    spec: data.Spec,
    model: Any,
    val_set: Any,
    outputs: Callable[[Any], Any],
) -> list[dict[str, Any]]:
    """Print a text that begins with the prompt; there is no table."""
    if options.files:
        name = type(model).__name__
        raise UserError(f"{name} reads no files, but {options.files[0]} is given: leave it out")
    print(options.prompt + continue_prompt(options, spec, model))
    return []


def continue_prompt(options: Namespace, spec: data.Spec, model: Any) -> str:
    """Return the continuation of the prompt."""
    if not spec.tokenizer:  # tokens are bytes
        new = generate(list(options.prompt.encode()), options, spec, model)
        return bytes(new).decode(errors="replace")
    tokenizer = Tokenizer.from_str(spec.tokenizer)
    prompt = tokenizer.encode(options.prompt, add_special_tokens=False).ids
    if not prompt:
        raise UserError(f"--prompt {options.prompt!r} has no tokens: give another")
    return str(tokenizer.decode(generate(prompt, options, spec, model)))


def generate(
    prompt: list[int],
    options: Namespace,
    spec: data.Spec,
    model: Any,
) -> list[int]:
    """Return new tokens, one at a time; the oldest ones leave a full context."""
    generator = torch.Generator().manual_seed(options.seed)
    tokens = list(prompt)
    for _ in range(options.tokens):
        context = torch.tensor([tokens[-spec.context :]], device=options.device)
        logits: Tensor = model.predict(context)[0, -1].float().cpu()
        logits = logits / max(options.temperature, 1e-6)  # 0: the most likely token
        token = torch.multinomial(logits.softmax(0), 1, generator=generator)
        tokens.append(int(token))
    return tokens[len(prompt) :]
