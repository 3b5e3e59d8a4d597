"""No step waits for the device: each model's on "meta", whose tensors have no values."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from engine import MakePackage, Package
from matrix import MODELS
from torch import Tensor
from torch.overrides import TorchFunctionMode

META = torch.device("meta")
FAULTS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda loss: loss.item(),
    "condition": lambda loss: bool(loss > 0),
    "host tensor": lambda loss: loss + torch.ones(2),
    "copy to the device": lambda loss: torch.ones(2).to(loss),
}


class NoHostTensors(TorchFunctionMode):
    """Refuses what a GPU waits for: operations on tensors of the device and of the host, copies."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        result = function(*arguments, **(options or {}))
        values = [result, *arguments, *(options or {}).values()]
        tensors: list[Tensor] = []
        for value in values:
            parts = value if isinstance(value, list | tuple) else [value]
            tensors += [part for part in parts if isinstance(part, Tensor)]
        on_host = [value for value in tensors if value.device != META and value.ndim > 0]
        copies = on_host or function in (torch.tensor, torch.as_tensor)
        assert not (copies and any(value.device == META for value in tensors)), (
            f"{function} of a tensor of the host"
        )
        return result


def train_on_meta(
    p: Package, folder: Path, fault: Callable[[Tensor], object] = lambda _: None
) -> None:
    """Run the parts of 3 steps, with a fault after the forward pass."""
    cfg = p.options(f"--run.dir={folder}")
    train_set, _, spec = p.data.load(cfg.data)
    model = p.model.build(cfg.model, spec).to(META)
    prepare = p.data.Prepare(spec, cfg.data).to(META)
    optimizer = p.optim.adamw(model, cfg.optim)
    for group in optimizer.param_groups:
        group["fused"] = False  # there is no kernel for this device
    meter = p.metrics.Meter(
        p.distributed.World(
            0,
            1,
            META,
        )
    )
    step_mean = p.loss.StepMean(lambda count: count)
    schedule = p.optim.OneCycle(cfg.optim, p.loader.BatchPlan.make(cfg.train, len(train_set), 1))
    loaded = p.contracts.load_batch(train_set, [0, 1])
    on_meta = p.loader.map_tensors(lambda part: part.to(META), loaded)
    # it does not know this device
    no_autocast = mock.patch.object(torch, "autocast", return_value=nullcontext())
    with no_autocast, NoHostTensors():
        for step in range(3):
            batch = prepare(on_meta, True, torch.default_generator)
            loss, metrics = p.loss.compute_loss(model, batch)
            fault(loss)
            (loss * step_mean.weight(metrics, True)).backward()
            step_mean.scale(model.parameters(), 2)
            p.optim.clip(list(model.parameters()), 1.0)
            schedule.set(optimizer, step)
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(400):  # together more than the 1000 that it adds up at once
                meter.add(metrics)


@pytest.mark.parametrize("model", MODELS)
def test_step_never_synchronizes(package: MakePackage, tmp_path: Path, model: str) -> None:
    train_on_meta(package(model), tmp_path)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_synchronization_is_found(package: MakePackage, tmp_path: Path, fault: str) -> None:
    with pytest.raises(
        (RuntimeError, AssertionError), match=r"called on meta|expected device|tensor of the host"
    ):
        train_on_meta(package("mlp"), tmp_path, FAULTS[fault])
