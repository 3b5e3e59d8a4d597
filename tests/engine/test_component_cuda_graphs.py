"""CUDA graphs, with a stand-in that replays recorded operations on the CPU: no graph was captured on a GPU here."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from engine import MakePackage, Package, equal, rows, saved
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STEPS = [
    "--train.steps=8",
    "--train.eval_every=4",
    "--optim.clip=null",
    "--optim.clip_value=0.05",
    "--optim.lr=3e-3",
]
ENABLED = "--cuda_graphs.enabled=true"


class Recorded(TorchDispatchMode):
    """A graph on the CPU: a replay repeats the operations, on the same tensors and numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.before: list[tuple[Tensor, Tensor]] = []
        self.replays = 0

    def __enter__(self) -> "Recorded":
        self.random = torch.get_rng_state()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        assert operation is not torch.ops.aten._local_scalar_dense.default, (
            "a capture cannot read from the device"
        )
        if operation._schema.is_mutable or "batch_norm" in str(operation):
            self.before += [
                (part, part.detach().clone())
                for part in tree_leaves(args)
                if isinstance(part, Tensor)
            ]
        returned = operation(*args, **(kwargs or {}))
        self.calls.append((operation, args, kwargs or {}, returned))
        return returned

    def __exit__(self, *error: Any) -> None:
        """Undo what the operations changed: a CUDA graph only records while it is captured."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.set_rng_state(self.random)
        with torch.no_grad():
            for part, value in reversed(self.before):
                part.copy_(value)

    def pool(self) -> None: ...

    def replay(self) -> None:
        self.replays += 1
        for operation, args, kwargs, returned in self.calls:
            with torch._C._AutoDispatchBelowAutograd():
                again = operation(*args, **kwargs)
            with torch.no_grad():
                for static, value in zip(tree_leaves(returned), tree_leaves(again), strict=True):
                    if isinstance(static, Tensor) and static.data_ptr() != value.data_ptr():
                        static.copy_(value)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """Capture on the CPU; return the graphs."""
    found: list[Recorded] = []

    def new() -> Recorded:
        found.append(Recorded())
        return found[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", new)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, mock.Mock())
    monkeypatch.setattr(torch.cuda, "get_rng_state", torch.get_rng_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", torch.set_rng_state)
    return found


@pytest.fixture
def load(package: MakePackage, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Package]:
    """Return the package of a model, whose runs on a CPU are not refused."""

    def make(model: str) -> Package:
        p: Package = package(model, "cuda-graphs")
        monkeypatch.setattr(
            p.components.cuda_graphs.CudaGraphs, "on_train_start", lambda self, run: None
        )
        return p

    return make


@pytest.mark.parametrize(
    "options", [[], ["--train.accumulate=2"], ["--optim.cycle_momentum=false"]]
)
def test_replayed_steps_train_as_eager_ones(
    load: Callable[[str], Package], tmp_path: Path, graphs: list[Recorded], options: list[str]
) -> None:
    """Also after a resume: nothing that changes during a run may be captured as a number."""
    p = load("mlp")
    p.train_here(tmp_path / "eager", *STEPS, *options)
    assert graphs == []
    p.train_here(tmp_path / "graphs", *STEPS, *options, ENABLED)
    micro = 2 if "--train.accumulate=2" in options else 1
    assert [graph.replays for graph in graphs] == [8 * micro, 8]
    stop = mock.patch.object(
        p.distributed.StopRequests, "agreed", side_effect=[False, False, False, True]
    )
    with stop, pytest.raises(p.errors.Stopped):
        p.train_here(tmp_path / "resumed", *STEPS, *options, ENABLED)
    p.train_here(tmp_path / "resumed", *STEPS, *options, ENABLED)
    for name in ("graphs", "resumed"):
        for mine, other in zip(rows(tmp_path / name), rows(tmp_path / "eager"), strict=True):
            assert mine.pop("split") == other.pop("split")
            assert mine == pytest.approx(other, rel=1e-4, abs=1e-6)
        weights, expected = saved(tmp_path / name)["model"], saved(tmp_path / "eager")["model"]
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)
    assert equal(saved(tmp_path / "graphs")["model"], saved(tmp_path / "resumed")["model"])


def test_weight_without_a_gradient_is_refused(
    load: Callable[[str], Package],
    tmp_path: Path,
    graphs: list[Recorded],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p, build = load("mlp"), load("mlp").model.build

    def with_unused(*sections: Any) -> nn.Module:
        net: nn.Module = build(*sections)
        net.unused = nn.Linear(2, 2)
        return net

    monkeypatch.setattr(p.train, "build", with_unused)
    with pytest.raises(
        p.errors.UserError, match="needs a gradient of each weight, and unused.weight has none"
    ):
        p.train_here(tmp_path, *STEPS, ENABLED)


def test_batches_of_another_shape_are_refused(
    load: Callable[[str], Package],
    tmp_path: Path,
    graphs: list[Recorded],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p, shapes = load("mlp"), iter(range(16, 12, -1))
    prepare = p.data.Prepare.forward

    def shorter(self: Any, batch: Any, training: bool, generator: torch.Generator) -> Any:
        size = next(shapes) if training else 16
        return prepare(self, tuple(part[:size] for part in batch), training, generator)

    monkeypatch.setattr(p.data.Prepare, "forward", shorter)
    with pytest.raises(
        p.errors.UserError, match=r"needs batches of one shape: \[\(16, .* became \[\(15, "
    ):
        p.train_here(tmp_path, *STEPS, ENABLED)


def test_run_on_a_cpu_is_one_line(package: MakePackage, tmp_path: Path) -> None:
    done = package("mlp", "cuda-graphs").finish(tmp_path, ENABLED, expect=1)
    assert "cuda_graphs.enabled needs a CUDA device: set it to false" in done.stderr
