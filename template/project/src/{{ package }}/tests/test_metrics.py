"""Validation is exact for any batches and computes no gradients."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .. import data, model, techniques
from ..config import Config
from ..contracts import Batch, call
from ..distributed import World, seeded_generator
from ..errors import UserError
from ..loaders import EvalOrder, Loader
from ..metrics import Meter, evaluate
from ..run import Run
from ..train import train
from .conftest import read_rows

CPU = torch.device("cpu")


def test_validation_is_exact_for_a_short_last_batch(config: Callable[..., Config], world: World) -> None:
    cfg = config()
    samples: Any = techniques.load(cfg.data)
    prepare = data.Prepare(samples.spec, cfg.data)
    torch.manual_seed(0)
    net = model.build(cfg.model, samples.spec)

    class Few:
        """The first 23 validation samples."""

        def __len__(self) -> int:
            return 23

        def __getitems__(self, indices: list[int]) -> Batch:
            return samples.val.__getitems__(indices)

    whole = prepare(samples.val.__getitems__(list(range(23))), False, seeded_generator(CPU, 0, 0, 0))
    net.eval()
    # Without metrics of all samples, such as AUROC, for which these may be too few.
    net.register_forward_hook(lambda *call: (call[2][0], {k: v for k, v in call[2][1].items() if not callable(v[0])}))
    with torch.no_grad():
        _, sums = call(net, whole)
    # A vector is averaged over the entries that have a count.
    expected = {name: float((total / n)[torch.as_tensor(n) > 0].mean()) for name, (total, n) in sums.items()}
    for micro_batch in (4, 23, 64):
        loader = Loader(Few(), EvalOrder(23, micro_batch, 0, 1), cfg.loader, 0, world)
        found = evaluate(net, loader, prepare, torch.enable_grad(), world)
        assert found == pytest.approx(expected, rel=1e-5)
    ranks = [EvalOrder(17, 4, rank, 2) for rank in (0, 1)]
    assert [(order.counted, order.rounds, len(list(order))) for order in ranks] == [(3, 3, 3), (2, 3, 3)]
    again = [[0, 1, 2], [3, 4], [0]]
    few = Loader(Few(), again, cfg.loader, 0, world)
    counted = Loader(Few(), again[:2], cfg.loader, 0, world)
    once = evaluate(net, counted, prepare, torch.enable_grad(), world)
    assert evaluate(net, few, prepare, torch.enable_grad(), world, 2) == once, "a repeated sample does not count"


def test_vectors_give_the_mean_over_entries_that_have_a_count(world: World) -> None:
    meter = Meter(world)
    meter.add({"iou": (torch.tensor([1.0, 0.0, 0.0]), torch.tensor([2.0, 4.0, 0.0])), "loss": (torch.tensor(3.0), 2)})
    meter.add({"iou": (torch.tensor([1.0, 3.0, 0.0]), torch.tensor([2.0, 4.0, 0.0])), "loss": (torch.tensor(1.0), 2)})
    assert meter.read() == {"iou": (2 / 4 + 3 / 8) / 2, "loss": 1.0}
    assert meter.read() == {}
    weight = torch.ones((), requires_grad=True)
    for _ in range(2):
        meter.add({"loss": (2 * weight, 1)})
    assert not meter.sums["loss"].requires_grad, "the graphs of all batches would stay in memory until the next row"
    for value in (torch.tensor(3.0), 3.0, torch.ones(3), (3.0, 2), (torch.ones(2), 2, 2), (torch.ones(2), 2)):
        wrong: Any = {"loss": value}
        with pytest.raises(UserError, match=r"forward returns \w+ as the metric loss: return its sum"):
            meter.add(wrong)
    with pytest.raises(UserError, match="as the metric iou: return its sum"):
        Meter(world).add({"iou": (torch.ones(3), torch.ones(4))})


def test_functions_of_outputs_have_names_of_their_own(world: World) -> None:
    def counts(values: Tensor) -> dict[str, int]:
        return {"b": len(values), "loss": len(values)}

    ones = torch.ones(2)
    given: dict[str, dict[str, Any]] = {
        "the metric loss is a function of outputs": {"loss": (counts, ones)},
        "two metrics are named loss: give one": {"loss": (ones.sum(), 2), "": (counts, ones)},
        "two metrics are named a_b: give one": {"loss": (ones.sum(), 2), "a": (counts, ones), "a_b": (len, ones)},
    }

    def read(metrics: dict[str, Any]) -> None:
        meter = Meter(world, validates=True)
        meter.add(metrics)
        meter.read()

    for message, metrics in given.items():
        with pytest.raises(UserError, match=message):
            read(metrics)


def test_functions_get_outputs_whose_memory_is_written_again(world: World) -> None:
    """As by a compiled model with CUDA graphs."""
    meter, memory = Meter(world, validates=True), torch.zeros(2)
    for number in (1.0, 2.0):
        memory.fill_(number)
        outputs: Any = (lambda values, entries: values.sum() + sum(entries), memory, [memory[0], memory[1]])
        meter.add({"loss": (memory.sum(), 2), "sum": outputs})
    assert meter.read()["sum"] == 12


def test_ranks_with_other_metrics_are_refused() -> None:
    """Their values would be added to those of another name, also when only some batches of a rank have one."""

    class Second(World):
        names = "accuracy, loss"

        def all_reduce(self, values: Tensor) -> Tensor:
            mark = zlib.crc32(self.names.encode()) % 2**20
            return values + (torch.tensor([mark, mark**2]) if values.dtype == torch.int64 else values)

        def broadcast(self, value: str) -> str:
            return self.names

    meter = Meter(Second(1, 2, CPU))
    for names in ("accuracy, loss", "loss, recall"):
        Second.names = names
        meter.add({"loss": (torch.ones(()), 1), "accuracy": (torch.ones(()), 1)})
        if names == "accuracy, loss":
            assert meter.read() == {"accuracy": 1.0, "loss": 1.0}
    with pytest.raises(UserError, match="the metrics accuracy, loss on rank 1, and loss, recall on rank 0: return"):
        meter.read()


def test_counts_of_a_reused_buffer_are_summed(world: World) -> None:
    """Each replay of a captured CUDA graph returns the same tensors, with new values."""
    meter, total, count = Meter(world), torch.zeros(()), torch.zeros(())
    for value in (4.0, 2.0):
        total.fill_(value)
        count.fill_(value / 2)
        meter.add({"loss": (total, count)})
    assert meter.read() == {"loss": 6.0 / 3.0}


class OnHost(Tensor):
    """A tensor that was copied to the host; what is computed from it is on the host as well."""


READS = ["item", "tolist", "numpy", "__float__", "__bool__", "__int__"]


def test_other_values_do_not_replace_metrics(world: World) -> None:
    meter = Meter(world)
    meter.add({"loss": (torch.tensor(6.0), 2)})
    assert meter.read({"mine": torch.tensor(1.0), "loss": torch.tensor(0.0)}) == {"mine": 1.0, "loss": 3.0}


def test_log_row_is_one_copy_from_the_device(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copies: list[str] = []
    per_row: list[list[str]] = []

    def noted(name: str) -> Callable[..., Any]:
        call = getattr(Tensor, name)

        def read(self: Tensor, *arguments: Any) -> Any:
            if type(self) is not OnHost:
                copies.append(name)
            found = call(self, *arguments)
            return found.as_subclass(OnHost) if name == "cpu" else found

        return read

    def log(self: Run, *extra: Any) -> None:
        with monkeypatch.context() as patch:
            for name in ("cpu", *READS):
                patch.setattr(Tensor, name, noted(name))
            log_metrics(self, *extra)
        per_row.append(copies.copy())
        copies.clear()

    log_metrics = Run.log_metrics
    monkeypatch.setattr(Run, "log_metrics", log)
    train(config("--run.name=a", "--train.steps=4", "--log.every=2"), world)
    rows = read_rows(tmp_path / "a", "train")
    assert per_row == [["cpu"]] * len(rows)
    assert {"loss", "lr", "grad_norm"} <= rows[0].keys()


def test_validation_computes_no_gradients(world: World) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
            assert torch.is_inference_mode_enabled()
            assert not self.training
            loss = (self.weight * x).mean()
            assert not loss.requires_grad
            return loss, {"loss": (loss * len(x), len(x))}

    class Same(nn.Module):
        def forward(self, batch: tuple[Tensor, ...], training: bool, generator: torch.Generator) -> tuple[Tensor, ...]:
            assert not training
            return batch

    net = Net()
    found = evaluate(net, [(torch.ones(2),), (torch.zeros(1),)], Same(), torch.autocast("cpu", enabled=False), world)
    assert found == {"loss": pytest.approx(2 / 3)}
    assert net.training
