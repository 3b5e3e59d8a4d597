"""benchmarks/density.py names each kind of code that is hard to read, and nothing else."""

from pathlib import Path

import density
import pytest

PLAIN = '''
def load(file):
    """Read a file, with its docstring of many more words than eight and a half of them."""
    rows = read(file)
    first, second = second, first
    width, height = size
    return [row for row in rows if row]
'''


def complaints(folder: Path, text: str) -> list[str]:
    (folder / "code.py").write_text(text)
    return density.check([folder]).complaints


def test_plain_code_is_accepted_and_counted(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(PLAIN)
    code = density.check([tmp_path / "code.py"])
    assert code.complaints == []
    assert code.lines == 5
    assert code.tokens == 6 + 6 + 7 + 5 + 10


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("#" + "x" * 100, "1: 101 columns"),
        ("a, b = 1, 2", "1: several assignments in one statement"),
        ("[x\n for row in rows\n for x in row]", "1: nested comprehension"),
        ("[[x]\n for x in (\n y for y in z)]", "1: nested comprehension"),
        ("def f():\n" + "    if a:\n        b\n" * 12, "1: f has a complexity of 13"),
        ("def f():\n" + "    a\n" * 51, "1: f has 51 statements"),
        ("def train():\n" + "    if a:\n        b\n" * 20, "1: train has a complexity of 21"),
        ("def train():\n" + "    a\n" * 101, "1: train has 101 statements"),
    ],
)
def test_what_exceeds_a_limit_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    assert complaints(tmp_path, text) == [f"{tmp_path}/code.py:{complaint}"]


def test_training_loop_may_be_longer(tmp_path: Path) -> None:
    assert complaints(tmp_path, "def train():\n" + "    if a:\n        b\n" * 19) == []


def test_packed_lines_are_named(tmp_path: Path) -> None:
    assert complaints(tmp_path, "f(1, 2, 3, 4)") == ["10.00 tokens per line, at most 8.5"]
