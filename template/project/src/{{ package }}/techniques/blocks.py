"""The repeated parts that a model names in `blocks`, on which several switches work."""

from torch import nn


def blocks_of(model: nn.Module) -> nn.ModuleList | nn.Sequential:
    """Return them; none where the model names none."""
    found = getattr(model, "blocks", None)
    return found if isinstance(found, nn.ModuleList | nn.Sequential) else nn.ModuleList()
