#!/usr/bin/env python3
"""Check that code is written out: no packed or long lines, no function that is hard to follow.

    benchmarks/density.py template/data generator     # what exceeds a limit, and the totals

The mean of tokens per line is that of all files together. Exit status 1 if a limit is exceeded.
"""

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS = 100
TOKENS_PER_LINE = 8.5
"""Limit of the mean; nanoGPT has 8.7, litgpt 7.3, copier 5.9."""
COMPLEXITY = 12
"""Limit of the ways through a function."""
STATEMENTS = 50
TRAINING_LOOP = "train"
"""The function that shows a whole run, and so may be longer."""
LOOP_COMPLEXITY = 20
LOOP_STATEMENTS = 100

CODE_TOKENS = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.While,
    ast.With,
    ast.ExceptHandler,
    ast.BoolOp,
    ast.comprehension,
    ast.match_case,
)


@dataclass
class Code:
    """The counts of a file, or of several together."""

    lines: int = 0
    tokens: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def density(self) -> float:
        """Tokens per line of code."""
        return self.tokens / max(self.lines, 1)


def read_code(file: Path) -> Code:
    """Count the tokens of a file, and list what exceeds a limit."""
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    tokens = count_tokens(text, uncounted_lines(tree))
    code = Code(lines=len(tokens), tokens=tokens.total())
    for problems in (
        wide_lines(text),
        packed_assignments(tree),
        nested_comprehensions(tree),
        long_functions(tree),
    ):
        code.complaints += [f"{file}:{problem}" for problem in problems]
    return code


def uncounted_lines(tree: ast.AST) -> set[int]:
    """Return the lines of imports, docstrings and strings below a field."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr):
            continue
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            continue
        last = node.end_lineno or node.lineno
        lines.update(range(node.lineno, last + 1))
    return lines


def count_tokens(text: str, uncounted: set[int]) -> Counter[int]:
    """Return the tokens of each line of code; a string of several lines is in its first one."""
    counts: Counter[int] = Counter()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type in CODE_TOKENS and line not in uncounted:
            counts[line] += 1
    return counts


def wide_lines(text: str) -> Iterator[str]:
    """Name lines that are too long; comments and docstrings count."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > COLUMNS:
            yield f"{number}: {len(line)} columns"


def packed_assignments(tree: ast.AST) -> Iterator[str]:
    """Name statements that assign independent values, `a, b = 1, 2`; a swap is fine."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        match (node.targets[0], node.value):
            case (ast.Tuple(elts=targets), ast.Tuple(elts=values)):
                if as_text(targets) != as_text(values):
                    yield f"{node.lineno}: several assignments in one statement"


def as_text(expressions: list[ast.expr]) -> set[str]:
    """Return the code of expressions."""
    return {ast.unparse(expression) for expression in expressions}


def nested_comprehensions(tree: ast.AST) -> Iterator[str]:
    """Name comprehensions with several loops, or with another comprehension inside."""
    for node in ast.walk(tree):
        if not isinstance(node, COMPREHENSIONS):
            continue
        loops = [part for part in ast.walk(node) if isinstance(part, ast.comprehension)]
        if len(loops) > 1:
            yield f"{node.lineno}: nested comprehension"


def long_functions(tree: ast.AST) -> Iterator[str]:
    """Name functions with too many branches or statements, those of inner functions included."""
    for node in ast.walk(tree):
        if not isinstance(node, FUNCTIONS):
            continue
        max_complexity = COMPLEXITY
        max_statements = STATEMENTS
        if node.name == TRAINING_LOOP:
            max_complexity = LOOP_COMPLEXITY
            max_statements = LOOP_STATEMENTS

        complexity = 1 + count(node, BRANCHES)
        if complexity > max_complexity:
            yield f"{node.lineno}: {node.name} has a complexity of {complexity}"

        statements = count(node, (ast.stmt,)) - 1
        if statements > max_statements:
            yield f"{node.lineno}: {node.name} has {statements} statements"


def count(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> int:
    """Return how many nodes of some kinds there are in a node, itself included."""
    return sum(isinstance(part, kinds) for part in ast.walk(node))


def python_files(places: list[Path]) -> Iterator[Path]:
    """Go through the files of folders; those with Jinja in them do not end in .py."""
    for place in places:
        if place.is_dir():
            yield from sorted(place.rglob("*.py"))
        else:
            yield place


def check(places: list[Path]) -> Code:
    """Return the counts of all files together."""
    total = Code()
    for file in python_files(places):
        code = read_code(file)
        total.lines += code.lines
        total.tokens += code.tokens
        total.complaints += code.complaints
    if total.density > TOKENS_PER_LINE:
        total.complaints.append(f"{total.density:.2f} tokens per line, at most {TOKENS_PER_LINE}")
    return total


def main() -> int:
    """Print what exceeds a limit, and the totals."""
    parser = argparse.ArgumentParser(description="Check that code is written out.")
    parser.add_argument("places", nargs="+", type=Path, help="folders, or files of Python code")
    places = parser.parse_args().places
    if missing := [place for place in places if not place.exists()]:
        parser.error(f"{missing[0]} does not exist")
    total = check(places)
    for complaint in total.complaints:
        print(complaint)
    totals = f"{total.lines:,} lines, {total.tokens:,} tokens"
    print(f"{totals}, {total.density:.2f} tokens per line")
    return int(bool(total.complaints))


if __name__ == "__main__":
    sys.exit(main())
