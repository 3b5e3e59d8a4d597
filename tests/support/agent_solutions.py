"""Reference solutions of the tasks in benchmarks/agents.

Each does in a project what a solver should.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

SRC = Path("src/study")


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, (file, old)
    file.write_text(text.replace(old, new))


def run(folder: Path, *command: str, status: int = 0) -> None:
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=None
    )
    assert result.returncode == status, result.stdout + result.stderr


def train(folder: Path, *options: str) -> None:
    run(folder, ".venv/bin/python", "-m", "study.train", "--config", RECIPE, *options)


def own_csv(folder: Path) -> None:
    section = """\
data:
  path: flats.csv  # our own table
  target: price
  ignore: [id, tax]  # tax is known only after the price
  decimal: comma
train:
"""
    replace(folder / RECIPE, "train:\n", section)
    replace(folder / RECIPE, "dropout: 0.5", "dropout: 0.1")


def new_metric(folder: Path) -> None:
    lines = """\
        malignant = labels == 0
        found = (malignant & (logits.argmax(1) == 0)).sum()
        return loss, {
            "malignant_recall": (found, malignant.sum()),
"""
    model = folder / SRC / "model.py"
    text = model.read_text()
    place = text.index("        return loss, {", text.index("def classification"))
    model.write_text(text[:place] + lines + text[place:].removeprefix("        return loss, {\n"))


def backbone(folder: Path) -> None:
    model = folder / SRC / "model.py"
    text = model.read_text()
    network = (folder / "mixer.py").read_text().partition("class Mixing")[2]
    start = text.index("@sized")
    head = re.sub(
        r"SIZES:.*?\n}\n",
        "",
        text[:start],
        flags=re.DOTALL,
    )
    head = head.replace("Section, sized, within", "Section, within")
    model.write_text(
        head.replace("from typing import Literal\n", "") + OWN_MODEL.replace("NETWORK", network)
    )
    (folder / SRC / "tests/test_mlp.py").unlink()
    for line in ("size: small.*", "dropout: 0.5.*"):
        recipe = folder / RECIPE
        recipe.write_text(re.sub(f"  {line}\n", "", recipe.read_text()))
    replace(folder / RECIPE, "model:\n", "")


def own_dataset(folder: Path) -> None:
    (folder / SRC / "data.py").write_text(OWN_DATA)
    (folder / SRC / "tests/test_data_files.py").unlink()
    tests = folder / SRC / "tests/test_mlp.py"
    tests.unlink()


def new_option(folder: Path) -> None:
    data = folder / SRC / "data.py"
    field = '''\
    noise: float = within("[0, inf)", 0.0)
    """Standard deviation of Gaussian noise on the standardized numbers of training rows."""

    def __post_init__(self) -> None:
'''
    replace(data, "    def __post_init__(self) -> None:\n", field)
    text = data.read_text()
    start = text.index("class Prepare")
    before = text[:start]
    prepare = text[start:]
    prepare = prepare.replace(
        "super().__init__()\n", "super().__init__()\n        self.noise = cfg.noise\n", 1
    )
    prepare = prepare.replace("        return batch\n", NOISE, 1)
    data.write_text(before + prepare)


def label_smoothing(folder: Path) -> None:
    model = folder / SRC / "model.py"
    field = '''\
    label_smoothing: float = within("[0, 1)", 0.0)
    """Label smoothing in training: Szegedy et al. 2015, arXiv:1512.00567, section 7."""


class '''
    text = model.read_text()
    start = text.index("class ModelConfig")
    end = text.index("\n\nclass ", start)
    model.write_text(text[:end].rstrip("\n") + "\n" + field + text[end:].removeprefix("\n\nclass "))
    replace(
        model,
        "        return F.cross_entropy(self.logits(states), targets)\n",
        "        smoothing = self.smoothing if self.training else 0.0\n"
        "        logits = self.logits(states)\n"
        "        return F.cross_entropy(logits, targets, label_smoothing=smoothing)\n",
    )
    text = model.read_text()
    start = text.index("class GPT(")
    before = text[:start]
    after = text[start:]
    after = after.replace(
        "super().__init__()\n",
        "super().__init__()\n        self.smoothing = cfg.label_smoothing\n",
        1,
    )
    model.write_text(before + after)


def average(folder: Path) -> None:
    run(folder, ".venv/bin/fastproj", "add", "ema")
    with (folder / RECIPE).open("a") as recipe:
        recipe.write("ema:\n  enabled: true  # validate with the average\n  decay: 0.9\n")
    train(folder, "--run.name=with", "--train.epochs=2")
    train(folder, "--run.name=without", "--train.epochs=2", "--ema.enabled=false")


def launcher(folder: Path) -> None:
    run(folder, ".venv/bin/fastproj", "add", "slurm")
    run(
        folder,
        "git",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "-qm",
        "slurm",
    )
    run(
        folder,
        ".venv/bin/fastproj",
        "update",
        "--gpus",
        "8",
        "--nodes",
        "4",
        "--tensor-cores",
        "bf16",
    )


def slow_run(folder: Path) -> None:
    replace(folder / SRC / "data.py", "        Storage().settle(len(indices))\n", "")


def update_conflict(folder: Path) -> None:
    run(folder, ".venv/bin/fastproj", "update", status=4)
    recipe = folder / RECIPE
    text = re.sub(
        r"<<<<<<<[^\n]*\n(  lr: [^\n]*March\n).*?=======\n  lr[^\n]*\n(.*?)>>>>>>>[^\n]*\n",
        r"\1\2",
        recipe.read_text(),
        flags=re.DOTALL,
    )
    recipe.write_text(text)
    run(folder, "git", "add", "--all")
    run(
        folder,
        "git",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "-qm",
        "Update",
    )


def killed_run(folder: Path) -> None:
    options = json.loads((folder / "runs/first/config.json").read_text())["command"][1:]
    run(folder, ".venv/bin/python", "-m", "study.train", *options)


def two_rates(folder: Path) -> None:
    means = {}
    for rate in ("0.003", "0.0001"):
        values = []
        for seed in range(3):
            name = f"{rate}-{seed}"
            options = [f"--optim.lr={rate}", f"--run.seed={seed}", "--train.epochs=10"]
            train(folder, f"--run.name={name}", *options)
            summary = json.loads((folder / "runs" / name / "summary.json").read_text())
            values.append(summary["last"]["loss"])
        means[rate] = sum(values) / 3
    (folder / "answer.json").write_text(json.dumps({"better": 0.003, "loss": means}))


RECIPE = "configs/default.yaml"
NOISE = """\
        if not training or self.noise == 0:
            return batch
        numbers, *others = batch
        noise = torch.empty_like(numbers).normal_(generator=generator)
        return numbers + self.noise * noise, *others
"""
OWN_MODEL = '''\
@dataclass(frozen=True)
class ModelConfig(Section):
    """The network has no options."""


class MixingNETWORK

class Model(nn.Module):
    """Numbers to class logits."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.mixer = ColumnMixer(len(spec.numeric), len(spec.classes))

    def predict(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Return class logits (n, classes)."""
        return self.mixer(numbers)

    def forward(self, numbers: Tensor, codes: Tensor, labels: Tensor) -> tuple[Tensor, Metrics]:
        """Return the cross-entropy, and metrics."""
        logits = self.predict(numbers, codes)
        loss = F.cross_entropy(logits, labels)
        count = len(labels)
        correct = (logits.argmax(1) == labels).sum()
        return loss, {"loss": (loss.detach() * count, count), "accuracy": (correct, count)}


def build(cfg: ModelConfig, spec: Spec) -> Model:
    """Build the model."""
    return Model(spec)
'''
OWN_DATA = '''\
"""Our recordings."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from .config_base import Section

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class DataConfig(Section):
    """Where the recordings are."""

    path: Path = Path(__file__).parents[2] / "recordings"
    """Folder of the recordings."""


@dataclass(frozen=True)
class Spec:
    """What the model needs to know."""

    numeric: tuple[str, ...]
    classes: tuple[str, ...]
    mean: float
    std: float
    categories: tuple[str, ...] = ()
    target_mean: float = 0.0
    target_std: float = 1.0
    center: float = 0.0


class Recordings(Dataset):
    """Numbers (64,), no codes, and the label."""

    def __init__(self, folder: Path, names: list[str], labels: list[int]) -> None:
        self.files = [folder / name for name in names]
        self.labels = labels

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Batch:
        numbers = torch.from_numpy(np.load(self.files[index]))
        return numbers, torch.empty(0, dtype=torch.int64), torch.tensor(self.labels[index])


class Prepare(nn.Module):
    """Standardizes the numbers."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.mean = spec.mean
        self.std = spec.std

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        numbers, codes, labels = batch
        return (numbers - self.mean) / self.std, codes, labels


def load(cfg: DataConfig) -> tuple[Recordings, Recordings, Spec]:
    """Return both sets and their Spec."""
    label_of = json.loads((cfg.path / "labels.json").read_text())
    classes = tuple(sorted(set(label_of.values())))
    chosen = set((cfg.path / "validation.txt").read_text().split())
    sets = []
    for names in (sorted(set(label_of) - chosen), sorted(chosen)):
        labels = [classes.index(label_of[name]) for name in names]
        sets.append(Recordings(cfg.path, names, labels))
    values = np.stack([np.load(file) for file in sets[0].files])
    numeric = tuple(f"x{place}" for place in range(64))
    return sets[0], sets[1], Spec(numeric, classes, float(values.mean()), float(values.std()))
'''

if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
