"""What a CUDA graph cannot capture is refused, and a captured step has the same losses."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .. import data, optim
from ..config import Config
from ..contracts import Batch
from ..distributed import World
from ..errors import UserError
from ..techniques import step_graph
from ..train import train
from .conftest import read_losses, read_rows, unsupported

GPU = World(0, 1, torch.device("cuda", 0))
FIT = ["--speed.step_graph=true"]


def test_step_graph_accepts_supported_options(config: Callable[..., Config]) -> None:
    step_graph.check(config(*FIT), GPU, "bf16")
    step_graph.check(config("--speed.step_graph=true", "--optim.schedule=cosine"), GPU, "fp32")


@pytest.mark.parametrize(
    ("options", "precision", "message"),
    [
        ([], "fp16", "fp16 synchronizes with the host"),
        ([], "fp8", "fp8 synchronizes with the host"),
        (["--optim.name=sgd"], "bf16", "it captures fused adamw"),
        (["--optim.fused=false"], "bf16", "it captures fused adamw"),
        (["--speed.activation_checkpointing=blocks"], "bf16", "set speed.activation_checkpointing to none"),
        (["--speed.compile=model", "--speed.compile_mode=reduce-overhead"], "bf16", "use default"),
        (["--debug.nan=true"], "bf16", "set them to false"),
        (["--debug.anomaly=true"], "bf16", "set them to false"),
    ],
)
def test_step_graph_refuses_unsupported_options(
    config: Callable[..., Config], options: list[str], precision: str, message: str
) -> None:
    with pytest.raises(UserError, match=message) as refused:
        step_graph.check(config(*FIT, *options), GPU, precision)
    assert str(refused.value).startswith("speed.step_graph is true: ")


def test_step_graph_refuses_ranks_and_cpu(config: Callable[..., Config]) -> None:
    with pytest.raises(UserError, match="it is for one process, and there are 2"):
        step_graph.check(config(*FIT), World(0, 2, torch.device("cuda", 0)), "bf16")
    with pytest.raises(UserError, match="it needs CUDA, and this run is on cpu"):
        step_graph.check(config(*FIT), World(0, 1, torch.device("cpu")), "bf16")


class Recorded(TorchDispatchMode):
    """Stands in for a CUDA graph on the CPU: a replay repeats the operations, on the same tensors and numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.before: list[tuple[Tensor, Tensor]] = []
        self.replays = 0

    def __enter__(self) -> "Recorded":
        self.random = torch.get_rng_state()
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's
        return self

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert operation is not torch.ops.aten._local_scalar_dense.default, "a capture cannot read from the device"
        if operation._schema.is_mutable or "batch_norm" in str(operation):
            self.before += [(part, part.detach().clone()) for part in tree_leaves(args) if isinstance(part, Tensor)]
        returned = operation(*args, **(kwargs or {}))
        self.calls.append((operation, args, kwargs or {}, returned))
        return returned

    def __exit__(self, *error: Any) -> None:
        """Undo what the operations changed, as a CUDA graph does nothing while it is captured."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's
        torch.set_rng_state(self.random)
        with torch.no_grad():
            for part, value in reversed(self.before):
                part.copy_(value)

    def pool(self) -> None: ...

    def replay(self) -> None:
        self.replays += 1
        for operation, args, kwargs, returned in self.calls:
            with (
                torch._C._AutoDispatchBelowAutograd()
            ):  # as when recorded: an LSTM's layer asks whether gradients are on
                again = operation(*args, **kwargs)
            with torch.no_grad():
                for static, value in zip(tree_leaves(returned), tree_leaves(again), strict=True):
                    if isinstance(static, Tensor) and static.data_ptr() != value.data_ptr():
                        static.copy_(value)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """Capture on the CPU; returns the graphs."""
    graphs: list[Recorded] = []

    def new() -> Recorded:
        graphs.append(Recorded())
        return graphs[-1]

    monkeypatch.setattr(step_graph, "check", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", new)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **options: graph)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, mock.Mock())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_rng_state", torch.get_rng_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", torch.set_rng_state)
    return graphs


@pytest.mark.parametrize("options", [[], ["--optim.schedule=cyclic", "--train.accumulate=2"], ["--optim.schedule=wsd"]])
def test_recorded_step_has_the_same_losses(
    config: Callable[..., Config],
    world: World,
    tmp_path: Path,
    recorded: list[Recorded],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
) -> None:
    """On the CPU, also when resumed halfway: nothing that changes during a run may be captured as a number."""
    if unsupported(FIT):
        return
    shared = ["--train.steps=12", "--log.every=1", "--train.eval_every=6", "--optim.lr=3e-3", *options]
    train(config("--run.name=off", *shared), world)
    assert recorded == []
    prepared: list[Batch] = []
    prepare = vars(data.Prepare)["forward"]

    def noting(self: nn.Module, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        prepared.extend([batch] * training)
        found: Batch = prepare(self, batch, training, generator)
        return found

    monkeypatch.setattr(data.Prepare, "forward", noting)
    train(config("--run.name=on", *shared, *FIT), world)
    assert len(prepared) == step_graph.WARMUP + 1, "it is captured, too"
    accumulated = 2 if "--train.accumulate=2" in options else 1
    assert [graph.replays for graph in recorded] == [12 * accumulated, 12]
    off = read_losses(tmp_path / "off")
    assert read_losses(tmp_path / "on") == pytest.approx(off, rel=1e-4)
    for ours, theirs in zip(*(read_rows(tmp_path / name, "train") for name in ("on", "off")), strict=True):
        assert ours.pop("split") == theirs.pop("split")
        for name in ("loss", "grad_norm", "lr"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3)
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-3)  # a pixel of a small class moves its IoU
    train(config(f"--run.resume={tmp_path / 'on/checkpoints/step-00000006'}", *shared, *FIT), world)
    assert read_losses(tmp_path / "on") == pytest.approx(off, rel=1e-4)


def test_step_on_the_device_is_that_of_adamw() -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape)) for shape in ((8, 4), (8,), (3, 8))]
    copies = [nn.Parameter(weight.detach().clone()) for weight in weights]
    ours, theirs = (torch.optim.AdamW(some, lr=1e-2, weight_decay=0.1, fused=True) for some in (weights, copies))
    momentum = torch.zeros(())
    for number in range(20):
        for weight, copy in zip(weights, copies, strict=True):
            weight.grad = torch.randn_like(weight)
            copy.grad = weight.grad.clone()
        optim.set_lr(ours, 1e-2 / (number + 1), 0.95 - 0.005 * number)
        optim.set_lr(theirs, 1e-2 / (number + 1), 0.95 - 0.005 * number)
        momentum.fill_(ours.param_groups[0]["betas"][0])
        if number:
            step_graph.adamw_step(ours, momentum)
        else:
            ours.step()
        theirs.step()
    torch.testing.assert_close(weights, copies, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu("cuda")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_captured_step_has_the_same_losses(
    config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    replayed: list[int] = []
    replay = torch.cuda.CUDAGraph.replay

    def count(graph: torch.cuda.CUDAGraph) -> None:
        replayed.append(1)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", count)
    shared = ["--run.device=cuda", "--train.steps=20", "--log.every=1", f"--train.accumulate={accumulate}"]
    if unsupported(FIT):
        with pytest.raises(UserError, match=re.escape(unsupported(FIT))):
            train(config("--run.name=on", *shared, *FIT), GPU)
        return
    train(config("--run.name=off", *shared), GPU)
    assert replayed == []
    train(config("--run.name=on", *shared, *FIT), GPU)
    assert len(replayed) == 20 * (accumulate + 1)
    assert read_losses(tmp_path / "on") == pytest.approx(read_losses(tmp_path / "off"), rel=1e-3)
