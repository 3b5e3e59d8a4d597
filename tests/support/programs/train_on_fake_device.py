"""Train a rendered project on an accelerator without a kernel: RUNS [FAULT].

RUNS is a JSON list of lists of options.

torch lets Python register a device, and fake tensors have a device, a shape and a dtype but no
values. So every tensor of a step that stays on the host, and every value that the host reads from
the device, ends the program with an error of torch. What would need values is replaced: rows of
metrics and checkpoints.

FAULT is planted in each step: `item` reads a value, `host` uses a tensor of the host.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils import backend_registration
from torch.utils.data import IterableDataset

DEVICE = torch.device("cpu")  # until the device is registered
ITEM = Tensor.item
NAMES = ["checkpoint", "components", "config", "data", "distributed", "loader", "metrics", "train"]


class Module(backend_registration._DummyBackendModule):
    """What `torch.get_device_module` returns."""

    Stream = torch.Stream
    default_generators = (torch.Generator(),)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the formats of autocast."""
        return [torch.bfloat16]


class Event:
    """What `torch.Event` is on a device that waits for nothing."""

    def __init__(self, device: torch.device, enable_timing: bool = False) -> None:
        assert device == DEVICE

    def record(self) -> None:
        """Note nothing."""

    def synchronize(self) -> None:
        """Wait for nothing."""

    def elapsed_time(self, end: "Event") -> float:
        """Return some milliseconds."""
        return 1.0


class Mode(FakeTensorMode):
    """Fake tensors, also those that torch would keep as constants."""

    def may_turn_const(self, t: Tensor) -> bool:
        """Return False, as a copy of a constant on the device would need a kernel."""
        return False


class Stream(IterableDataset[Any]):
    """The samples of a set, one after the other."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Any]:
        for number in range(len(self)):
            yield tuple(part[0] for part in self.samples.__getitems__([number]))


def really(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, with real tensors."""

    def call(*args: Any, **named: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **named)

    return call


def really_iterate(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return the function of an iterator, each of whose entries is made with real tensors."""

    def iterate(*args: Any) -> Iterator[Any]:
        entries = function(*args)
        end = object()
        while (entry := really(next)(entries, end)) is not end:
            yield entry

    return iterate


def move(self: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Replace the tensors of a module, as `Module._apply` does for real ones.

    It cannot swap fake ones.
    """
    moved: dict[int, tuple[Tensor, nn.Parameter]] = {}
    for module in self.modules():
        for name, weight in module._parameters.items():
            if weight is None:
                continue
            if id(weight) not in moved:
                with torch.no_grad():
                    moved[id(weight)] = (weight, nn.Parameter(change(weight), weight.requires_grad))
            setattr(module, name, moved[id(weight)][1])
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = change(buffer)
    return self


def check_and_forget(meter: Any, own: dict[str, Tensor] | None = None) -> dict[str, float]:
    """Return 1 for each metric; all of them must be on the device."""
    values = list((own or {}).values())
    for totals in meter.totals.values():
        values += totals
    on_host = [value for value in values if isinstance(value, Tensor) and value.device != DEVICE]
    assert not on_host, f"metrics on the host: {on_host}"
    names = [*meter.totals, *(own or {})]
    meter.totals = {}
    return dict.fromkeys(names, 1.0)


def item(tensor: Tensor) -> Any:
    """Read a value, which only the content of a checkpoint and a row of metrics may do."""
    # a comprehension has a frame of its own until Python 3.12
    frames = [
        sys._getframe(1),
        sys._getframe(2),
    ]
    may_read = {frame.f_code.co_name for frame in frames} & {"state", "state_dict", "on_log"}
    if tensor.device.type == "cpu":  # a count of steps: no wait for the device
        return 1.0
    return 0.0 if may_read else ITEM(tensor)


def plant(prepare: Callable[..., Any], fault: str) -> Callable[..., Any]:
    """Return a `Prepare.forward` with a fault."""

    def faulty(self: Any, batch: Any, *others: Any) -> Any:
        first = batch[0]
        if fault == "item":
            first.sum().item()
        else:
            first + torch.ones(2)[0].expand(first.shape)
        return prepare(self, batch, *others)

    return faulty


def train_each(runs: Iterable[list[str]], fault: str) -> None:
    """Train with each list of options."""
    loader = modules["loader"]
    mode = Mode(allow_non_fake_inputs=True)
    load_sets = really(modules["data"].load)
    load = loader.load_batch
    whole = loader.val_batches

    def load_streamed(cfg: Any) -> Any:
        train_set, *others = load_sets(cfg)
        return Stream(train_set), *others

    def fake(batch: Any) -> Any:
        return loader.map_tensors(mode.from_tensor, batch)

    def load_fake(dataset: Any, indices: list[int]) -> Any:
        return (
            load(dataset, indices)
            if getattr(dataset, "on_device", False)
            else fake(really(load)(dataset, indices))
        )

    replaced: list[tuple[Any, str, Any]] = [
        (loader, "load_batch", load_fake),
        (loader, "train_batches", really_iterate(loader.train_batches)),
        (
            loader,
            "val_batches",
            lambda samples, micro, world: whole(
                min(samples, 2 * micro),
                micro,
                world,
            ),
        ),
        (modules["metrics"].Meter, "read", check_and_forget),
        (
            modules["checkpoint"].Checkpoints,
            "save",
            lambda self, state: self.folder.mkdir(parents=True),
        ),
        (nn.Module, "_apply", move),
        (torch, "Event", Event),
        (Tensor, "item", item),
        (Tensor, "pin_memory", lambda self: self),
        (Tensor, "record_stream", lambda self, s: None),
    ]
    if cache := getattr(modules["components"], "cache", None):
        replaced.append((cache.Source, "learn", really(cache.Source.learn)))
    if streams := getattr(modules["components"], "streams", None):
        batches = really_iterate(streams.Stream.batches)
        replaced.append((streams.Stream, "batches", lambda *args: map(fake, batches(*args))))
    if fault:
        prepare = modules["data"].Prepare
        replaced.append((prepare, "forward", plant(prepare.forward, fault)))
    # what it counts is on the host, before the run
    replaced.append((modules["train"], "describe_data", lambda *_: []))
    with ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(mode)
        for options in runs:
            load_chosen = load_streamed if "--streams.enabled=true" in options else load_sets
            world = modules["distributed"].World(0, 1, DEVICE)
            with mock.patch.object(modules["data"], "load", load_chosen):
                modules["train"].train(
                    modules["config"].parse(modules["components"].Config, options), world
                )


if __name__ == "__main__":
    for name in (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
    ):  # one process, of no launcher
        os.environ.pop(name, None)
    backend_registration._setup_privateuseone_for_python_backend("fake", Module())
    DEVICE = torch.device("fake", 0)
    modules: dict[str, Any] = {name: importlib.import_module(f"proj.{name}") for name in NAMES}
    train_each(json.loads(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
