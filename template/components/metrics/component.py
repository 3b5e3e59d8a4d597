"""Dataset-level validation metrics such as AUROC and F1, computed by torchmetrics."""

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn

from ..component import Component
from ..config import BaseConfig
from ..config_base import Section
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
"""Metrics that do not depend on the unit, as that of `predict` may differ from the targets'."""
KNOWN = AVERAGED | JOINT | REGRESSION
RANKED = {"auroc", "average_precision"}
"""Metrics that a class without samples does not have."""


@dataclass(frozen=True)
class MetricsConfig(Section):
    """Dataset-level validation metrics such as AUROC and F1."""

    enabled: bool = False
    """Add them to the validation results; this runs the model's `predict` on each validation
    batch."""
    names: tuple[str, ...] = ("auroc", "f1")
    """auroc, average_precision, f1, precision, recall, specificity, jaccard_index,
    matthews_corrcoef, cohen_kappa, calibration_error; or, for regression, pearson_corrcoef,
    spearman_corrcoef."""
    average: Literal["macro", "weighted", "binary"] = "macro"
    """Mean over the classes, plain or weighted by their samples; binary: of two classes, the metric
    of the second."""


class Metrics(Component):
    """Feeds torchmetrics from a hook on the model, in the precision of the validation."""

    name = "metrics"

    def __init__(self, cfg: MetricsConfig, world: World) -> None:
        self.cfg = cfg
        self.samples = 0
        self.inputs: list[str] = []
        """What `predict` takes."""
        self.target = ""
        """What only `forward` takes."""
        self.ignored: int | None = None
        """The class of targets that do not count."""
        self.batches = 0
        """Batches of this validation so far."""
        self.collection: Any = None
        """A MetricCollection of torchmetrics, from the first batch of a validation on."""
        self.classes = 0
        self.class_counts: Any = 0
        """Samples of each class, a tensor from the first batch on."""

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        for name in self.cfg.names:
            if name not in KNOWN:
                raise UserError(f"metrics.names has {name}, which is none of {', '.join(KNOWN)}")
        kinds = {name in REGRESSION for name in self.cfg.names}
        if len(kinds) != 1:
            raise UserError(
                "metrics.names must have metrics of classes, or metrics of numbers, "
                "not both or none"
            )

    def wrap_dataset(self, dataset: Any) -> Any:
        self.samples = len(dataset)  # the last call is for the validation set
        return dataset

    def convert_model(self, model: nn.Module) -> nn.Module:
        predict = getattr(model, "predict", None)
        self.inputs = list(signature(predict).parameters) if predict else []
        known = list(signature(model.forward).parameters)
        rest = [name for name in known if name not in self.inputs]
        if predict is None or len(rest) != 1 or len(known) != len(self.inputs) + 1:
            needed = "metrics.enabled needs a model whose `predict` takes the inputs of `forward`"
            raise UserError(f"{needed}: not {type(model).__name__}")
        self.target = rest[0]
        self.ignored = getattr(model, "ignored", None)
        return model

    @contextmanager
    def eval_weights(self, run: Run) -> Iterator[None]:
        self.batches = 0
        self.collection = None
        self.class_counts = 0
        _, counted = val_batches(self.samples, run.plan.batch_size, run.world)
        hook = torch.compiler.disable(partial(self._add_batch, counted))
        handle = run.model.register_forward_hook(hook, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def on_validation(self, run: Run, results: dict[str, float]) -> None:
        ranked = RANKED.intersection(self.cfg.names)
        if ranked:
            counts = run.world.all_reduce(self.class_counts.cpu()).tolist()
            if 0 in counts:
                empty = f"class {counts.index(0)} (counted from 0) has no validation sample"
                undefined = f"{min(ranked)} is undefined: add one, or change metrics.names"
                raise UserError(f"{empty}, so {undefined}")
        for name, value in self.collection.compute().items():
            results[name] = value.item()

    def _add_batch(
        self,
        counted: int,
        model: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        _: Any,
    ) -> None:
        batch = signature(model.forward).bind(*args, **kwargs).arguments
        # of each batch, as FSDP communicates in it
        scores = model.predict(**{name: batch[name] for name in self.inputs})
        self.batches += 1
        if self.batches > counted:
            return
        targets = batch[self.target]
        # some have no float64
        dtype = torch.float32 if scores.device.type in ("mps", "xpu") else torch.float64
        scores = scores.to(dtype)
        if self.cfg.names[0] in REGRESSION:
            if scores.shape != targets.shape or not targets.is_floating_point():
                self._refuse(model, "numbers")
            scores = scores.flatten()
            targets = targets.flatten().to(dtype)
        else:
            if scores.shape == targets.shape:  # logits of the second of two classes
                scores = torch.stack([torch.zeros_like(scores), scores], 1)
            # Targets (n,), or (n, height, width): language models have (n, t).
            fits = scores.shape[:1] + scores.shape[2:] == targets.shape
            if targets.ndim not in (1, 3) or not fits or targets.is_floating_point():
                self._refuse(model, "classes")
            scores = self._count_classes(scores.softmax(1), targets)
        if self.collection is None:
            self.collection = self._collection().to(scores.device)
        self.collection.update(scores, targets)

    def _refuse(self, model: nn.Module, kind: str) -> NoReturn:
        model_name = type(model).__name__
        raise UserError(
            f"metrics.names has {self.cfg.names[0]}, but {model_name} predicts no {kind}"
        )

    def _count_classes(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Count the samples of each class; return the scores that the metrics need."""
        self.classes = scores.shape[1]
        kept = targets.flatten()
        if self.ignored is not None:
            kept = kept[kept != self.ignored]
        self.class_counts = self.class_counts + kept.bincount(minlength=self.classes)
        if self.cfg.average != "binary":
            return scores
        if self.classes != 2:
            found = f"metrics.average is binary, but there are {self.classes} classes"
            raise UserError(f"{found}: set macro")
        return scores[:, 1]

    def _collection(self) -> Any:
        """Build torchmetrics' metrics, whose `compute` gathers their states from all ranks."""
        import torchmetrics

        metrics = {}
        for name in self.cfg.names:
            options: dict[str, Any] = {"ignore_index": self.ignored, "validate_args": False}
            if name in REGRESSION:
                options = {}
            elif self.cfg.average == "binary":
                options["task"] = "binary"
            else:
                options["task"] = "multiclass"
                options["num_classes"] = self.classes
                if name in AVERAGED:
                    options["average"] = self.cfg.average
            metric = getattr(torchmetrics, KNOWN[name])
            with warnings.catch_warnings(action="ignore", category=UserWarning):
                metrics[name] = metric(**options)  # warns if it keeps all samples
        return torchmetrics.MetricCollection(metrics)
