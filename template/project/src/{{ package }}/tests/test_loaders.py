"""The sample order is complete, and the same for any number of workers and ranks and after a resume."""

import multiprocessing
import os
import re
import signal
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .. import data, loader_worker, parts, techniques
from ..config import Config, LoaderConfig, TrainConfig
from ..contracts import in_memory, tensors
from ..distributed import World
from ..errors import RestartError, UserError
from ..loaders import EvalOrder, Loader, Plan, TrainOrder, worker_count

CFG = TrainConfig(micro_batch=4, accumulate=2, steps=7)


def test_epoch_has_each_sample_at_most_once() -> None:
    plan = Plan.make(CFG, 42, 1)
    assert (plan.global_batch, plan.steps_per_epoch) == (8, 5)
    chunks = list(TrainOrder(plan, 0, 0, 0))
    epochs = [[i for chunk in chunks[start : start + 10] for i in chunk] for start in (0, 10)]
    assert len(chunks) == 14
    assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
    assert epochs[0][:16] != epochs[1][:16]


@pytest.mark.parametrize("world_size", [2, 4])
def test_global_batch_is_the_same_for_any_number_of_ranks(world_size: int) -> None:
    alone = list(TrainOrder(Plan.make(TrainConfig(micro_batch=2, accumulate=4, steps=9), 50, 1), 0, 3, 0))
    plan = Plan.make(TrainConfig(micro_batch=2, accumulate=4 // world_size, steps=9), 50, world_size)
    ranks = [list(TrainOrder(plan, rank, 3, 0)) for rank in range(world_size)]
    assert [chunk for dealt in zip(*ranks, strict=True) for chunk in dealt] == alone


@pytest.mark.parametrize(("epochs", "steps"), [(1, 5), (2.5, 13), (0.1, 1), (3, 15)])
def test_epochs_are_converted_to_steps(epochs: float, steps: int) -> None:
    assert Plan.make(TrainConfig(micro_batch=4, accumulate=2, epochs=epochs), 42, 1).total_steps == steps


def test_resumed_order_continues() -> None:
    plan = Plan.make(CFG, 42, 1)
    assert list(TrainOrder(plan, 0, 5, 3)) == list(TrainOrder(plan, 0, 5, 0))[3 * 2 :]


@pytest.mark.parametrize("samples", [1, 7, 8, 29])
def test_validation_counts_each_sample_once(samples: int) -> None:
    for world_size in range(1, min(samples, 3) + 1):
        orders = [EvalOrder(samples, 4, rank, world_size) for rank in range(world_size)]
        seen = [index for order in orders for chunk in list(order)[: order.counted] for index in chunk]
        assert sorted(seen) == list(range(samples))
        assert len({len(list(order)) for order in orders}) == 1, "all ranks go forward equally often"


def test_rank_without_validation_samples_is_refused() -> None:
    with pytest.raises(UserError, match="there are only 1 validation samples for 2 ranks"):
        EvalOrder(1, 4, 0, 2)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core
@pytest.mark.fast
def test_workers_do_not_change_batches(config: Callable[..., Config], world: World) -> None:
    samples = techniques.load(config().data)
    order = list(TrainOrder(Plan.make(TrainConfig(micro_batch=8, steps=5), len(samples.train), 1), 0, 0, 0))
    runs = [list(Loader(samples.train, order, LoaderConfig(), workers, world)) for workers in (0, 1, 2)]
    assert len(runs[0]) == 5
    for run in runs[1:]:
        for ours, theirs in zip(runs[0], run, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(tensors(ours), tensors(theirs), strict=True))


class Ending:
    """A dataset whose second batch does something else."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __len__(self) -> int:
        return 9

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor]:
        if indices == [1]:
            self.act()
        return (torch.tensor(indices),)


def stop_politely() -> None:
    """Send this worker, as a launcher would through another process, what asks a run to stop."""
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
        os.kill(os.getpid(), number)
    time.sleep(0.1)


def shared_memory_full() -> None:
    raise RuntimeError("unable to write to file </torch_1_2_3>: No space left on device (28)")


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core
@pytest.mark.parametrize(
    ("act", "kind", "message"),
    [
        (stop_politely, None, ""),
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            RestartError,
            "was ended by SIGKILL, as .* memory runs out",
        ),
        (lambda: os._exit(3), UserError, "exited with status 3, by the code of the data set: loader.workers=0"),
        (lambda: 1 / 0, ZeroDivisionError, "division by zero"),
        (shared_memory_full, UserError, "too little shared memory: enlarge /dev/shm"),
    ],
    ids=["stop", "kill", "exit", "raise", "shared memory"],
)
def test_only_a_killed_worker_asks_for_a_restart(
    monkeypatch: pytest.MonkeyPatch, world: World, act: Callable[[], object], kind: type[Exception] | None, message: str
) -> None:
    """And what asks a run to stop does not end its workers, which end at once when the run does."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))  # seconds, instead of 5
    monkeypatch.setattr(loader_worker, "_watched", weakref.WeakSet())  # without those of the other cases
    at_exit: list[Callable[[], object]] = []

    def finalize(_: None, act: Callable[..., object], args: tuple[int], exitpriority: int) -> None:
        at_exit.append(partial(act, *args))

    monkeypatch.setattr(loader_worker, "Finalize", finalize)
    batches = iter(Loader(Ending(act), [[0], [1], [2]], LoaderConfig(), 1, world))
    if kind is None:
        assert [int(batch[0]) for batch in batches] == [0, 1, 2]
        (worker,) = multiprocessing.active_children()
        at_exit[0]()
        worker.terminate()  # as multiprocessing then does
        worker.join(5)
        assert worker.exitcode == 0
        return
    with pytest.raises((RuntimeError, OSError, EOFError, ZeroDivisionError)) as caught:
        list(batches)
    found = loader_worker.explained(caught.value)
    assert type(found) is kind
    assert re.search(message, str(found))
    assert getattr(found, "status", 1) == (76 if kind is RestartError else 1)


def test_workers_are_limited_to_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    count = partial(worker_count, in_memory=False, device=torch.device("cpu"))
    assert count(LoaderConfig()) == 3
    assert count(LoaderConfig(workers=4)) == 4
    with pytest.raises(UserError, match="loader.workers is 5: the ranks here share 4 cores; use auto, or at most 4"):
        count(LoaderConfig(workers=5))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert count(LoaderConfig()) == 1
    with pytest.raises(UserError, match="at most 2"):
        count(LoaderConfig(workers=3))


@pytest.mark.parametrize(
    ("cores", "ranks", "threads", "on_cpu", "on_gpu"),
    [
        *((1, 1, 1, 0, 1), (2, 1, 2, 0, 1), (2, 1, 1, 1, 1), (4, 2, 1, 1, 1), (4, 2, 2, 0, 1), (3, 1, 3, 2, 2)),
        *((16, 1, 16, 15, 15), (64, 1, 64, 32, 32), (256, 2, 1, 32, 32), (96, 8, 1, 11, 11)),
    ],
)
def test_automatic_workers_follow_the_cores_per_rank(
    monkeypatch: pytest.MonkeyPatch, cores: int, ranks: int, threads: int, on_cpu: int, on_gpu: int
) -> None:
    """A single worker takes no core from the threads of torch on a CPU."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    for kind, expected in (("cpu", on_cpu), ("cuda", on_gpu)):
        assert worker_count(LoaderConfig(), False, torch.device(kind)) == expected
        assert worker_count(LoaderConfig(), True, torch.device(kind)) == 0


def test_run_says_how_its_data_would_be_loaded_faster(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = config("--loader.workers=0")
    found = data.load(cfg.data)
    assert "loading" not in parts.build(cfg, world).describe() or not in_memory(found)
    slow = SimpleNamespace(train=found.train, val=found.val, spec=found.spec, in_memory=False, hint="decode once")
    monkeypatch.setattr(data, "load", lambda _: slow)
    assert parts.build(cfg, world).describe()["loading"] == "loader.workers=0 per rank; decode once"
    del slow.hint  # of a data.py written before
    assert parts.build(cfg, world).describe()["loading"] == "loader.workers=0 per rank"
