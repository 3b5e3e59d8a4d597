"""The cache: losses as without it, shared files, and what is refused."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from ..components.cache import OnDisk, Source
from ..errors import UserError
from . import support
from .support import First, equal, rows, state, train_here

SHORT = ("--train.steps=6", "--train.eval_every=3", "--cache.enabled=true")


class Counted(First):
    """Counts the samples that are read."""

    count = 0

    def __getitems__(
        self,
        indices: list[int],
    ) -> Any:
        Counted.count += len(indices)
        return super().__getitems__(indices)


@pytest.mark.parametrize(
    "where",
    ["disk", "memory", "device"],
)
def test_losses_are_those_without(
    tmp_path: Path,
    where: str,
) -> None:
    train_here(tmp_path / "without", *SHORT, "--cache.enabled=false")
    train_here(tmp_path / "cached", *SHORT, f"--cache.where={where}")
    assert equal(
        state(tmp_path / "cached")["model"],
        state(tmp_path / "without")["model"],
    )
    expected = rows(tmp_path / "without", "val")
    assert rows(tmp_path / "cached", "val") == expected


def test_second_run_decodes_nothing(tmp_path: Path) -> None:
    options = (*SHORT, f"--cache.folder={tmp_path}/cache")
    with mock.patch.object(support, "First", Counted):
        train_here(tmp_path / "first", *options)
        assert Counted.count >= 4 + 24 + 11
        Counted.count = 0
        train_here(tmp_path / "second", *options)
    assert Counted.count == 4  # the first sample of both sets, twice
    assert equal(
        state(tmp_path / "first"),
        state(tmp_path / "second"),
    )


def test_damaged_record_is_decoded_again(tmp_path: Path) -> None:
    samples = [(torch.full((3,), number, dtype=torch.uint8), number / 3) for number in range(9)]
    file = tmp_path / "a.bin"
    cached = OnDisk(samples)
    cached.source.learn()
    cached.open(file)
    for _ in range(2):
        numbers, thirds = cached.__getitems__([7, 2])
        assert numbers.tolist() == [[7] * 3, [2] * 3]
        assert thirds.tolist() == [7 / 3, 2 / 3]
        content = bytearray(file.read_bytes())
        content[2 * cached.size + 9] ^= 1
        file.write_bytes(content)


def test_samples_that_cannot_be_kept_are_one_line(tmp_path: Path) -> None:
    changing = mock.MagicMock(spec=["__getitem__"])
    changing.__getitem__.side_effect = lambda _: torch.rand(2)
    with pytest.raises(UserError, match="samples that stay the same: augment them in `Prepare`"):
        Source(changing).learn()
    with pytest.raises(UserError, match="needs samples of tensors and numbers, and one has a str"):
        Source([("name", 1)]).learn()
    with pytest.raises(UserError, match=r"cache\.max_gb is 1e-09: the samples take .* GB"):
        train_here(tmp_path, *SHORT, "--cache.max_gb=1e-9")
