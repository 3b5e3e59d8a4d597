"""Replace the network by one from elsewhere."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
from common import Project, expect, read_rows

MODEL = "mlp"
MIXER = '''\
"""Our network for tables of numbers."""

import torch
from torch import nn


class Mixing(nn.Module):
    """Mixes the columns, then the channels of each."""

    def __init__(self, columns, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.columns = nn.Sequential(
            nn.Linear(columns, columns), nn.GELU(), nn.Linear(columns, columns)
        )
        self.norm2 = nn.LayerNorm(width)
        self.channels = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        x = x + self.columns(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class ColumnMixer(nn.Module):
    """Standardized numbers (n, columns) to logits (n, classes)."""

    def __init__(self, columns, classes, width=16, depth=2):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(columns, width) / 4)
        self.shift = nn.Parameter(torch.zeros(columns, width))
        self.layers = nn.ModuleList(Mixing(columns, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, numbers):
        x = numbers.unsqueeze(-1) * self.scale + self.shift
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))
'''


def prepare(folder: Path) -> None:
    """Write the module of the network."""
    (folder / "mixer.py").write_text(MIXER, encoding="utf-8")


def check(project: Project) -> None:
    """Load weights into the network, compare its predictions, and train."""
    train_set, _, spec = project.load()
    model = project.module("model").build(project.config().model, spec)
    numbers, codes, labels = project.whole_batch(train_set)
    own = own_network(project.scratch, numbers.shape[1], len(spec.classes))
    weights = own.state_dict()
    places = [part for part in model.modules() if part.state_dict().keys() == weights.keys()]
    expect(places, "the model has no part with the parameters of ColumnMixer")
    places[0].load_state_dict(weights)
    extra = sum(weight.numel() for weight in model.parameters())
    extra -= sum(weight.numel() for weight in own.parameters())
    expect(extra == 0, f"the model has {extra} further parameters")
    model.eval()
    with torch.no_grad():
        expected = own(numbers)
        predicted = model.predict(numbers, codes)
        loss, _ = model(numbers, codes, labels)
    expect(torch.allclose(predicted, expected, atol=1e-4), "predict returns other logits")
    right = torch.nn.functional.cross_entropy(expected, labels)
    expect(torch.allclose(loss, right, atol=1e-4), "the loss is not the cross-entropy")
    accuracy = read_rows(project.train(), "val")[-1]["accuracy"]
    expect(accuracy >= 0.93, f"the accuracy is {accuracy:.3f}")
    project.run_tests()


def own_network(folder: Path, columns: int, classes: int) -> Any:
    """Return the network with random weights."""
    file = folder / "own_mixer.py"
    file.write_text(MIXER, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("own_mixer", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(5)
    return module.ColumnMixer(columns, classes)
