"""A model is added by its network, its recipe and one entry of copier.yml; nothing else needs its name."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from matrix import ROOT
from program import Fastproj, run_in

NETWORK = '''"""A linear classifier of images."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from .data import Spec


@dataclass(frozen=True)
class ModelConfig:
    """The classifier's size."""

    scale: float = 1.0
    """Factor of the scores."""


class Linear(nn.Module):
    """Images to class scores."""

    def __init__(self, cfg: ModelConfig, spec: Spec) -> None:
        super().__init__()
        self.scale = cfg.scale
        self.layer = nn.Linear(spec.channels * spec.size**2, len(spec.classes))

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        """Return the mean loss, and sums with counts."""
        scores = self.layer(images.flatten(1)) * self.scale
        loss = F.cross_entropy(scores, labels)
        correct = (scores.argmax(1) == labels).sum()
        return loss, {"loss": (loss.detach() * len(labels), len(labels)), "accuracy": (correct, len(labels))}


def build(cfg: ModelConfig, spec: Spec) -> Linear:
    """Make the classifier."""
    return Linear(cfg, spec)
'''

RECIPE = """# Expect: accuracy >= 0.9
data:
  shift: 0
train:
  epochs: 10
  micro_batch: 32
optim:
  lr: 1.0e-2
speed:
  precision: {{ precision }}
"""


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """A copy of the template, as a team would fork it."""
    folder = tmp_path / "fork"
    shutil.copytree(ROOT / "template", folder / "template", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "copier.yml", folder)
    return folder


@pytest.mark.slow
def test_custom_model_renders_trains_and_passes_its_tests(template: Path, fastproj: Fastproj, tmp_path: Path) -> None:
    (template / "template/models/softmax").mkdir()
    (template / "template/models/softmax/model.py").write_text(NETWORK)
    (template / "template/models/softmax/default.yaml").write_text(RECIPE)
    questions = (template / "copier.yml").read_text()
    words = "network: a linear classifier, purpose: image classification"
    entry = f"    softmax: {{data: images, task: image_classification, {words}}}\n"
    (template / "copier.yml").write_text(questions.replace("    gpt: {", f"{entry}    gpt: {{", 1))
    arguments = ["--template", str(template), "--output", str(tmp_path), "--yes"]
    result = fastproj("new", "proj", "--model", "softmax", *arguments)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "proj"
    assert (folder / "src/proj/model.py").read_text() == NETWORK
    assert f"--template {template}" in result.stdout
    result = run_in(folder, "launch/local.sh", "--run.name=first")
    assert result.returncode == 0, result.stderr
    last = json.loads((folder / "runs/first/metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] >= 0.9
    tests = [f"src/proj/tests/test_{name}.py" for name in ("model", "techniques", "train", "regularization")]
    result = run_in(folder, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert result.returncode == 0, result.stdout


SWITCHED_ON = """
train: {micro_batch: 32, global_batch: 128, ema: 0.99, patience: 3, monitor: accuracy, monitor_mode: max}
data: {cache: device}
optim: {name: sgd, lr: 8.0e-3, base_batch: 64, schedule: wsd, clip: null, lr_scaling: none, weight_decay: 0.0}
dist: {strategy: fsdp}
speed: {compile: blocks, activation_checkpointing: "budget:0.5", channels_last: false}
checkpoint: {every: 3, keep: 1, best: false}
debug: {sync: warn}
"""


@pytest.mark.slow
def test_rendered_tests_pass_with_other_options(fastproj: Fastproj, tmp_path: Path) -> None:
    assert fastproj("new", "proj", "--yes", "--no-git", "--output", str(tmp_path)).returncode == 0
    folder = tmp_path / "proj"
    (folder / "configs/default.yaml").write_text(SWITCHED_ON)
    tests = [f"src/proj/tests/test_{name}.py" for name in ("config", "optim", "train", "schedule", "regularization")]
    result = run_in(folder, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "copier.yml").write_text("a: [\n"), "cannot read the template's questions"),
        (lambda folder: (folder / "copier.yml").write_text("- a\n"), "is no list of questions"),
        (lambda folder: (folder / "template/models/resnet/model.py").unlink(), "model.py"),
        (lambda folder: (folder / "template/models/resnet/default.yaml").write_text("{{ nonsense }}"), "nonsense"),
        (lambda folder: (folder / "template/models/resnet/default.yaml").write_text("{% if %}"), "broken"),
        (lambda folder: (folder / "copier.yml").unlink(), "proj"),
        (lambda folder: (folder / "copier.yml").write_text("model:\n  type: str\n  choices: [a, b]\n"), "resnet"),
        (lambda folder: (folder / "copier.yml").write_text("license: MIT\n"), "models"),
        (lambda folder: (folder / "copier.yml").write_text("a: !nonsense x\n"), "copier.yml"),
    ],
)
def test_broken_template_is_a_one_line_error(
    template: Path, fastproj: Fastproj, tmp_path: Path, change: object, message: str
) -> None:
    assert callable(change)
    change(template)
    (tmp_path / "out").mkdir()
    result = fastproj(
        "new", "proj", "--model", "resnet", "--template", str(template), "-o", str(tmp_path / "out"), "--yes"
    )
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []
