"""Training on an IterableDataset: several loader workers, and resume at the next sample."""

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Literal

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..component import Component
from ..config import LoaderConfig
from ..config_base import Section, within
from ..contracts import collate, collate_fn
from ..distributed import World
from ..errors import UserError
from ..run import Run
from ..workers import init_worker, to_shared_memory


@dataclass(frozen=True)
class StreamsConfig(Section):
    """Training on an IterableDataset."""

    is_fixed = True
    enabled: bool = False
    """Read the training set, an IterableDataset, as a stream that never ends."""
    epoch_samples: int | None = within("[1, inf)", None)
    """Samples of all ranks that count as one epoch; null: the `len` of the dataset."""
    readers: int | None = within("[1, inf)", None)
    """Parts that are read at the same time; null: ranks x loader workers at the start of the run,
    which keeps it. Any number of ranks and of loader workers that divides it has the same samples
    in each step."""
    split: Literal["samples", "dataset"] = "samples"
    """samples: each reader takes every n-th sample of a dataset that is not one of shards; dataset:
    the dataset itself gives each rank and worker its own samples, as in Hugging Face datasets."""


class Streams(Component):
    """Follows the readers: a checkpoint has their states after the last batches trained on."""

    name = "streams"

    def __init__(self, cfg: StreamsConfig, world: World) -> None:
        self.cfg = cfg
        self.world = world
        self.stream: Any = None

    def wrap_dataset(self, dataset: Any) -> Any:
        """Wrap the training set; the validation set, which comes second, stays as it is."""
        is_stream = isinstance(dataset, IterableDataset)
        if self.stream is not None:
            if is_stream:
                needed = "streams.enabled needs a map-style validation set"
                raise UserError(f"{needed}: return list(...) of it from `load`")
            return dataset
        if not is_stream:
            needed = "streams.enabled needs an IterableDataset for training"
            raise UserError(f"{needed}: `load` of data.py returned {type(dataset).__name__}")
        self.stream = Stream(dataset, self.cfg, self.world)
        return self.stream

    def on_train_start(self, run: Run) -> None:
        self.stream.batch_size = run.plan.batch_size
        self.stream.seed = run.cfg.run.seed

    def on_step_end(self, run: Run) -> None:
        for _ in range(run.plan.accumulation_steps):
            number, state = self.stream.loaded.popleft()
            self.stream.changed[number] = state
        self.stream.consumed += run.plan.accumulation_steps * self.world.size

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the readers of all ranks, as one string also if it is sharded."""
        changed = [self.stream.changed]
        if self.world.size > 1:
            changed *= self.world.size
            dist.all_gather_object(changed, self.stream.changed)
        states = list(self.stream.states)
        for of_rank in changed:
            for number, state in of_rank.items():
                states[number] = state
        return {"consumed": self.stream.consumed, "readers": json.dumps(states)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            self.stream.consumed = state["consumed"]
            self.stream.states = json.loads(state["readers"])


class Stream:
    """The training set, as the loader sees it.

    Micro-batch m of all ranks comes from reader m % readers.
    """

    def __init__(
        self,
        dataset: Any,
        cfg: StreamsConfig,
        world: World,
    ) -> None:
        self.dataset = dataset
        self.cfg = cfg
        self.world = world
        self.batch_size = 1
        self.seed = 0
        self.consumed = 0
        self.states: list[str] = []
        """The readers' states at the start of this process, as JSON; empty: at its beginning."""
        self.changed: dict[int, str] = {}
        """Those that this rank has changed since."""
        self.loaded: deque[tuple[int, str]] = deque()
        """Reader, and its state afterwards, of each micro-batch that is not trained on yet."""

    def __len__(self) -> int:
        if self.cfg.epoch_samples is None and not hasattr(self.dataset, "__len__"):
            self.cfg.refuse("epoch_samples", "set how many samples count as one epoch")
        return self.cfg.epoch_samples or len(self.dataset)

    def batches(
        self,
        cfg: LoaderConfig,
        workers: int,
        pin: bool,
    ) -> Iterator[Any]:
        """Yield the batches of this rank; the iterator never ends."""
        ranks = self.world.size
        self.states = self.states or [""] * (self.cfg.readers or ranks * max(workers, 1))
        readers = len(self.states)
        if readers % ranks:
            shared = f"{readers} readers (streams.readers) cannot be shared by {ranks} ranks"
            raise UserError(f"{shared}: use a divisor")
        while workers > 1 and readers % (ranks * workers):
            workers -= 1
        if self.cfg.split == "dataset" and readers != ranks * max(workers, 1):
            needed = f"use {readers} ranks x loader.num_workers, as when the run began"
            raise UserError(f"streams.split is dataset: {needed}")
        loader = DataLoader(
            Batches(self),
            batch_size=None,  # as each item is a batch
            num_workers=workers,
            collate_fn=to_shared_memory(_unchanged, cfg.prefetch_factor),
            pin_memory=pin,
            prefetch_factor=cfg.prefetch_factor if workers else None,
            timeout=cfg.timeout if workers else 0,
            worker_init_fn=init_worker,
        )
        for item in loader:
            if item is not None:
                batch, number, state = item
                self.loaded.append((number, state))
                yield batch


class Batches(IterableDataset[Any]):
    """Batches of this worker's readers in turn: each with its reader, and its state afterwards."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[tuple[Any, int, str] | None]:
        stream = self.stream
        count = len(stream.states)
        rank = stream.world.rank
        ranks = stream.world.size
        info = get_worker_info()
        worker = info.id if info else 0
        workers = info.num_workers if info else 1
        # the rank's micro-batches are counted from 0
        first = math.ceil((stream.consumed - rank) / ranks)
        if worker < first % workers:
            yield None  # the loader begins with worker 0
        own = first + (worker - first) % workers
        turns = range(own, own + count // ranks, workers)
        readers = {}
        samples = {}
        for turn in turns:
            number = (rank + turn * ranks) % count
            readers[number] = self._reader(number)
            samples[number] = iter(readers[number])
        to_batch = collate_fn(stream.dataset) or collate
        for number, reader in cycle(readers.items()):
            batch = to_batch(list(islice(samples[number], stream.batch_size)))
            yield batch, number, json.dumps(reader.state_dict())

    def _reader(self, number: int) -> Any:
        stream = self.stream
        count = len(stream.states)
        reader: Any
        if hasattr(stream.dataset, "reader"):
            reader = stream.dataset.reader(number, count, stream.seed)
        elif stream.cfg.split == "dataset":
            reader = EveryNth(deepcopy(stream.dataset), 0, 1)
        else:
            reader = EveryNth(deepcopy(stream.dataset), number, count)
        if stream.states[number]:
            reader.load_state_dict(json.loads(stream.states[number]))
        return reader


class EveryNth:
    """Every `count`-th sample of an IterableDataset, pass after pass.

    If the dataset has `state_dict`, of what JSON can hold, and `load_state_dict`, it continues
    where it was; else it reads again what comes before. Its `set_epoch` is called at the beginning
    of each pass.
    """

    def __init__(self, dataset: Any, number: int, count: int) -> None:
        self.dataset = dataset
        self.number = number
        self.count = count
        self.epoch = 0
        self.seen = 0
        self.skip = 0

    def state_dict(self) -> dict[str, Any]:
        own = self.dataset.state_dict() if hasattr(self.dataset, "state_dict") else None
        return {"epoch": self.epoch, "seen": self.seen, "dataset": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.seen = state["seen"]
        if state["dataset"] is None:
            self.skip = self.seen
        else:
            self.dataset.load_state_dict(state["dataset"])

    def __iter__(self) -> Iterator[Any]:
        while True:
            if hasattr(self.dataset, "set_epoch"):
                self.dataset.set_epoch(self.epoch)
            for sample in islice(self.dataset, self.skip, None):
                self.seen += 1
                if self.seen % self.count == self.number:
                    yield sample
            if self.seen < self.count:
                few = f"{type(self.dataset).__name__} has {self.seen} samples"
                raise UserError(f"{few} for {self.count} readers: set streams.readers")
            self.epoch += 1
            self.seen = 0
            self.skip = 0


def _unchanged(batch: Any) -> Any:
    return batch
