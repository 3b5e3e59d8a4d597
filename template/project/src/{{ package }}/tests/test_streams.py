"""How a run uses the streams of an accelerator, shown on the CPU with stand-ins for streams and pinned memory."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .. import data, distributed, grad_scaler, loaders, run
from ..config import Config
from ..device_times import DeviceTimes
from ..distributed import World
from ..errors import UserError
from ..faults import host_copy
from ..techniques import device_cache
from ..train import train
from .conftest import read_weights, unsupported

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
        def __init__(self, device: torch.device, enable_timing: bool = False) -> None:
            self.timed = enable_timing
            self.asked = 0

        def record(self) -> None:
            found.note("timed" if self.timed else "step queued")

        def synchronize(self) -> None:
            found.note("synchronize")

        def query(self) -> bool:
            self.asked += 1
            found.note("asked")
            return self.timed or self.asked > 2

        def elapsed_time(self, after: object) -> float:
            return 1.0

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


def test_accelerator_of_another_vendor_takes_the_same_path(
    config: Callable[..., Config], world: World, device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By its own module and `torch.accelerator`: its index, generator and name, times, peak memory, checkpoints."""
    xpu, own, get_module = torch.device("xpu", 0), torch.Generator(), torch.get_device_module
    module = SimpleNamespace(Stream=object, default_generators=[own], get_device_name=lambda device: "Max 1550")
    monkeypatch.setattr(torch, "get_device_module", lambda device: module if device == xpu else get_module(device))
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda device: 3e9)
    monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", lambda device: None)
    with monkeypatch.context() as machine:
        machine.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("xpu"))
        machine.setattr(torch.accelerator, "device_count", lambda: 1)
        assert [distributed._device(wanted, 0) for wanted in ("auto", "accelerator", "xpu")] == [xpu] * 3
    assert distributed.describe(World(0, 2, xpu)) == "Max 1550, 2 ranks"
    assert distributed.seeded_generator(xpu, 1, 2, 3) is own
    pinned: list[Tensor] = []
    empty_like = torch.empty_like

    def on_host(value: Tensor, **how: Any) -> Tensor:
        made = empty_like(value, **{name: it for name, it in how.items() if name != "pin_memory"})
        pinned.extend([made] * how.get("pin_memory", False))
        return made

    monkeypatch.setattr(torch, "empty_like", on_host)
    monkeypatch.setattr(host_copy, "has_streams", lambda device: True)
    monkeypatch.setattr(run, "PhaseTimes", lambda: DeviceTimes(xpu, captured=False))
    train(config("--run.name=a", "--train.steps=4", "--train.eval_every=4", "--log.every=2"), world)
    rows = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    last = next(row for row in rows if (row["split"], row["step"]) == ("train", 4))
    assert last["memory_gb"] == 3.0
    assert {"prepare", "forward", "backward", "optimizer"} <= last.keys()
    weights = read_weights(tmp_path / "a", 4)
    kept = [name for name, weight in weights.items() if any(torch.equal(value, weight) for value in pinned)]
    assert kept == [*weights], "a copy to pageable memory would block the host"
    assert [event for event, _ in device.events if event == "asked"][2:], "the thread waits for the copies"
