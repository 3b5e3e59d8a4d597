"""Compare files by their lines, in any order."""

from collections import Counter
from pathlib import Path

from ..shared.answers import ANSWERS_FILE


def difference(theirs: Counter[str], ours: Counter[str]) -> int:
    """Return how many lines differ between two files."""
    return max((theirs - ours).total(), (ours - theirs).total())


def count_all(folder: Path) -> dict[str, Counter[str]]:
    """Count the lines of each rendered file, except for the answers file."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != ANSWERS_FILE)
    return {str(file.relative_to(folder)): count_lines(file) for file in files}


def count_lines(file: Path) -> Counter[str]:
    """Count the lines of a file; none if it cannot be read."""
    try:
        return Counter(file.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return Counter()
