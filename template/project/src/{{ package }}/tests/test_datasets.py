"""Datasets as people have them train as those that answer whole batches, and what cannot work says what to return."""

import copy
import os
import sys
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from .. import data, loaders, model, techniques
from ..config import Config, LoaderConfig
from ..contracts import Batch, call, inputs_of, size_of
from ..distributed import World
from ..errors import UserError
from ..faults import provenance
from ..loaders import Loader, Plan, TrainOrder
from ..techniques import _model, datasets
from ..techniques.device_cache import DeviceCache
from ..techniques.stream import Stream, check_readers
from ..train import train
from .conftest import IN_TURN, read_losses, read_rows, read_weights

META = torch.device("meta")
NAMES = "abcdefgh"


class Samples(Dataset[Any]):
    """Returns one sample, as most datasets do, of another dataset that answers batches."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return tuple(part[0] for part in self.batches.__getitems__([index]))


class Lists(Samples):
    """Returns a list of samples, as torch's DataLoader expects it of `__getitems__`."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Named(Samples):
    """Returns dicts with one more entry, nested, and a text."""

    def __getitem__(self, index: int) -> Any:
        return {"sample": dict(zip(NAMES, super().__getitem__(index), strict=False)), "name": f"number {index}"}


class InOrder(IterableDataset[Any]):
    """Yields samples in another order in each epoch."""

    def __init__(self, batches: Any, epoch: int = 0, count: int = 0, said: int = 0) -> None:
        self.samples = batches if isinstance(batches, TensorDataset) else Samples(batches)
        self.epoch, self.count = epoch, min(count or len(batches), len(batches))
        self.said = said or self.count

    def __len__(self) -> int:
        return self.said

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return (self.samples[(number + 7 * self.epoch) % len(self.samples)] for number in range(self.count))


def padded(samples: list[Any]) -> Batch:
    return tuple(torch.stack(parts) for parts in zip(*samples, strict=True))


def takes_names(net: Any) -> Any:
    """Let the project's model take named arguments."""
    forward = net.forward
    net.forward = lambda **named: forward(*named.values())
    return net


class PrepareNamed(nn.Module):
    """Prepares dicts as the project does tuples."""

    def __init__(self, prepare: nn.Module) -> None:
        super().__init__()
        self.prepare = prepare

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        assert batch["name"][0].startswith("number ")
        prepared = self.prepare(tuple(batch["sample"].values()), training, generator)
        return dict(zip(NAMES, prepared, strict=False))


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, config: Callable[..., Config]) -> Callable[..., None]:
    """Let `load` return other datasets, made of the project's own."""
    original = data.load
    own: Any = original(config().data).train
    if not hasattr(own, "__getitems__") or not isinstance(own.__getitems__([0]), tuple):
        pytest.skip("the project's own datasets do not return a tuple for a batch, of which others are made here")

    def change(make: Callable[[Any], Any], **more: Any) -> None:
        def load(cfg: data.DataConfig) -> Any:
            found: Any = original(cfg)
            splits = {name: make(getattr(found, name)) for name in ("train", "val")}
            return SimpleNamespace(**splits, spec=found.spec, in_memory=True, **more)

        monkeypatch.setattr(data, "load", load)

    return change


def losses(cfg: Config, world: World) -> list[float]:
    train(cfg, world)
    (run,) = cfg.run.dir.iterdir()
    return read_losses(run)


@pytest.mark.fast
def test_samples_are_collated_to_the_same_batches(
    config: Callable[..., Config],
    world: World,
    use: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    short_validation: None,
) -> None:
    """One sample, lists of them, a part of a dataset, a `collate_fn`, and dicts, which a model gets by name."""
    runs = iter(range(9))

    def run() -> list[float]:
        place = config().run.dir / str(next(runs))
        return losses(config("--train.steps=4", "--train.eval_every=4", "--log.every=1", f"--run.dir={place}"), world)

    expected = run()
    for make, more in (
        (Samples, {}),
        (Lists, {"collate_fn": padded}),
        (lambda split: Subset(Subset(Lists(split), range(len(split))), range(len(split))), {}),
    ):
        use(make, **more)
        assert run() == expected
    if IN_TURN:  # the model below, which takes dicts, has no phases
        return
    use(Named)
    prepare, build = data.Prepare, model.build
    monkeypatch.setattr(data, "Prepare", lambda *given: PrepareNamed(prepare(*given)))
    for place in (model, _model):
        monkeypatch.setattr(place, "build", lambda *given: takes_names(build(*given)))
    assert run() == expected
    found = techniques.load(config().data)
    assert not provenance.fingerprint(found).startswith("unknown")
    assert size_of(found.train.__getitems__([3, 1, 2])) == 3


class Halved(Subset[Any]):
    """Changes the samples that it chooses, as for an augmentation of one split."""

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[self.indices[index]] / 2

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Sums(TensorDataset):
    """Knows how to make batches of its samples."""

    def collate_fn(self, samples: list[Any]) -> Batch:
        return torch.stack([sum(sample) for sample in samples])


class Negated(TensorDataset):
    """Changes its samples, as well."""

    def __getitem__(self, index: int) -> Any:
        return -self.tensors[0][index]


def test_parts_of_datasets_change_and_collate_samples() -> None:
    """Classes derived from those of torch, and the `collate_fn` of what a `Subset` or `ConcatDataset` is of."""
    numbers, nothing = torch.arange(10.0), SimpleNamespace()
    split = Subset(Halved(numbers, range(2, 10)), range(3, 8))  # type: ignore[arg-type]
    assert datasets.adapt("train", split, nothing).__getitems__([0, 4]).tolist() == [2.5, 4.5]
    assert datasets.adapt("train", Negated(numbers), nothing).__getitems__([3, 1]).tolist() == [-3, -1]
    both: Any = ConcatDataset([Subset(Sums(numbers, numbers), [7, 8]), Sums(numbers, numbers)])
    assert datasets.adapt("train", both, nothing).__getitems__([1, 2, 5]).tolist() == [16, 0, 6]


class Columns:
    """As a `Dataset` of Hugging Face: columns of lists, or by its format of tensors; in lists where lengths differ."""

    def __init__(self, kind: str | None = None) -> None:
        self.format = {"type": kind}

    def with_format(self, kind: str) -> "Columns":
        return Columns(kind)

    def __len__(self) -> int:
        return 9

    def __getitem__(self, indices: list[int]) -> dict[str, Any]:
        lists = [torch.arange(index // 5 + 1) for index in indices]
        return {
            "x": torch.tensor(indices) if self.format["type"] else indices,
            "y": lists,
            "name": ["a"] * len(indices),
        }


def test_columns_are_read_at_once_as_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(Dataset=Columns))
    split = datasets.adapt("train", Subset(Columns(), [8, 3, 2]), SimpleNamespace())  # type: ignore[arg-type]
    batch = split.__getitems__([1, 2])
    assert (batch["x"].tolist(), batch["y"].tolist(), batch["name"]) == ([3, 2], [[0], [0]], ["a", "a"])
    with pytest.raises(
        UserError, match=r"samples of different shapes in y \(\(1,\), \(2,\)\): pad them, or give `Data`"
    ):
        split.__getitems__([0, 1])
    given = SimpleNamespace(collate_fn=lambda columns: columns)
    assert datasets.adapt("train", Columns("numpy"), given).source.format["type"] == "numpy"


def test_batches_of_tensors_are_selected_at_once(use: Callable[..., None], config: Callable[..., Config]) -> None:
    numbers = TensorDataset(torch.arange(10), torch.arange(20).view(10, 2))
    use(lambda split: Subset(Subset(numbers, [0, 9, 8, 7]), [1, 2, 3]))
    found = copy.deepcopy(techniques.load(config().data))  # as loader workers that are no forks get it
    first, second = found.train.__getitems__([2, 0])
    assert (first.tolist(), second.tolist()) == ([7, 9], [[14, 15], [18, 19]])


@pytest.mark.filterwarnings("ignore:skipping")
def test_stream_is_resumed_at_its_position(
    config: Callable[..., Config], world: World, use: Callable[..., None], tmp_path: Path
) -> None:
    """In its second epoch, whether a loader worker reads it or not."""
    use(lambda split: InOrder(split, 0, 64))
    options = ["--train.micro_batch=16", "--train.steps=9", "--train.eval_every=6", "--log.every=1"]
    train(config(*options, "--run.name=whole"), world)
    worker = [*options, "--loader.workers=1", "--run.name=cut", "--run.resume=auto"]
    train(config(*worker), world)
    (tmp_path / "cut/checkpoints/step-00000009/manifest.json").unlink()  # as if the run had been killed before
    train(config(*worker), world)
    for split in ("train", "val"):
        assert read_rows(tmp_path / "cut", split) == read_rows(tmp_path / "whole", split)
    ours, theirs = read_weights(tmp_path / "cut", 9), read_weights(tmp_path / "whole", 9)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_each_rank_takes_its_samples_of_a_stream() -> None:
    numbers = TensorDataset(torch.arange(50))
    plan = Plan(20, 2, 1, 2, 14)
    steps: list[Any] = []
    for rank in range(2):
        stream = Stream("", InOrder(numbers, 0, 20), None)
        order = TrainOrder(plan, rank, 0, 3, stream)
        steps.append([stream.__getitems__(indices)[0].tolist() for indices in order])
    first, second, third = (list(range(begin, begin + 20)) for begin in (0, 7, 14))
    expected = [*first[12:20], *second, *third[:16]]
    assert [index for both in zip(*steps, strict=True) for batch in both for index in batch] == expected
    with pytest.raises(UserError, match="ended after 20 of the 21 samples that its __len__ says"):
        Stream("", InOrder(numbers, 0, 20, 21), None).__getitems__([20])


class Batches:
    """Returns always the same batch."""

    def __init__(self, batch: Any = ()) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return 100

    def __getitems__(self, indices: list[int]) -> Any:
        return self.batch


def test_loader_worker_opens_a_stream_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not go on with the iterator of the training process, which may share an open file with it."""
    passes = []

    class Opened(InOrder):
        def __iter__(self) -> Iterator[Any]:
            passes.append(1)
            return super().__iter__()

    stream = Stream("", Opened(TensorDataset(torch.arange(9))), None)
    read = stream.__getitems__([0]), stream.__getitems__([1])
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert [part.tolist() for (part,) in (*read, stream.__getitems__([2]))] == [[0], [1], [2]]
    assert len(passes) == 2


def test_stream_of_other_samples_on_another_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Stream("data.train", InOrder(TensorDataset(torch.arange(9))), None)
    other = [[0]]

    def gather(found: list[Any], own: Any) -> None:
        found[:] = [own, other]

    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    assert check_readers([samples], LoaderConfig(), 2, World(0, 2, META)) == 1
    other = [[5]]
    with pytest.raises(UserError, match="data.train yields other samples on other ranks: it must yield all samples on"):
        check_readers([samples], LoaderConfig(), 2, World(0, 2, META))


REFUSED: dict[str, tuple[Any, str]] = {
    "texts": (
        ["a", "b"] * 50,
        r"data.train, of type list, returns a batch of type list without tensors: return tensors",
    ),
    "objects": (
        [object()] * 99,
        r"has samples that make no batch \(.*\): return tensors, arrays or numbers of one shape",
    ),
    "lengths": (
        [torch.ones(1), torch.ones(2)] * 50,
        r"stack expects .*, or give `Data`, or the dataset, a `collate_fn`",
    ),
    "splits": ({"train": [1]}, r"data.train, of type dict, is a dict: `load` must return one dataset for each split"),
    "number": (3, r"data.train, of type int, is no dataset: it needs __len__, and __getitems__"),
    "generator": (
        (number for number in range(9)),
        r"data.train, of type generator, is iterated over and has no __len__",
    ),
    "a loader": (DataLoader([1, 2]), r"data.train, of type DataLoader, makes batches itself: return its dataset"),  # type: ignore[arg-type]
    "joined": (
        ConcatDataset([Batches()]),  # type: ignore[list-item]
        r"of type ConcatDataset, has a part of type Batches without __getitem__\(index\): add it",
    ),
    "arrays": (Batches((torch.ones(1).numpy(),)), r"returns a batch of type tuple without tensors: return tensors"),
    "list": (Batches([torch.ones(1)] * 3), r"returns a list of 3 for a batch of 2: return a"),
    "no length": (SimpleNamespace(__getitems__=lambda indices: indices), r"has no __len__: add it, as an epoch"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_dataset_that_makes_no_batch_is_refused_in_one_line(
    config: Callable[..., Config], use: Callable[..., None], kind: str
) -> None:
    split, message = REFUSED[kind]
    use(lambda _: split)
    with pytest.raises(UserError, match=message) as caught:
        techniques.load(config().data).train.__getitems__([0, 1])
    assert "\n" not in str(caught.value)


def test_several_workers_of_a_stream_are_refused(
    config: Callable[..., Config], world: World, use: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(InOrder)
    found = techniques.load(config().data)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    found.data.in_memory = False  # type: ignore[attr-defined]
    assert techniques.worker_count(LoaderConfig(), found, world) == 1
    with pytest.raises(
        UserError, match="loader.workers is 2: each would read all of data.train, of type InOrder, which is"
    ):
        techniques.worker_count(LoaderConfig(workers=2), found, world)


class Pair(NamedTuple):
    """A batch with names, one of them of no tensor."""

    x: Tensor
    name: str


class Graph:
    """A batch of another library, with the methods of a tensor that loading needs."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def to(self, device: torch.device, non_blocking: bool = False) -> "Graph":
        return Graph(str(device))


def test_batches_of_any_structure_are_moved_and_passed_on(world: World) -> None:
    batch = {"a": [torch.ones(2), Pair(torch.ones(2), "b")], "b": UserDict(c=torch.ones(2)), "g": Graph()}
    samples: Any = SimpleNamespace(__getitems__=lambda _: batch)
    loader = Loader(samples, [[0]], LoaderConfig(), 0, world)
    loader.device = META
    moved: Any = next(iter(loader))
    assert {part.device for part in (moved["a"][0], moved["a"][1].x, moved["b"]["c"])} == {META}
    assert (moved["g"].device, moved["a"][1].name, type(moved["b"])) == ("meta", "b", dict)
    assert size_of(batch) is None, "a graph does not say how many samples it has"
    assert size_of(batch["a"]) == 2

    def model(x: Any, y: Any = None, **others: Any) -> Any:
        return x, y, others

    assert call(model, {"x": 1, "z": 2}) == (1, None, {"z": 2})
    assert call(model, (1, 2)) == (1, 2, {})
    assert call(model, [1]) == call(model, 1) == (1, None, {})
    assert inputs_of(lambda x: x, {"y": 1, "x": 2}) == {"x": 2}
    assert inputs_of(lambda x, mask, scale=1: x, (1, 2, 3)) == (1, 2)
    assert inputs_of(lambda x: x, moved["a"][0]) is moved["a"][0]


def test_objects_are_prefetched_without_a_record_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead, their memory, which may be used again, waits for what reads it."""
    waits: list[tuple[object, object]] = []

    class FakeStream(nullcontext[None]):
        def wait_stream(self, other: object) -> None:
            waits.append((self, other))

    side, main = FakeStream(), FakeStream()
    monkeypatch.setattr(loaders, "_side_stream", lambda _: side)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda _: main)
    moved = list(loaders._prefetch([{"g": Graph()}, {"g": Graph()}], META))
    assert [batch["g"].device for batch in moved] == ["meta", "meta"]
    assert waits == [(side, main), (main, side)] * 2
    graph = Graph()
    assert loaders._pinned(graph) is graph


def test_stream_is_not_cached_on_the_device(world: World) -> None:
    stream: Any = Stream("", InOrder(TensorDataset(torch.arange(9))), None)
    with pytest.raises(UserError, match="data.cache is 'device': a dataset that is iterated over is read in its order"):
        DeviceCache(Loader(stream, [[0]], LoaderConfig(), 0, world))
