"""Samples that cannot be read: skipped when the data are loaded, replaced or left out later; counted in any case."""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

import torch

from ..errors import UserError
from .common import abbreviate

T = TypeVar("T")

OF_ONE_FILE = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,
}
"""Errors of the operating system that are about a file; all others are about the disk, the network or this machine."""


class UnreadableError(Exception):
    """A sample that cannot be read; the message says why."""


def unreadable(error: Exception, file: Path) -> UnreadableError:
    """Return the error of a sample for one that was raised while its file was read.

    Raises:
        UserError: the error is not of this file alone, so that other files would fail as well.
    """
    if isinstance(error, MemoryError):
        raise UserError(f"not enough memory to read {file}: use fewer loader.workers, or remove the file") from error
    if isinstance(error, OSError) and error.errno is not None and error.errno not in OF_ONE_FILE:
        raise UserError(f"cannot read {file} ({error.strerror}): check the disk or network, then resume") from error
    reason = getattr(error, "strerror", None) or str(error)  # without the path, which is said anyway
    return UnreadableError(" ".join(reason.split()) or type(error).__name__)


class Skipped:
    """Collects the unreadable files, which are skipped; `before` others were skipped already.

    Raises:
        UserError: from `add`, when more than the fraction `max_unreadable` of `total` files was skipped.
    """

    def __init__(self, total: int, max_unreadable: float, before: int = 0) -> None:
        self.total, self.max_unreadable, self.before = total, max_unreadable, before
        self.problems: list[str] = []

    def add(self, file: object, reason: str) -> None:
        """Skip one file."""
        self.problems.append(f"{file}: {' '.join(reason.split())}")
        count = self.before + len(self.problems)
        if count > self.max_unreadable * self.total:
            without = f", besides {self.before} without counterpart" if self.before else ""
            raise UserError(
                f"{len(self.problems)} of {self.total} cannot be read{without} ({abbreviate(self.problems, 3)}): "
                f"fix or remove them, or raise data.max_unreadable={self.max_unreadable:g}"
            )


class ReplacingReader(Generic[T]):
    """Reads samples by index. In place of an unreadable one comes the next readable one, or nothing.

    A dataset of your own can use it as well: `read` raises an UnreadableError, which `unreadable` makes of others, and
    the dataset has the attribute `unreadable` of its reader, so that a run counts them.

    The replacement depends on the index and on which files are unreadable, and on nothing else: it is the same for any
    number of workers and ranks, and after a resume. Unreadable files are named once, and counted over all workers.

    Raises:
        UserError: from a call, when more than the fraction `max_unreadable` of the files is unreadable, or all files
            are gone, or a disk fails.
    """

    def __init__(
        self, files: Sequence[Path], read: Callable[[int], T], max_unreadable: float, replace: bool = True
    ) -> None:
        self.files, self.read, self.max_unreadable, self.replace = files, read, max_unreadable, replace
        self.unreadable = torch.zeros(len(files), dtype=torch.uint8).share_memory_()
        """1 for each file that could not be read; loader workers share it."""

    def __call__(self, indices: list[int]) -> list[T]:
        """Read a batch. If nothing replaces the unreadable samples, it is smaller, and they do not count."""
        found = [sample for index in indices for sample in self._read(index)]
        if not found:
            raise UserError(
                f"no sample of a validation batch can be read, {abbreviate([self.files[index] for index in indices])}: "
                "restore the files, then resume"
            )
        return found

    def _read(self, index: int) -> Iterator[T]:
        """Return one sample, or none."""
        candidates = chain(range(index, len(self.files)), range(index)) if self.replace else (index,)
        for candidate in candidates:
            if self.unreadable[candidate]:
                continue
            try:
                yield self.read(candidate)
                return
            except UnreadableError as error:
                self._skip(candidate, error)
        if self.replace:
            raise UserError(f"none of the {len(self.files)} files can be read: give other files")

    def _skip(self, index: int, error: UnreadableError) -> None:
        self._check_folder()
        if self.unreadable[index]:  # another worker was first
            return
        self.unreadable[index] = 1
        count = int(self.unreadable.sum())
        if count > self.max_unreadable * len(self.files):
            raise UserError(
                f"{count} of {len(self.files)} files cannot be read, the last is {self.files[index]} ({error}): fix or "
                f"remove them, or raise data.max_unreadable={self.max_unreadable:g}"
            )
        instead = "another sample takes its place" if self.replace else "it does not count in the validation"
        print(f"unreadable: {self.files[index]}: {error}; {instead}", file=sys.stderr, flush=True)

    def _check_folder(self) -> None:
        """Refuse to go on if the folder of the files is gone, or empty, as when a disk is no longer mounted."""
        try:
            with os.scandir(self._folder) as entries:
                reason = "" if any(entries) else "it is empty"
        except OSError as error:
            reason = str(error.strerror)
        if reason:
            raise UserError(f"cannot read the folder {self._folder} ({reason}): restore or mount it, then resume")

    @cached_property
    def _folder(self) -> str:
        """The folder that contains all files."""
        return os.path.commonpath({os.path.abspath(file.parent) for file in self.files})
