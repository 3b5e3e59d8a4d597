"""Metrics against scikit-learn and numpy, on one rank and on two; what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as reference
import torch
from engine import MakePackage, Package, rows
from sklearn.preprocessing import label_binarize
from torch import Tensor, nn

NAMES = [
    "auroc",
    "average_precision",
    "f1",
    "precision",
    "recall",
    "jaccard_index",
    "matthews_corrcoef",
    "cohen_kappa",
]
ON = ["--metrics.enabled=true", "--train.steps=4", "--optim.lr=3e-3"]
ALL = [*ON, f"--metrics.names={NAMES}", "--train.monitor=auroc", "--train.monitor_mode=max"]


def outputs(p: Package, folder: Path) -> tuple[Any, Any]:
    """Return what the run's best weights predict for the validation set, and its targets.

    In the batches of the run: in others, the last digits can order two samples differently.
    """
    cfg, model, val_set, spec = p.evaluate.load_run(folder / "a", torch.device("cpu"))
    prepare = p.data.Prepare(spec, cfg.data)
    found = list[tuple[Tensor, Tensor]]()
    for indices in torch.arange(len(val_set)).split(cfg.train.batch_size):
        *inputs, targets = prepare(
            val_set.__getitems__(indices.tolist()),
            False,
            torch.Generator(),
        )
        with torch.inference_mode():
            found.append((model.eval().predict(*inputs).double(), targets))
    predicted, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
    return predicted, targets.numpy()


def by_sklearn(
    probabilities: Any,
    targets: Any,
    average: str,
) -> dict[str, float]:
    predicted = probabilities.argmax(1)
    options = {"average": average}
    scores, onehot = (
        (probabilities[:, 1], targets) if average == "binary" else (probabilities, None)
    )
    if onehot is None:
        onehot = (
            np.eye(2)[targets]
            if scores.shape[1] == 2
            else label_binarize(targets, classes=range(scores.shape[1]))
        )
    mean = {} if average == "binary" else options
    return {
        "auroc": reference.roc_auc_score(onehot, scores, **mean),
        "average_precision": reference.average_precision_score(onehot, scores, **mean),
        "f1": reference.f1_score(targets, predicted, **options),
        "precision": reference.precision_score(targets, predicted, zero_division=0, **options),
        "recall": reference.recall_score(targets, predicted, **options),
        "jaccard_index": reference.jaccard_score(targets, predicted, **options),
        "matthews_corrcoef": reference.matthews_corrcoef(targets, predicted),
        "cohen_kappa": reference.cohen_kappa_score(targets, predicted),
    }


@pytest.mark.parametrize(
    ("model", "average"),
    [
        ("mlp", "macro"),
        ("mlp", "binary"),
        ("mlp", "weighted"),
        ("resnet", "macro"),
    ],
)
def test_metrics_are_those_of_sklearn(
    package: MakePackage, tmp_path: Path, model: str, average: str
) -> None:
    p = package(model, "metrics")
    results = p.train_here(tmp_path, *ALL, f"--metrics.average={average}")
    logits, targets = outputs(p, tmp_path)
    expected = by_sklearn(logits.softmax(1).numpy(), targets, average)
    assert {name: results[name] for name in NAMES} == pytest.approx(expected, abs=2e-6)
    assert results["auroc"] not in (0, 0.5, 1)


def test_two_ranks_have_the_same_metrics(package: MakePackage, tmp_path: Path) -> None:
    """Of 57 samples, the second rank has one batch less; a repeated sample does not count."""
    p = package("mlp", "metrics")
    options = [*ALL, "--data.val_fraction=0.1", "--train.batch_size=28", "--train.eval_every=4"]
    one = p.train_here(tmp_path, *options)
    p.finish(tmp_path, *options, "--run.allow_changes=true", ranks=2)  # it validates again
    (two,) = rows(tmp_path, "val")
    assert {name: two[name] for name in NAMES} == {name: one[name] for name in NAMES}
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-6)


def test_sharded_model_has_the_same_metrics(package: MakePackage, tmp_path: Path) -> None:
    p = package("mlp", "fsdp", "metrics")
    options = [*ALL, "--train.eval_every=2", "--model.dropout=0"]
    p.finish(tmp_path, *options, "--fsdp.enabled=true", "--train.batch_size=8", ranks=2)
    logits, targets = outputs(p, tmp_path)
    expected = by_sklearn(logits.softmax(1).numpy(), targets, "macro")
    best = max(rows(tmp_path, "val"), key=lambda row: row["auroc"])
    assert {name: best[name] for name in NAMES} == pytest.approx(expected, abs=1e-5)


def test_correlations_are_those_of_numpy(package: MakePackage, tmp_path: Path) -> None:
    p = package("mlp", "metrics")
    options = [
        *ON,
        "--data.builtin=diabetes",
        "--metrics.names=[pearson_corrcoef,spearman_corrcoef]",
    ]
    results = p.train_here(tmp_path, *options)
    predicted, targets = outputs(p, tmp_path)
    ranks = [pd.Series(values).rank().to_numpy() for values in (predicted.numpy(), targets)]
    assert results["pearson_corrcoef"] == pytest.approx(
        np.corrcoef(predicted.numpy(), targets)[0, 1], abs=1e-5
    )
    assert results["spearman_corrcoef"] == pytest.approx(
        np.corrcoef(ranks[0], ranks[1])[0, 1], abs=1e-5
    )


class Pixels(nn.Module):
    """Returns its input as logits."""

    ignored = 255

    def predict(self, logits: Tensor) -> Tensor:
        return logits

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        return self.predict(logits)


def measure(
    p: Package,
    model: nn.Module,
    batches: list[Any],
    *options: str,
) -> dict[str, float]:
    """Return the metrics of one validation of a model, called by name."""
    cfg = p.options("--metrics.enabled=true", *options)
    world = p.distributed.World(0, 1, torch.device("cpu"))
    component = p.components.build_components(cfg, world).components[0]
    run = SimpleNamespace(
        model=model,
        world=world,
        plan=SimpleNamespace(batch_size=1),
    )
    component.wrap_dataset(batches)
    component.check(cfg, ["metrics"])
    component.convert_model(model)
    results: dict[str, float] = {}
    with component.eval_weights(run):
        for batch in batches:
            model(**batch)
        component.on_validation(run, results)
    assert not model._forward_hooks
    return results


def test_pixels_that_are_ignored_do_not_count(package: MakePackage) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(
        3,
        1,
        4,
        5,
        5,
        generator=generator,
    )
    masks = torch.randint(
        0,
        4,
        (3, 1, 5, 5),
        generator=generator,
    )
    masks[:, :, :2] = 255
    batches = [{"logits": one, "masks": mask} for one, mask in zip(logits, masks, strict=True)]
    found = measure(package("mlp", "metrics"), Pixels(), batches, f"--metrics.names={NAMES}")
    kept = masks.flatten() != 255
    rest = logits.double().softmax(2).movedim(2, 4).reshape(-1, 4)[kept]
    assert found == pytest.approx(
        by_sklearn(rest.numpy(), masks.flatten()[kept].numpy(), "macro"), abs=1e-6
    )


def test_one_logit_is_of_the_second_class(package: MakePackage) -> None:
    logits = torch.tensor([-3.0, -0.5, 0.2, 4.0])
    labels = torch.tensor([0, 1, 0, 1])
    batches = [{"logits": logits[i : i + 1], "masks": labels[i : i + 1]} for i in range(4)]
    found = measure(package("mlp", "metrics"), Pixels(), batches, "--metrics.average=binary")
    assert found == {"auroc": 0.75, "f1": 0.5}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gpt", "metrics.names has auroc, but GPT predicts no classes"),
        (
            "diffusion",
            "metrics.enabled needs a model whose `predict` takes the inputs of `forward`: not UNet",
        ),
    ],
)
def test_model_that_predicts_no_classes_is_one_line(
    package: MakePackage, tmp_path: Path, model: str, message: str
) -> None:
    p = package(model, "metrics")
    with pytest.raises(p.errors.UserError) as caught:
        p.train_here(tmp_path, "--metrics.enabled=true", "--train.steps=1", "--train.batch_size=4")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--metrics.names=[f1,spearman_corrcoef]"],
            "metrics.names must have metrics of classes, or metrics of",
        ),
        (["--metrics.names=[]"], "metrics.names must have metrics of classes, or metrics of"),
        (
            ["--metrics.names=[pearson_corrcoef]"],
            "metrics.names has pearson_corrcoef, but MLP predicts no numbers",
        ),
        (["--data.builtin=diabetes"], "metrics.names has auroc, but MLP predicts no classes"),
    ],
)
def test_metrics_of_another_task_are_one_line(
    package: MakePackage, tmp_path: Path, options: list[str], message: str
) -> None:
    p = package("mlp", "metrics")
    with pytest.raises(p.errors.UserError, match=message):
        p.train_here(tmp_path, *ON, *options)


def test_class_without_samples_and_more_than_two_classes(package: MakePackage) -> None:
    p = package("mlp", "metrics")
    batches = [{"logits": torch.eye(3)[:1], "masks": torch.tensor([label])} for label in (0, 2)]
    with pytest.raises(
        p.errors.UserError,
        match=r"class 1 \(counted from 0\) has no validation sample, so auroc is",
    ):
        measure(p, Pixels(), batches)
    assert measure(p, Pixels(), batches, "--metrics.names=[f1]")["f1"] == pytest.approx(1 / 3)
    with pytest.raises(
        p.errors.UserError, match="metrics.average is binary, but there are 3 classes: set macro"
    ):
        measure(p, Pixels(), batches, "--metrics.average=binary")
