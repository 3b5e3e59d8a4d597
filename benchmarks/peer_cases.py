"""The models and loops that `peers.py` measures, with the options that make them equal."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model, and the options with which its loops compute the same."""

    model: str
    every: int
    """Steps per block, and between rows of metrics: the recipes have 10."""
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    loops: tuple[str, ...] = ()
    """Loops of `loops.py` besides bare, measured, tutorial and core."""
    peers: tuple[str, ...] = ()
    """Loops that run in a process of their own."""
    turn: int = 1
    """Steps that a loop makes in its turn: many, if one is as short as a change of thread."""


MLP = {
    "model.width": 16,
    "model.depth": 1,
    "model.dropout": 0,
    "train.batch_size": 32,
    "optim.lr": 1e-4,
}
"""So small that little but the loop matters.

Lightning's defaults do not clip: this clipping changes no gradient.
"""
PEERS = ("accelerate", "lightning", "Lightning, all defaults", "hf")
TEXT = {"data.path": "text.txt"}
CASES = [
    Case("mlp", 50, 2000, MLP | {"optim.max_grad_norm": 1e9}, peers=PEERS, turn=50),
    Case("resnet", 10, 200, {"data.shift": 0}, loops=("timm",)),
    Case("vit", 10, 200, {"model.dropout": 0}),
    Case("unet", 10, 200, {"data.shift": 0}),
    Case("gpt", 10, 200, TEXT, loops=("nanogpt",)),
    Case("lstm", 10, 200, TEXT),
    Case("vae", 10, 200),
    Case("bert", 10, 200, {"model.dropout": 0}),
    Case("diffusion", 10, 200),
]
LIGHTNING = {
    "train.batch_size": "data.batch_size",
    "optim.lr": "model.lr",
    "optim.max_grad_norm": "trainer.gradient_clip_val",
}
"""LightningCLI's names of options and sections."""


def lightning_options(case: Case) -> list[str]:
    """Return the options of the rendered LightningCLI."""
    options = [
        "fit",
        "--config=configs/default.yaml",
        "--trainer.accelerator=cpu",
        "--trainer.max_epochs=null",
        f"--trainer.max_steps={case.steps}",
        f"--trainer.log_every_n_steps={case.every}",
        f"--trainer.val_check_interval={case.steps}",
        "--trainer.num_sanity_val_steps=0",
    ]
    for key, value in case.options.items():
        section, name = key.split(".")
        section = LIGHTNING.get(section, section)
        key = LIGHTNING.get(key, f"{section}.{name}")
        options.append(f"--{key}={value}")
    return options
