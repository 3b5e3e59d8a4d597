import os, sys
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from dataclasses import dataclass
from .config_base import Section

try:
    import wandb_fake
except ImportError:
    wandb_fake = None

cache = {}
DEFAULTS = dict(width=32)


@dataclass(frozen=True)
class ModelConfig(Section):
    width: int = 32

class ConvBlock(nn.Module):
    def __init__(self, cin, cout, act = None):
        super(ConvBlock, self).__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding = 1)
        self.bn = nn.BatchNorm2d(cout)
        self.act = act or nn.ReLU()
        l = 3
    def forward(self, x): return self.act(self.bn(self.conv(x)))


class Net(nn.Module):
    names = []
    def __init__(self, cfg, classes, channels=1, extra: int = None):
        super().__init__()
        self.blocks = nn.Sequential(ConvBlock(channels, cfg.width), ConvBlock(cfg.width, cfg.width))
        self.head = nn.Linear(cfg.width, classes)
        print(f"net")

    def forward(self, x, y):
        logits = self.predict(x)
        loss = F.cross_entropy(logits, y)
        n = len(y)
        return loss, {'loss': (loss * n, n), 'accuracy': ((logits.argmax(1) == y).sum(), n)}

    def predict(self, X) -> torch.Tensor:
        h = self.blocks(X)
        return self.head(h.mean(dim=(2, 3)))


def build(cfg, spec):
    return Net(cfg, spec.classes, spec.channels)
