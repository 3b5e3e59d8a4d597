"""How a run uses the streams of an accelerator, shown on the CPU with stand-ins for streams and pinned memory."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .. import data, grad_scaler, loaders
from ..config import Config
from ..distributed import World
from ..errors import UserError
from ..techniques import device_cache
from ..train import train
from .conftest import unsupported

pytestmark = pytest.mark.usefixtures("short_validation")


class Device:
    """What an accelerator was told to do, in order: events with the tensor that each is about."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.side = False

    def note(self, event: str, about: Any = None) -> None:
        """Add an event; the tensor is kept, so that no other gets its id."""
        self.events.append((event, about))

    def places(self, event: str) -> list[int]:
        """Return where an event is in the order."""
        return [place for place, (name, _) in enumerate(self.events) if name == event]

    def tensors(self, event: str, before: int | None = None) -> set[int]:
        """Return the ids of the tensors that an event was about."""
        return {id(about) for name, about in self.events[:before] if name == event}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Make the CPU look like a device with streams."""
    found, to = Device(), Tensor.to

    class Stream:
        def __init__(self, device: torch.device) -> None:
            found.note("new stream")

        def __enter__(self) -> None:
            found.side = True

        def __exit__(self, *error: object) -> None:
            found.side = False

        def wait_stream(self, other: object) -> None:
            found.note("wait", other)

    class Event:
        def __init__(self, device: torch.device) -> None:
            pass

        def record(self) -> None:
            found.note("step queued")

        def synchronize(self) -> None:
            found.note("synchronize")

    def pin(self: Tensor) -> Tensor:
        copy = self.clone()
        found.note("pin", copy)
        return copy

    def copy_to(self: Tensor, *where: Any, **how: Any) -> Tensor:
        if not found.side:
            return to(self, *where, **how)
        assert how == {"non_blocking": True}
        assert id(self) in found.tensors("pin"), "a copy from pageable memory blocks the host"
        copy = self.clone()
        found.note("copy", copy)
        return copy

    def use(self: nn.Module, batch: Any, training: bool, generator: torch.Generator) -> Any:
        if training:
            found.note("use", batch)
        return prepare(self, batch, training, generator)

    prepare, main = vars(data.Prepare)["forward"], Stream(torch.device("cpu"))
    found.events.clear()
    monkeypatch.setattr(loaders, "has_streams", lambda device: True)
    monkeypatch.setattr(grad_scaler, "has_streams", lambda device: True)
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: main)
    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", copy_to)
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: found.note("record", self))
    monkeypatch.setattr(data.Prepare, "forward", use)
    monkeypatch.setattr(loaders, "_side_stream", cache(Stream))
    return found


@pytest.mark.parametrize("accumulate", [1, 2])
def test_next_batch_is_copied_while_the_present_one_is_in_use(
    config: Callable[..., Config], world: World, device: Device, steady_state: list[int], accumulate: int
) -> None:
    options = ["--run.name=a", "--train.steps=8", "--log.every=100", "--loader.workers=0"]
    train(config(*options, f"--train.accumulate={accumulate}"), world)
    assert len(steady_state) == 8, "nothing synchronized in between"
    assert len(device.places("new stream")) == 1, "training and validation share it"
    uses = device.places("use")
    assert len(uses) == 8 * accumulate
    for number, place in enumerate(uses):
        batch = device.events[place][1]
        copied, recorded = device.tensors("copy", place), device.tensors("record", place)
        assert {id(part) for part in batch} <= copied & recorded, "until then the allocator may reuse its memory"
        assert device.places("wait")[number] < place, "the copy has ended"
        following = device.events[uses[number + 1]][1] if number + 1 < len(uses) else ()
        assert {id(part) for part in following} <= copied, "the copy of the next batch was started before"


def test_validation_uses_the_same_stream(config: Callable[..., Config], world: World, device: Device) -> None:
    train(config("--run.name=a", "--train.steps=4", "--train.eval_every=2", "--loader.workers=0"), world)
    assert len(device.places("new stream")) == 1
    assert device.tensors("copy") == device.tensors("record")


@pytest.mark.parametrize("ema", ["null", "0.9"])
def test_fp16_waits_for_a_step_when_the_next_one_is_queued(
    config: Callable[..., Config], world: World, device: Device, ema: str
) -> None:
    options = ["--run.name=a", "--speed.precision=fp16", "--train.steps=4", "--train.eval_every=4", "--log.every=4"]
    if unsupported(options):
        with pytest.raises(UserError, match=re.escape(unsupported(options))):
            train(config(*options), world)
        return
    train(config(*options, f"--train.ema={ema}"), world)
    order = [event for event, _ in device.events if event in ("use", "step queued", "synchronize")]
    together = [event for event, before in zip(order, ["", *order], strict=False) if event != before]
    step = ["use", "synchronize", "step queued"]
    assert together == ([*step * 4, "synchronize"] if ema == "null" else [*step, "synchronize"] * 4)


def test_device_cache_copies_pinned_indices(
    config: Callable[..., Config], world: World, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_cache, "has_streams", lambda device: True)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda device: (2**40, 2**40))
    train(config("--run.name=a", "--train.steps=4", "--data.cache=device", "--loader.workers=0"), world)
    pinned = [about for event, about in device.events[device.places("use")[0] :] if event == "pin"]
    assert len(pinned) >= 3
    assert {(part.dtype, part.ndim) for part in pinned} == {(torch.int64, 1)}
