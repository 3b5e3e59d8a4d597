"""Dataset-level validation metrics such as AUROC and F1, computed by torchmetrics."""

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..component import Component
from ..config import BaseConfig
from ..config_base import Section
from ..contracts import ignored_target, predict_method
from ..distributed import World
from ..errors import UserError
from ..loader import val_batches
from ..run import Run

AVERAGED = {
    "auroc": "AUROC",
    "average_precision": "AveragePrecision",
    "f1": "F1Score",
    "precision": "Precision",
    "recall": "Recall",
    "specificity": "Specificity",
    "jaccard_index": "JaccardIndex",
}
"""Metrics of each class, and their classes in torchmetrics."""
JOINT = {
    "matthews_corrcoef": "MatthewsCorrCoef",
    "cohen_kappa": "CohenKappa",
    "calibration_error": "CalibrationError",
}
"""Metrics of all classes together."""
REGRESSION = {"pearson_corrcoef": "PearsonCorrCoef", "spearman_corrcoef": "SpearmanCorrCoef"}
"""Metrics that do not depend on the unit, as `predict` may return another one than that of the prepared targets."""
RANKED = {"auroc", "average_precision"}
"""Metrics that a class without samples does not have."""


@dataclass(frozen=True)
class MetricsConfig(Section):
    """Dataset-level validation metrics such as AUROC and F1."""

    enabled: bool = False
    """Add them to the validation results; this runs the model's `predict` on each validation batch."""
    names: tuple[str, ...] = ("auroc", "f1")
    """auroc, average_precision, f1, precision, recall, specificity, jaccard_index, matthews_corrcoef, cohen_kappa,
    calibration_error; or, for regression, pearson_corrcoef, spearman_corrcoef."""
    average: Literal["macro", "weighted", "binary"] = "macro"
    """Mean over the classes, plain or weighted by their samples; binary: of two classes, the metric of the second."""


class Metrics(Component):
    """Feeds torchmetrics from a hook on the model, in the precision of the validation."""

    name = "metrics"

    def __init__(self, cfg: MetricsConfig, world: World) -> None:
        self.cfg, self.samples = cfg, 0
        self.batches = 0
        """Batches of this validation so far."""
        self.collection: Any = None
        """A MetricCollection of torchmetrics, from the first batch of a validation on."""
        self.class_counts: Tensor | None = None

    def wrap_dataset(self, dataset: Any) -> Any:
        self.samples = len(dataset)  # the last call is for the validation set
        return dataset

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        names, known = self.cfg.names, AVERAGED | JOINT | REGRESSION
        if unknown := [name for name in names if name not in known]:
            raise UserError(f"metrics.names has {unknown[0]}, which is none of {', '.join(known)}")
        if len({name in REGRESSION for name in names}) != 1:
            raise UserError(
                "metrics.names must have metrics of classes, or metrics of numbers, not both or none"
            )

    def convert_model(self, model: nn.Module) -> nn.Module:
        inputs, rest = _parameters(model)
        if not inputs or len(rest) != 1:
            name = type(model).__name__
            raise UserError(
                f"metrics.enabled needs a model whose `predict` takes the inputs of `forward`: not {name}"
            )
        return model

    @contextmanager
    def eval_weights(self, run: Run) -> Iterator[None]:
        self.batches, self.collection, self.class_counts = 0, None, None
        counted = val_batches(self.samples, run.plan.micro_batch, run.world)[1]
        hook = torch.compiler.disable(partial(self._see, counted))
        handle = run.model.register_forward_hook(hook, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def on_validation(self, run: Run, results: dict[str, float]) -> None:
        if self.class_counts is not None:
            counts = run.world.all_reduce(self.class_counts.cpu())
            if (counts == 0).any() and (ranked := RANKED.intersection(self.cfg.names)):
                found = (
                    f"class {counts.tolist().index(0)} (counted from 0) has no validation sample"
                )
                raise UserError(
                    f"{found}, so {min(ranked)} is undefined: add one, or change metrics.names"
                )
        results |= {name: value.item() for name, value in self.collection.compute().items()}

    def _see(
        self, counted: int, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any
    ) -> None:
        batch = signature(model.forward).bind(*args, **kwargs).arguments
        inputs, (target,) = _parameters(model)
        # of each batch, as FSDP communicates in it
        scores = model.predict(**{name: batch[name] for name in inputs})
        self.batches += 1
        if self.batches <= counted:
            self._add(model, scores, batch[target])

    def _add(self, model: nn.Module, scores: Tensor, targets: Tensor) -> None:
        # some have no float64
        dtype = torch.float32 if scores.device.type in ("mps", "xpu") else torch.float64
        scores, wanted, classes = scores.to(dtype), f"metrics.names has {self.cfg.names[0]}", 0
        if self.cfg.names[0] in REGRESSION:
            if scores.shape != targets.shape or not targets.is_floating_point():
                raise UserError(f"{wanted}, but {type(model).__name__} predicts no numbers")
            scores, targets = scores.flatten(), targets.flatten().to(dtype)
        else:
            if scores.shape == targets.shape:  # logits of the second of two classes
                scores = torch.stack([torch.zeros_like(scores), scores], 1)
            # Targets (n,), or (n, height, width): language models have (n, t).
            fits = targets.ndim in (1, 3) and scores.shape[:1] + scores.shape[2:] == targets.shape
            if not fits or targets.is_floating_point():
                raise UserError(f"{wanted}, but {type(model).__name__} predicts no classes")
            scores, classes = scores.softmax(1), scores.shape[1]
            self._count(targets, classes, ignored_target(model))
            if self.cfg.average == "binary":
                if classes != 2:
                    raise UserError(
                        f"metrics.average is binary, but there are {classes} classes: set macro"
                    )
                scores = scores[:, 1]
        if self.collection is None:
            self.collection = self._collection(classes, ignored_target(model)).to(scores.device)
        self.collection.update(scores, targets)

    def _count(self, targets: Tensor, classes: int, ignored: int | None) -> None:
        kept = targets.flatten() if ignored is None else targets[targets != ignored]
        counts = kept.bincount(minlength=classes)
        self.class_counts = counts if self.class_counts is None else self.class_counts + counts

    def _collection(self, classes: int, ignored: int | None) -> Any:
        """Build the metrics of torchmetrics, whose `compute` gathers their states from all ranks."""
        import torchmetrics

        found: dict[str, Any] = {}
        for name in self.cfg.names:
            if name in REGRESSION:
                with warnings.catch_warnings(
                    action="ignore", category=UserWarning
                ):  # that it keeps all numbers
                    found[name] = getattr(torchmetrics, REGRESSION[name])()
                continue
            kind = getattr(torchmetrics, (AVERAGED | JOINT)[name])
            options: dict[str, Any] = {"task": "binary"}
            if self.cfg.average != "binary":
                options = {"task": "multiclass", "num_classes": classes}
                options |= {"average": self.cfg.average} if name in AVERAGED else {}
            found[name] = kind(**options, ignore_index=ignored, validate_args=False)
        return torchmetrics.MetricCollection(found)


def _parameters(model: Any) -> tuple[list[str], list[str]]:
    """Return the names of what `predict` takes, and of what only `forward` takes; none if `predict` takes more."""
    if predict_method(model) is None:
        return [], []
    inputs, known = (
        list(signature(model.predict).parameters),
        list(signature(model.forward).parameters),
    )
    return (
        (inputs, [name for name in known if name not in inputs])
        if {*inputs} <= {*known}
        else ([], [])
    )
