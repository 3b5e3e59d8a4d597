"""The cache: batches and losses as without it, shared files, and what is refused."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from .. import data
from ..components.cache import OnDisk, Source
from ..errors import UserError
from .support import First, equal, rows, state, train_here

SHORT = ("--train.steps=6", "--train.eval_every=3", "--cache.enabled=true")


class Counted(First):
    """Counts the samples that are read."""

    count = 0

    def __getitems__(self, indices: list[int]) -> Any:
        Counted.count += len(indices)
        return super().__getitems__(indices)


@pytest.mark.parametrize("where", ["disk", "memory", "device"])
def test_losses_are_those_without(tmp_path: Path, where: str) -> None:
    train_here(tmp_path / "without", *SHORT, "--cache.enabled=false")
    train_here(tmp_path / "cached", *SHORT, f"--cache.where={where}")
    assert equal(
        state(tmp_path / "cached"), state(tmp_path / "without") | {"components": {"cache": {}}}
    )
    assert rows(tmp_path / "cached", "train") == rows(tmp_path / "without", "train")
    assert rows(tmp_path / "cached", "val") == rows(tmp_path / "without", "val")


def test_second_run_decodes_nothing_and_changed_data_everything(tmp_path: Path) -> None:
    from . import support

    chosen = (*SHORT, f"--cache.folder={tmp_path}/cache")
    with mock.patch.object(support, "First", Counted):
        train_here(tmp_path / "first", *chosen)
        once, Counted.count = Counted.count, 0
        train_here(tmp_path / "second", *chosen)
        assert Counted.count == 4  # the first sample of both sets, twice
        assert once >= 4 + 24 + 11
        with mock.patch.object(data, "__file__", __file__):
            train_here(tmp_path / "third", *chosen)
        assert Counted.count >= 4 + 4 + 24 + 11
    assert equal(state(tmp_path / "first"), state(tmp_path / "third"))


def test_damaged_record_is_decoded_again(tmp_path: Path) -> None:
    samples = [(torch.full((3,), number, dtype=torch.uint8), number / 3) for number in range(9)]
    cached = OnDisk(samples)
    cached.source.learn()
    cached.open(tmp_path / "a.bin")
    for _ in range(2):
        found = cached.__getitems__([7, 2])
        assert found[0].tolist() == [[7] * 3, [2] * 3]
        assert found[1].tolist() == [7 / 3, 2 / 3]
        content = bytearray((tmp_path / "a.bin").read_bytes())
        content[2 * cached.size + 9] ^= 1
        (tmp_path / "a.bin").write_bytes(content)


def test_samples_that_cannot_be_kept_are_one_line(tmp_path: Path) -> None:
    changing = mock.MagicMock(spec=["__getitem__"])
    changing.__getitem__.side_effect = lambda _: torch.rand(2)
    with pytest.raises(UserError, match="samples that stay the same: augment them in `Prepare`"):
        Source(changing).learn()
    with pytest.raises(UserError, match="needs samples of tensors and numbers, and one has a str"):
        Source([("name", 1)]).learn()
    source = Source([torch.ones(2), torch.ones(3)])
    source.learn()
    with pytest.raises(UserError, match="needs samples of one shape, and sample 1 differs"):
        source.__getitems__([0, 1])
    with pytest.raises(UserError, match=r"cache\.max_gb is 1e-09: the samples take .* GB"):
        train_here(tmp_path, *SHORT, "--cache.max_gb=1e-9")
