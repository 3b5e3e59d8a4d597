"""Files that the commands about runs write."""

import os
from pathlib import Path


def replace(file: Path, text: str) -> None:
    """Write a file as a whole or not at all; a link of this name is replaced, not followed."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        with partial.open("x", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
