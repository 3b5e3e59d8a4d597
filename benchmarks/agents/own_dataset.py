"""Replace data.py by a Dataset of the solver's own."""

import json
from pathlib import Path

import numpy as np
from common import Project, expect, read_rows

MODEL = "mlp"
KINDS = ("idle", "walk", "run")
SAMPLES = 600
FOR_VALIDATION = 120


def prepare(folder: Path) -> None:
    """Write the recordings: one shape per label, with noise."""
    random = np.random.default_rng(3)
    shapes = random.normal(size=(len(KINDS), 64))
    recordings = folder / "recordings"
    recordings.mkdir()
    labels = {}
    for number in range(SAMPLES):
        kind = int(random.integers(len(KINDS)))
        values = 40 + 5 * (shapes[kind] + 2 * random.normal(size=64))
        name = f"{number:04d}.npy"
        np.save(recordings / name, values.astype(np.float32))
        labels[name] = KINDS[kind]
    (recordings / "labels.json").write_text(json.dumps(labels, indent=1), encoding="utf-8")
    chosen = sorted(random.permutation(list(labels))[:FOR_VALIDATION])
    text = "\n".join(chosen) + "\n"
    (recordings / "validation.txt").write_text(text, encoding="utf-8")


def check(project: Project) -> None:
    """Train; then again with random labels, which no model can learn."""
    train_set, val_set, _ = project.load()
    expect(len(val_set) == FOR_VALIDATION, f"{len(val_set)} samples are for validation")
    expected = SAMPLES - FOR_VALIDATION
    expect(len(train_set) == expected, f"{len(train_set)} samples are for training")
    accuracy = train_accuracy(project)
    expect(accuracy >= 0.9, f"the accuracy is {accuracy:.3f}")
    project.run_tests()
    file = project.folder / "recordings/labels.json"
    names = json.loads(file.read_text(encoding="utf-8"))
    drawn = np.random.default_rng(5).choice(KINDS, len(names)).tolist()
    file.write_text(json.dumps(dict(zip(names, drawn, strict=True))), encoding="utf-8")
    accuracy = train_accuracy(project)
    expect(accuracy < 0.6, f"the accuracy with random labels is {accuracy:.3f}")


def train_accuracy(project: Project) -> float:
    """Return the accuracy of the last validation."""
    last = read_rows(project.train(), "val")[-1]
    expect("accuracy" in last, "a validation reports no accuracy")
    return float(last["accuracy"])
