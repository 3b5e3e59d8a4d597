"""The metrics are those of all validation samples; models without classes or numbers to predict are refused."""

import json
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from .. import data
from ..errors import UserError
from ..evaluate import load_run
from ..loader import load_batch
from .support import CPU, few_samples, rows, state, train_here

ON = ("--metrics.enabled=true", "--train.steps=8")
F1 = (*ON, '--metrics.names=["f1", "recall"]')
BEST = ("--train.monitor=f1", "--train.monitor_mode=max")


@few_samples()
def outputs(folder: Path) -> tuple[Tensor, Tensor]:
    """Return what the best weights predict for all validation samples, in the run's batches, and the targets."""
    cfg, model, val_set, spec = load_run(folder / "first", CPU.device)
    prepare, found = data.Prepare(spec, cfg.data), []
    net: Any = model.eval()
    for indices in torch.arange(len(val_set)).split(cfg.train.micro_batch):
        *_, targets = batch = prepare(
            load_batch(val_set, indices.tolist()), False, torch.default_generator
        )
        with torch.inference_mode():
            found.append((net.predict(*batch[: len(signature(net.predict).parameters)]), targets))
    scores, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
    return scores, targets


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with F1 and recall; skip the rest for models that predict no classes."""
    folder = tmp_path_factory.mktemp("metrics")
    try:
        train_here(folder, *F1, *BEST)
    except UserError as error:
        if "predicts no classes" not in str(error) and "the inputs of `forward`" not in str(error):
            raise
        pytest.skip(str(error))
    return folder


def test_metrics_are_those_of_all_samples_together(run: Path) -> None:
    scores, targets = outputs(run)
    predicted = scores.argmax(1)
    hits = torch.stack(
        [((predicted == one) & (targets == one)).sum() for one in range(scores.shape[1])]
    )
    found, true = (
        predicted.flatten().bincount(minlength=len(hits)),
        targets.flatten().bincount(minlength=len(hits)),
    )
    occurs = found + true > 0
    best = max(rows(run, "val"), key=lambda row: row["f1"])
    assert best["f1"] == pytest.approx(
        (2 * hits / (found + true))[occurs].double().mean().item(), abs=1e-6
    )
    assert best["recall"] == pytest.approx(
        (hits / true.clamp(min=1))[occurs].double().mean().item(), abs=1e-6
    )


def test_metric_selects_the_best_checkpoint(run: Path) -> None:
    best = json.loads((run / "first/checkpoints/best.json").read_text())
    assert best["value"] == max(row["f1"] for row in rows(run, "val"))


def test_training_does_not_change(run: Path, tmp_path: Path) -> None:
    train_here(tmp_path, "--train.steps=8")
    assert all(map(torch.equal, state(run)["model"].values(), state(tmp_path)["model"].values()))
    assert rows(run, "train") == rows(tmp_path, "train")


def test_auroc_needs_samples_of_each_class(run: Path, tmp_path: Path) -> None:
    scores, targets = outputs(run)
    if len(targets.unique()) == scores.shape[1]:
        train_here(tmp_path, *ON)
        assert 0 <= rows(tmp_path, "val")[-1]["auroc"] <= 1
    else:
        with pytest.raises(
            UserError, match="has no validation sample, so auroc is undefined: add one"
        ):
            train_here(tmp_path, *ON)


def test_unknown_metric_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="metrics.names has accurracy, which is none of auroc"):
        train_here(tmp_path, *ON, '--metrics.names=["accurracy"]')
