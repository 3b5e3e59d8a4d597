"""Two and three ranks against one; micro-batches against one batch.

Models that communicate or differentiate.
"""

import math
from contextlib import nullcontext
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, Package, equal, rows, saved

SAME = ["--train.steps=12", "--train.eval_every=4", "--model.dropout=0.3"]


def assert_close(first: Path, second: Path, tolerance: float = 1e-5) -> None:
    """Compare the rows and the weights of two runs."""
    for mine, other in zip(
        rows(first),
        rows(second),
        strict=True,
    ):
        assert mine.pop("split") == other.pop("split")
        assert mine == pytest.approx(other, rel=tolerance, abs=1e-7)
    weights = saved(second)["model"]
    for name, weight in saved(first)["model"].items():
        torch.testing.assert_close(
            weight,
            weights[name],
            rtol=tolerance,
            atol=1e-6,
        )


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_equal_one_with_dropout_and_unequal_shares_of_the_validation(
    p: Package, tmp_path: Path, ranks: int
) -> None:
    p.finish(
        tmp_path / "one", *SAME, "--train.batch_size=4", "--train.gradient_accumulation_steps=6"
    )
    p.finish(
        tmp_path / "more",
        *SAME,
        "--train.batch_size=4",
        f"--train.gradient_accumulation_steps={6 // ranks}",
        ranks=ranks,
    )
    assert_close(tmp_path / "more", tmp_path / "one")


@pytest.mark.slow
def test_resumed_run_of_three_ranks_equals_an_uninterrupted_one(
    package: MakePackage, tmp_path: Path
) -> None:
    """Three ranks sum in an order that depends on the buckets of DistributedDataParallel."""
    p = package("mlp")
    same = ["--train.steps=9", "--train.batch_size=8"]
    p.finish(tmp_path / "whole", *same, ranks=3)
    stopped = p.start(tmp_path / "parts", *same, "--run.hours=1e-9", ranks=3).finish()
    assert stopped.stderr == "stopped at step 1: resume with --run.name a\n"
    p.finish(tmp_path / "parts", *same, ranks=3)
    assert equal(saved(tmp_path / "parts"), saved(tmp_path / "whole"))


@pytest.mark.slow
def test_global_batch_is_divided_over_the_ranks(package: MakePackage, tmp_path: Path) -> None:
    """The MLP's validations differ, as its running statistics are means over the ranks."""
    p = package("mlp")
    same = ["--train.steps=8", "--train.batch_size=8", "--train.global_batch_size=32"]
    p.finish(tmp_path / "one", *same)
    p.finish(tmp_path / "two", *same, ranks=2)
    one, two = (rows(tmp_path / name, "train") for name in ("one", "two"))
    losses = [[row["loss"] for row in one], [row["loss"] for row in two]]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for one, two in zip(*(rows(tmp_path / name, "val") for name in ("one", "two")), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=0.01)


@pytest.mark.slow
def test_running_statistics_are_the_mean_over_ranks_and_equal_after_a_resume(
    p: Package, tmp_path: Path
) -> None:
    same = ["--model.kind=batch_norm", "--train.eval_every=6"]
    p.finish(tmp_path, *same, "--train.steps=6", ranks=2)
    first = rows(tmp_path, "val")
    p.finish(tmp_path, *same, "--train.steps=7", "--run.allow_changes=true", ranks=2)
    assert rows(tmp_path, "val")[0] == first[0], "the validation of a resumed run"
    assert first[-1]["loss"] > 0
    assert saved(tmp_path)["model"]["layers.1.running_mean"].abs().max() > 0


@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_equal_one_batch(p: Package, tmp_path: Path, parts: int) -> None:
    same = ["--train.steps=9", "--model.dropout=0", "--optim.max_grad_norm=0.3"]
    p.train_here(tmp_path / "one", *same, "--train.batch_size=16")
    p.train_here(
        tmp_path / "parts",
        *same,
        f"--train.batch_size={16 // parts}",
        f"--train.gradient_accumulation_steps={parts}",
    )
    assert_close(tmp_path / "parts", tmp_path / "one")


@pytest.mark.parametrize(
    ("samples", "val_samples"),
    [
        (17, 1),
        (16, 2),
        (53, 16),
        (53, 17),
    ],
)
def test_ragged_data_trains_and_validates_exactly(
    p: Package, tmp_path: Path, samples: int, val_samples: int
) -> None:
    options = [f"--data.samples={samples}", f"--data.val_samples={val_samples}", "--train.epochs=3"]
    found = p.train_here(tmp_path, *options)
    weights = saved(tmp_path)["model"]
    (_, val, spec) = p.data.load(p.data.DataConfig(samples=samples, val_samples=val_samples))
    net = p.model.build(p.model.ModelConfig(), spec).eval()
    net.load_state_dict(weights)
    inputs, targets = val.__getitems__(list(range(val_samples)))
    with torch.no_grad():
        expected = ((net.layers(inputs)[:, 0] - targets) ** 2).mean().item()
    assert found["loss"] == pytest.approx(expected, rel=1e-5)  # of batches of other sizes, in fp32


@pytest.mark.slow
@pytest.mark.parametrize("val_samples", [2, 7])
def test_collectives_in_forward_do_not_hang_with_unequal_shares_of_the_validation(
    p: Package, tmp_path: Path, val_samples: int
) -> None:
    options = ["--train.steps=4", "--train.batch_size=3", f"--data.val_samples={val_samples}"]
    p.finish(tmp_path / "two", *options, "--model.kind=collective", ranks=2)
    p.finish(tmp_path / "plain", *options, ranks=2)
    assert rows(tmp_path / "two") == rows(tmp_path / "plain")


def test_a_loss_of_derivatives_is_validated(p: Package, tmp_path: Path) -> None:
    found = p.train_here(tmp_path / "a", "--train.steps=3", "--model.kind=physics")
    assert found["loss"] > 0


def test_validation_needs_no_graph_and_leaves_the_model_in_training_mode(p: Package) -> None:
    seen = []
    _, val, spec = p.data.load(p.data.DataConfig())
    net = p.model.build(p.model.ModelConfig(), spec)
    net.register_forward_hook(
        lambda module, *_: seen.append((torch.is_grad_enabled(), module.training))
    )
    world = p.distributed.World(0, 1, torch.device("cpu"))
    batches = p.loader.Loader(
        val, [[0, 1], [2, 3, 4, 5, 6]], p.config.LoaderConfig(num_workers=0), world
    )
    found = p.metrics.evaluate(net, batches, 2, p.data.Prepare(spec, None), nullcontext, world)
    assert (seen, net.training) == ([(False, False)] * 2, True)
    assert found.keys() == {"loss"}


def test_loss_that_is_not_finite_stops_the_run_before_it_is_saved(
    p: Package, tmp_path: Path
) -> None:
    with pytest.raises(
        p.errors.UserError,
        match="the loss is inf and the gradient norm nan at step 3: lower optim.lr",
    ):
        p.train_here(tmp_path, "--model.kind=nan", "--train.steps=9", "--train.eval_every=2")
    assert saved(tmp_path)["step"] == 2
    with pytest.raises(p.errors.UserError, match="at step 4: lower optim.lr"):
        p.train_here(
            tmp_path / "b",
            "--model.kind=nan",
            "--train.steps=9",
            "--train.eval_every=4",
            "--log.every=100",
        )
    assert not list((tmp_path / "b/a").glob("checkpoints/*"))


def test_vectors_of_sums_give_the_mean_over_entries_that_have_a_count(p: Package) -> None:
    meter = p.metrics.Meter(
        p.distributed.World(
            0,
            1,
            torch.device("cpu"),
        )
    )
    for _ in range(1500):  # more than are kept as they are
        meter.add(
            {
                "loss": (torch.tensor(2.0), 4),
                "iou": (torch.tensor([1.0, 3.0, 0.0]), torch.tensor([2, 4, 0])),
            }
        )
    found: dict[str, Any] = meter.read({"norm": torch.tensor(7.0)})
    assert found == {"loss": 0.5, "iou": pytest.approx(0.625), "norm": 7.0}
    meter.add({"iou": (torch.tensor([1.0, math.nan]), torch.tensor([2, 4]))})
    assert math.isnan(meter.read()["iou"]), "NaN is no class without a count"


def test_ranks_with_other_metrics_are_refused(p: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a model returns the loss alone where nothing counts: sums would be of other metrics."""
    world = p.distributed.World(1, 2, torch.device("cpu"))
    meter = p.metrics.Meter(world)
    meter.add({"loss": (1.0, 2), "accuracy": (1, 2)})
    monkeypatch.setattr(p.distributed.dist, "all_reduce", lambda own: own.mul_(2))
    assert meter.read() == {"accuracy": 0.5, "loss": 0.5}
    meter.add({"loss": (0, 0)})
    monkeypatch.setattr(p.distributed.dist, "all_reduce", lambda own: own.add_(7))
    message = "metrics of this rank are loss, and other ranks have others: let `forward` in mod"
    with pytest.raises(p.errors.UserError, match=message):
        meter.read()


def test_metric_without_a_count_is_nan_and_not_zero(p: Package) -> None:
    """A recall of 0 is a result; in training, the loss of nothing is 0, like its gradient."""
    meter = p.metrics.Meter(p.distributed.World(0, 1, torch.device("cpu")), loss_of_none=0.0)
    meter.add({"loss": (torch.tensor(0.0), 0), "recall": (torch.tensor(0), torch.tensor(0))})
    row = meter.read()
    assert row["loss"] == 0
    assert math.isnan(row["recall"])


def test_seeds_of_micro_batches_differ_and_are_those_of_any_number_of_ranks(
    p: Package,
) -> None:
    found = {}
    for size in (1, 2):
        worlds = [p.distributed.World(rank, size, torch.device("cpu")) for rank in range(size)]
        found[size] = [
            p.distributed.seed_batch(world, 5, step, micro).initial_seed()
            for step, micro, world in product(range(4), range(4 // size), worlds)
        ]
    assert found[1] == found[2]
    assert len(set(found[1])) == 16


def test_weights_of_a_run_do_not_depend_on_another_run_before_it(
    p: Package, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        p.train_here(tmp_path / name, "--train.steps=3")
        torch.randn(5)
    assert equal(saved(tmp_path / "a"), saved(tmp_path / "b"))


@pytest.mark.parametrize(("kind", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_ranks_have_a_backend_for_tensors_on_the_cpu(
    p: Package, monkeypatch: pytest.MonkeyPatch, kind: str, backend: str
) -> None:
    joined = list[str]()
    device = torch.device("cuda:0" if kind == "cuda" else kind)
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (variables | {"MASTER_PORT": "29500"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(p.distributed, "find_device", lambda *_: device)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _: None)
    for name in ("barrier", "destroy_process_group"):
        monkeypatch.setattr(torch.distributed, name, lambda: None)
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda given, **_: joined.append(given)
    )
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    store.set("joined-1", "")
    module = import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(module, "rendezvous", lambda *_, **__: iter([(store, 0, 2)]))
    with p.distributed.init("auto") as world:
        assert world.device == device
    assert joined == [backend]
