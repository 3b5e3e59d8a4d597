"""Well-known models, of sizes that others publish figures for, with random data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..projects import Project


def images(project: Project, tiny: bool, size: int) -> Any:
    """Return random images of 1,000 classes, as the project's own data."""
    data, random = project.module("data"), torch.Generator().manual_seed(0)
    size = 16 if tiny else size
    pixels = torch.randint(256, (512, 3, size, size), dtype=torch.uint8, generator=random)
    split = data.InMemory(pixels, torch.randint(1000, (512,), generator=random))
    spec = data.Spec(3, size, tuple(map(str, range(1000))), (0.5,) * 3, (0.29,) * 3)
    return data.Data(split, split, spec, True)


def tokens(project: Project, tiny: bool, vocabulary: int, context: int) -> Any:
    """Return random tokens, as the project's own data."""
    data, random = project.module("data"), torch.Generator().manual_seed(0)
    vocabulary, context = (256, 32) if tiny else (vocabulary, context)
    text = torch.randint(vocabulary, (64 * context + 1,), dtype=torch.int32, generator=random)
    windows = project.module("readers.windows").Windows(text, context)
    return data.Data(windows, windows, data.Spec(vocabulary, context), True)


@dataclass(frozen=True)
class Subject:
    """A model of one size."""

    name: str
    model: str
    options: list[str]
    compile: str
    """Value of `speed.compile`; empty where the model is not to be compiled."""
    data: Callable[[Project, bool], Any] | None = None
    """Returns samples, tiny ones for the dry run; None for the built-in ones."""
    small: list[str] = field(default_factory=list)
    """Options for the dry run."""
    every: int = 10
    """Steps between rows, on a GPU: enough to take longer than the clock and the copy of a row do."""
    mfu: bool = True
    """Whether to count FLOPs, which takes minutes where a loop over time steps is traced."""


SUBJECTS = [
    Subject("MLP small, batch 64", "mlp", [], "model", every=100),
    Subject(
        "LSTM base, 64 x 256 bytes",
        "lstm",
        ["--model.size=base", "--data.context=256", "--train.micro_batch=64", "--data.val_fraction=0.001"],
        "",
        small=["--data.context=32", "--train.micro_batch=4", "--data.cache=none"],
        mfu=False,
    ),
    Subject(
        "GPT-2 124M, 16 x 1024 tokens",
        "gpt",
        ["--model.size=124M", "--data.context=1024", "--train.micro_batch=16"],
        "blocks",
        partial(tokens, vocabulary=50257, context=1024),
        ["--data.context=32", "--train.micro_batch=4", "--data.cache=none"],
    ),
    Subject(
        "ViT-S/16, 256 x 224 pixels",
        "vit",
        ["--model.size=S/16", "--train.micro_batch=256"],
        "blocks",
        partial(images, size=224),
        ["--train.micro_batch=8"],
    ),
    Subject(
        "VAE base, 256 x 64 pixels",
        "vae",
        ["--model.size=base", "--train.micro_batch=256"],
        "model",
        partial(images, size=64),
        ["--train.micro_batch=8"],
    ),
    Subject(
        "ResNet-50, 256 x 224 pixels",
        "resnet",
        ["--model.size=50", "--train.micro_batch=256"],
        "model",
        partial(images, size=224),
        ["--train.micro_batch=8"],
    ),
]
