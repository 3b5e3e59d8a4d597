"""Batches have every sample once, on any number of ranks, of every form of a dataset."""

from collections import Counter
from itertools import chain, product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from engine import Package, equal, rows, saved
from torch import Tensor

WORLDS = [1, 2, 3, 4]
KINDS = ["batches", "samples", "dicts", "nested", "collated", "tensors"]


def world(p: Any, rank: int, size: int) -> Any:
    return p.distributed.World(rank, size, torch.device("cpu"))


@pytest.mark.parametrize(
    ("samples", "micro"),
    [
        (53, 2),
        (53, 4),
        (48, 4),
        (12, 1),
        (1000, 7),
    ],
)
def test_ranks_share_the_same_global_batches_and_an_epoch_has_a_sample_at_most_once(
    p: Package, samples: int, micro: int
) -> None:
    found = {}
    for size in (1, 2, 3):
        cfg = p.config.TrainConfig(
            epochs=2.5, batch_size=micro, gradient_accumulation_steps=6 // size
        )
        plan = p.loader.BatchPlan.make(cfg, samples, size)
        assert (plan.global_batch_size, plan.steps_per_epoch) == (6 * micro, samples // (6 * micro))
        assert plan.total_steps == -(-5 * plan.steps_per_epoch // 2)
        ranks = [
            list(p.loader.train_batches(plan, world(p, rank, size), 3, 0)) for rank in range(size)
        ]
        micro_batches = [*chain.from_iterable(zip(*ranks, strict=True))]
        steps = [micro_batches[begin : begin + 6] for begin in range(0, len(micro_batches), 6)]
        found[size] = [sorted(chain.from_iterable(step)) for step in steps]
        resumed = list(
            p.loader.train_batches(
                plan,
                world(p, 0, size),
                3,
                plan.total_steps // 2,
            )
        )
        assert resumed == ranks[0][-len(resumed) :]
    assert found[1] == found[2] == found[3]
    epoch = samples // (6 * micro)
    for begin in range(0, len(found[1]), epoch):
        assert max(Counter(chain.from_iterable(found[1][begin : begin + epoch])).values()) == 1


@pytest.mark.parametrize("size", WORLDS)
@pytest.mark.parametrize("micro", [1, 3, 64])
def test_validation_counts_each_sample_once_in_equally_many_batches(
    p: Package, size: int, micro: int
) -> None:
    for samples in range(size, 30):
        shares = [
            p.loader.val_batches(samples, micro, world(p, rank, size)) for rank in range(size)
        ]
        assert len({len(batches) for batches, _ in shares}) == 1
        counted: list[int] = []
        for batches, count in shares:
            counted += chain.from_iterable(batches[:count])
        assert sorted(counted) == list(range(samples))
        for batches, _ in shares:
            assert 0 < min(map(len, batches)) <= max(map(len, batches)) <= micro
    with pytest.raises(
        p.errors.UserError, match=f"only {size - 1} validation samples for {size} ranks"
    ):
        p.loader.val_batches(
            size - 1,
            micro,
            world(p, 0, size),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"batch_size": 64},
            "64 samples is larger than the training set of 53: lower train.batch_size to 53 or",
        ),
        (
            {"batch_size": 8, "gradient_accumulation_steps": 8},
            "larger than the training set of 53: lower train.batch_size",
        ),
        (
            {"batch_size": 8, "global_batch_size": 64},
            "larger than the training set of 53: lower train.global_batch_size",
        ),
        (
            {"batch_size": 8, "global_batch_size": 12},
            r"train.global_batch_size is 12: .* batch_size x ranks = 8",
        ),
        (
            {"batch_size": 8, "global_batch_size": 4},
            r"train.global_batch_size is 4: .* batch_size x ranks = 8",
        ),
    ],
)
def test_batches_that_do_not_fit_are_refused(
    p: Package, options: dict[str, int], message: str
) -> None:
    with pytest.raises(p.errors.UserError, match=message):
        p.loader.BatchPlan.make(
            p.config.TrainConfig(**options),
            53,
            1,
        )


def test_all_kinds_of_datasets_and_workers_give_the_same_run(p: Package, tmp_path: Path) -> None:
    runs = {}
    for workers, kind in product((0, 1), KINDS):
        folder = tmp_path / str(workers) / kind
        options = ["--train.steps=7", f"--loader.num_workers={workers}", f"--data.kind={kind}"]
        p.train_here(folder, *options)
        runs[workers, kind] = rows(folder), saved(folder)["model"]
    first = runs[0, KINDS[0]]
    for name, run in runs.items():
        assert equal(run, first), name


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_sample_is_one_line(p: Package, tmp_path: Path, workers: int) -> None:
    options = ["--data.kind=unreadable", "--train.batch_size=2", f"--loader.num_workers={workers}"]
    done = p.finish(tmp_path, *options, "--train.epochs=2", "--train.eval_every=1000", expect=1)
    assert done.stderr == "error: cannot read images/17.png: delete it, or replace it\n"


def test_automatic_workers_follow_the_data_and_the_cores(
    p: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = p.config.LoaderConfig()
    train, _, _ = p.data.load(p.data.DataConfig(kind="samples"))
    for cores, ranks, expected in [
        (8, 1, 8),
        (8, 4, 2),
        (128, 1, 32),
        (1, 2, 1),
    ]:
        monkeypatch.setattr(
            p.loader.os,
            "sched_getaffinity",
            lambda _, cores=cores: range(cores),
        )
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        assert p.loader.choose_workers(cfg, train, torch.device("cuda"))[0] == expected
    train.in_memory = True
    workers, reason = p.loader.choose_workers(
        cfg,
        train,
        torch.device("cuda"),
    )
    assert (workers, reason) == (0, "0 workers: the data are in memory")


class Calls:
    """Notes what a loader asks of a device that has streams and no values."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.found: list[str] = []
        self.stream = "main"
        self.main = self._make_stream("main")
        side = self._make_stream("side")
        move = Tensor.to
        patch.setattr(torch, "Stream", lambda device: side)
        patch.setattr(torch.accelerator, "current_stream", lambda device: self.main)
        patch.setattr(
            Tensor,
            "pin_memory",
            lambda part: self._note("pin", part),
        )
        patch.setattr(
            Tensor,
            "record_stream",
            lambda part, s: self._note(f"record {s.name}", part),
        )
        patch.setattr(
            Tensor,
            "to",
            lambda part, device, non_blocking: self._copy(move(part, device), non_blocking),
        )

    def _note(self, call: str, part: Tensor) -> Tensor:
        self.found.append(call)
        return part

    def _copy(self, part: Tensor, non_blocking: bool) -> Tensor:
        return self._note(f"copy on {self.stream}" + ", waiting" * (not non_blocking), part)

    def _make_stream(self, name: str) -> Any:
        stream = mock.MagicMock()
        stream.name = name
        stream.wait_stream = lambda other: self.found.append(f"{name} waits for {other.name}")
        stream.__enter__.side_effect = lambda: setattr(self, "stream", name)
        stream.__exit__.side_effect = lambda *_: setattr(self, "stream", "main")
        return stream


def test_the_next_batch_is_copied_from_pinned_memory_while_the_present_one_is_in_use(
    p: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    dataset = torch.utils.data.TensorDataset(torch.arange(4))
    device = p.distributed.World(0, 1, torch.device("meta"))
    for _ in p.loader.Loader(
        dataset,
        [
            [0],
            [1],
            [2],
        ],
        p.config.LoaderConfig(num_workers=0),
        device,
    ):
        calls.found.append("use")
    copy = ["pin", "copy on side"]
    hand_over = ["main waits for side", "record main"]
    assert calls.found == [
        *copy,
        *hand_over,
        *copy,
        "use",
        *hand_over,
        *copy,
        "use",
        *hand_over,
        "use",
    ]
