"""The models and loops that `peers.py` measures, and the options with which they compute the same."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model, and the options with which its loops compute the same."""

    model: str
    every: int
    """Steps per block."""
    options: dict[str, Any] = field(default_factory=dict)
    peers: tuple[str, ...] = ()
    """Loops beyond bare, tutorial and core."""


MLP = {"model.width": 16, "model.depth": 1, "model.dropout": 0, "train.micro_batch": 32, "optim.lr": 1e-4}
"""So small that little but the loop matters."""
TEXT = {"data.path": "text.txt"}
CASES = [
    Case("mlp", 200, MLP, ("accelerate", "lightning", "Lightning, all defaults", "hf")),
    Case("resnet", 5, {"data.shift": 0}),
    Case("vit", 5, {"model.dropout": 0}),
    Case("unet", 3, {"data.shift": 0}),
    Case("gpt", 5, TEXT, ("nanogpt",)),
    Case("lstm", 3, TEXT),
    Case("vae", 8),
    Case("bert", 5, {"model.dropout": 0}),
    Case("diffusion", 3),
]
LIGHTNING = {
    "model": "model.net",
    "data": "data.source",
    "train.micro_batch": "data.batch_size",
    "optim.lr": "model.lr",
}
"""LightningCLI's names of options and sections."""


def lightning_options(case: Case, steps: int) -> list[str]:
    """Return the options of the rendered LightningCLI."""
    own = {"trainer.accelerator": "cpu", "trainer.max_epochs": "null", "trainer.max_steps": steps}
    own |= {"trainer.gradient_clip_val": 1e9, "trainer.log_every_n_steps": case.every}
    own |= {"trainer.val_check_interval": steps, "trainer.num_sanity_val_steps": 0}
    for key, value in case.options.items():
        section, name = key.split(".")
        own[LIGHTNING.get(key, f"{LIGHTNING.get(section, section)}.{name}")] = value
    return ["fit", "--config=configs/default.yaml", *(f"--{key}={value}" for key, value in own.items())]
