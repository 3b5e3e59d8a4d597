import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset
from dataclasses import dataclass
from .config_base import Section
from sklearn.datasets import load_digits

@dataclass(frozen=True)
class DataConfig(Section):
    path: str | None = None

@dataclass(frozen=True)
class Spec:
    classes: int
    channels: int = 1

class Digits(Dataset):
    def __init__(self, x, y):
        self.x = x; self.y = y
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i], self.y[i]

def load(cfg):
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(d.target)
    return Digits(x[300:], y[300:]), Digits(x[:300], y[:300]), Spec(10)

class Prepare(torch.nn.Module):
    def __init__(self, spec, cfg):
        super().__init__()
    def forward(self, batch, training, generator):
        return batch
