"""Streams: resume with the next sample, what counts as an epoch, and what is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from torch.utils.data import IterableDataset

from .. import data
from ..data import DataConfig
from ..errors import Stopped, UserError
from ..train import train
from .support import CPU, First, ask_to_stop, at_step, config, equal, few_samples, load_all, state

STREAM = ("--streams.enabled=true", "--streams.epoch_samples=20", "--train.steps=6")


class Endless(IterableDataset[int]):
    """Numbers of 17 samples; a batch is theirs."""

    def __init__(
        self,
        samples: Any,
    ) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(17))

    def collate_fn(
        self,
        indices: list[int],
    ) -> Any:
        return self.samples.__getitems__(indices)


@contextmanager
def streamed() -> Iterator[None]:
    """Train on a stream of samples."""
    train_set, val_set, spec = load_all(DataConfig())
    loaded = (Endless(train_set), First(val_set, range(5)), spec)
    with mock.patch.object(data, "load", return_value=loaded):
        yield


@streamed()
def train_on_stream(
    folder: Path,
    *options: str,
) -> None:
    train(config(folder, *STREAM, *options), CPU)


def test_stream_is_read_in_order_again_and_again(tmp_path: Path) -> None:
    seen: list[int] = []

    def collate(
        self: Endless,
        indices: list[int],
    ) -> Any:
        seen.extend(indices)
        return self.samples.__getitems__(indices)

    with mock.patch.object(Endless, "collate_fn", collate):
        train_on_stream(tmp_path)
    assert seen == [*range(17), *range(7)]


def test_stopped_run_continues_with_the_next_sample(tmp_path: Path) -> None:
    options = ("--train.gradient_accumulation_steps=2", "--streams.readers=3")
    train_on_stream(tmp_path / "whole", *options)
    with at_step(3, ask_to_stop), pytest.raises(Stopped):
        train_on_stream(tmp_path / "stopped", *options)
    train_on_stream(tmp_path / "stopped", *options)
    assert equal(state(tmp_path / "whole"), state(tmp_path / "stopped"))


def test_what_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"streams.epoch_samples is None: set how many samples"):
        train_on_stream(tmp_path, "--streams.epoch_samples=null")
    with few_samples(), pytest.raises(UserError, match="needs an IterableDataset for training"):
        train(config(tmp_path, *STREAM), CPU)
