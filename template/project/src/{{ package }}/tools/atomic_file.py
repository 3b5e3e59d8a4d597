"""Results as files: whole ones or none."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import UserError


@contextmanager
def whole(target: Path, way_out: str = "give another --output") -> Iterator[Path]:
    """Give a name to write to, in the same folder and with the same suffix, which becomes `target` if all goes well.

    Raises:
        UserError: it cannot be written; then nothing is left of it.
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
