"""Low-rank adaptation (LoRA), Hu et al. 2021 (arXiv:2106.09685): `lora.rank`."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..config import LoraConfig
from ..contracts import blocks_of
from ..errors import UserError
from .freeze import hold_norms, matched

BASE, FIRST, SECOND = "base_layer.", "lora_A.default.weight", "lora_B.default.weight"
"""In the names of peft: a layer's own weight, of shape (out, in), A of shape (rank, in), and B of shape (out, rank)."""


def apply(model: nn.Module, cfg: LoraConfig) -> None:
    """Add the matrices A and B to linear layers; only they, and `lora.modules_to_save`, have gradients then.

    Raises:
        UserError: peft is not installed, or a pattern matches nothing.
    """
    try:
        import peft
    except ImportError as error:
        raise UserError(
            f"lora.rank={cfg.rank} needs a package ({error}): pip install -e '.[finetune]', or use null"
        ) from error
    if hasattr(model, "lr_scale"):
        cfg.refuse("rank", "the model has lr_scale, by names of the weights that it freezes; use null")
    targets = _targets(model, cfg)
    names = [name for name, _ in model.named_parameters()]
    also = {id(p) for name, p in model.named_parameters() if name in matched(cfg.modules_to_save, names, SAVED)}
    options: dict[str, Any] = {"r": cfg.rank, "lora_alpha": cfg.alpha, "lora_dropout": cfg.dropout}
    # A pattern, as peft takes a name for that of every layer that ends with it.
    chosen = peft.LoraConfig(target_modules="|".join(map(re.escape, targets)), **options)
    peft.inject_adapter_in_model(chosen, model)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.requires_grad or id(parameter) in also)
    hold_norms({name: part for name, part in model.named_modules() if isinstance(part, _BatchNorm)})


SAVED = "lora.modules_to_save"


def _targets(model: nn.Module, cfg: LoraConfig) -> list[str]:
    """Return the names of the linear layers.

    Raises:
        UserError: there are none, or one shares its weight with another layer.
    """
    inside = set(map(id, blocks_of(model).modules()))
    # Attention of torch does not call its linear layer, but reads its weight.
    read = {
        id(part)
        for attention in model.modules()
        if isinstance(attention, nn.MultiheadAttention)
        for part in attention.modules()
    }
    linear = {
        name: part for name, part in model.named_modules() if isinstance(part, nn.Linear) and id(part) not in read
    }
    if cfg.target_modules:
        found = sorted(matched(cfg.target_modules, list(linear), "lora.target_modules"))
    else:
        found = [name for name, part in linear.items() if id(part) in inside]
    if not found:
        cfg.refuse("target_modules", 'the model has no linear layers in `blocks`; name some, such as ["*.query"]')
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    shared = [name for name in found if uses[id(linear[name].weight)] > 1]
    if shared:
        cfg.refuse("target_modules", f"{shared[0]} shares its weight with another layer; leave it out")
    return found


def merge(weights: Mapping[str, Tensor], cfg: LoraConfig) -> dict[str, Tensor]:
    """Return the weights of the model without LoRA, W + alpha / rank * B A, which computes the same.

    Raises:
        KeyError: they are not of a model with LoRA.
    """
    assert cfg.rank is not None
    found = {}
    for name, value in weights.items():
        if name.endswith(f".{BASE}weight"):
            layer = name.removesuffix(f"{BASE}weight")
            product = weights[f"{layer}{SECOND}"] @ weights[f"{layer}{FIRST}"]
            found[f"{layer}weight"] = value + cfg.alpha / cfg.rank * product
        elif not name.endswith((FIRST, SECOND)):
            found[without(name)] = value
    return found


def without(name: str) -> str:
    """Return what a parameter is called in the model without LoRA."""
    return name.replace(f".{BASE}", ".")
