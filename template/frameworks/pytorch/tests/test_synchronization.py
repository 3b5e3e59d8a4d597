"""No step waits for the device: on "meta", whose tensors have no values, and on a GPU."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .. import data
from ..data import DataConfig
from ..distributed import World, find_device
from ..loader import BatchPlan, Loader, map_tensors
from ..log import Log
from ..loss import StepMean, compute_loss
from ..metrics import Meter
from ..model import ModelConfig, build
from ..optim import OneCycle, adamw, clip
from .support import CPU, config, load_all, rows, train_here

META = torch.device("meta")


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


def train_on_meta(folder: Path, fault: Callable[[Tensor], object] = lambda _: None) -> None:
    """Run the parts of 3 steps, with a fault after the forward pass."""
    cfg = config(folder, "--optim.fused=false")
    train_set, _, spec = load_all(DataConfig())
    model = build(ModelConfig(), spec).to(META)
    prepare = data.Prepare(spec, DataConfig()).to(META)
    optimizer = adamw(model, cfg.optim)
    meter = Meter(World(0, 1, META))
    step_mean = StepMean(lambda count: count)
    schedule = OneCycle(
        cfg.optim,
        BatchPlan.make(
            cfg.train,
            len(train_set),
            1,
        ),
    )
    loaded = [
        map_tensors(lambda part: part.to(META), it)
        for it in Loader(
            train_set,
            [[0, 1]] * 3,
            cfg.loader,
            CPU,
        )
    ]
    # it does not know this device
    no_autocast = mock.patch.object(
        torch,
        "autocast",
        return_value=nullcontext(),
    )
    with no_autocast, NoHostTensors():
        for step in range(3):
            loss, metrics = compute_loss(
                model,
                prepare(
                    loaded[step],
                    True,
                    torch.default_generator,
                ),
            )
            fault(loss)
            (loss * step_mean.weight(metrics, True)).backward()
            step_mean.scale(model.parameters(), 2)
            clip(list(model.parameters()), 1.0, 0.5)
            schedule.set(optimizer, step)
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(400):  # together more than the 1000 that it adds up at once
                meter.add(metrics)


def test_step_never_synchronizes(tmp_path: Path) -> None:
    train_on_meta(tmp_path)


FAULTS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda loss: loss.item(),
    "condition": lambda loss: bool(loss > 0),
    "host tensor": lambda loss: loss + torch.ones(2),
    "copy to the device": lambda loss: torch.ones(2).to(loss),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_synchronization_is_found(tmp_path: Path, fault: str) -> None:
    with pytest.raises(
        (RuntimeError, AssertionError), match=r"called on meta|expected device|tensor of the host"
    ):
        train_on_meta(tmp_path, FAULTS[fault])


@pytest.mark.gpu
@pytest.mark.skipif(
    not (torch.accelerator.is_available() or os.environ.get("REQUIRE_GPU")), reason="needs a GPU"
)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_training_on_a_gpu_synchronizes_for_rows_only(tmp_path: Path) -> None:
    world = World(0, 1, find_device("accelerator"))

    def in_mode(owner: Any, name: str, mode: str) -> Any:
        original = getattr(owner, name)

        def set_mode_and_call(*arguments: Any) -> Any:
            if world.device.type == "cuda":
                torch.cuda.set_sync_debug_mode(mode)
            return original(*arguments)

        return mock.patch.object(
            owner,
            name,
            set_mode_and_call,
        )

    with (
        in_mode(
            Log,
            "wait_for",
            "error",
        ),
        in_mode(
            Meter,
            "read",
            "default",
        ),
    ):
        train_here(
            tmp_path,
            "--run.device=accelerator",
            "--speed.precision=auto",
            "--log.every=3",
            world=world,
        )
    assert [row["step"] for row in rows(tmp_path, "train")] == [3, 4, 6, 8, 9, 12]
