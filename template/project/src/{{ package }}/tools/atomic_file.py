"""Writes result files atomically: completely, or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import UserError


@contextmanager
def atomic_write(target: Path, way_out: str = "give another --output") -> Iterator[Path]:
    """Yield a temporary path with the same folder and suffix, which is renamed to `target` if the block succeeds.

    Raises:
        UserError: the file cannot be written; then nothing is left of it.
    """
    partial = target.with_name(f".partial-{target.name}")
    try:
        yield partial
        partial.replace(target)
    except OSError as error:
        raise UserError(f"cannot write {target} ({error.strerror or error}): {way_out}") from error
    finally:
        with suppress(OSError):
            partial.unlink()
