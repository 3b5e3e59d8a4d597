"""The built-in texts: statements of Python's standard library without the keyword that they begin with, their label."""

from ..errors import UserError
from .library import library_files, library_validation, name_digest

KEYWORDS = ("assert", "del", "except", "for", "if", "import", "raise", "return", "while", "with", "yield")
MOST = 4000
"""Statements of a keyword, at most, in the training split: half of all are `if` or `return`."""

Rows = tuple[list[str], list[int]]
"""Texts, and the class of each."""


def load_statements(val_fraction: float) -> tuple[Rows, Rows]:
    """The statements of both splits, each once; modules that share code are never divided.

    Raises:
        UserError: a file cannot be read, or a split is empty.
    """
    root, files = library_files()
    in_val = library_validation(root, files, val_fraction)
    splits: tuple[dict[str, int], dict[str, int]] = ({}, {})
    classes = {keyword: number for number, keyword in enumerate(KEYWORDS)}
    for file in files:
        found = splits[file in in_val]
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:  # a module of another encoding
            continue
        except OSError as error:
            raise UserError(f"cannot read {file} ({error.strerror}): set data.path to another text") from error
        for line in lines:
            keyword, _, rest = line.strip().partition(" ")
            if keyword in classes and len(rest) > 2:
                found.setdefault(rest.strip(), classes[keyword])
    train, val = splits
    new = {text: label for text, label in val.items() if text not in train}
    if not train or not new:
        raise UserError(f"data.val_fraction={val_fraction} of the standard library leaves one split empty")
    return _limited(train, MOST), _limited(new, max(1, round(MOST * val_fraction / (1 - val_fraction))))


def _limited(found: dict[str, int], most: int) -> Rows:
    """At most as many texts of each class, in the order of a hash of the text."""
    counts, chosen = [0] * len(KEYWORDS), list[str]()
    for text in sorted(found, key=name_digest):
        counts[found[text]] += 1
        chosen += [text] if counts[found[text]] <= most else []
    return chosen, [found[text] for text in chosen]
