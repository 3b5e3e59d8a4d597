"""Answers files that are too large, deep or repetitive are refused quickly and in one line."""

import time

import pytest
from program import Fastproj
from updating import MakeProject, commit

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n"
BOMB += "".join(
    f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]\n" for last, name in zip("abcdefg", "bcdefgh", strict=True)
)
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "deep": ("a: " + "[" * 100_000 + "]" * 100_000, "levels deep"),
    "aliases": (BOMB, "values"),
    "alias of itself": ("a: &a [*a]\n", "values"),
    "many values": ("a: [" + "1, " * 300_000 + "]", "values"),
    "8 MB": ("a: " + "x" * 8_000_000, "larger than 1 MiB"),
    "a null byte": ("a: \0\n", "control characters"),
    "not UTF-8": (b"a: \xff\n", "utf-8"),
    "an object": ("a: !!python/object/apply:os.system ['touch /tmp/hacked']\n", "constructor"),
    "a list as a key": ("? [a]\n: 1\n", "unhashable"),
    "a bad date": ("a: 2025-99-99\n", "month"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_file(name: str, make_project: MakeProject, fastproj: Fastproj) -> None:
    text, reason = HOSTILE[name]
    folder = make_project()
    content: bytes = text if isinstance(text, bytes) else text.encode()
    (folder / ".copier-answers.yml").write_bytes(b"_src_path: ~/x.bundle\n_commit: v0.1.0\n" + content)
    commit(folder)
    start = time.monotonic()
    for command in (["status"], ["update", "--yes"], ["adopt", "--dry-run"]):
        result = fastproj(*command, cwd=folder)
        assert (result.returncode, result.stderr.count("\n")) == (1, 1), result.stderr
        assert reason in result.stderr
        assert "restore it with `git checkout HEAD -- .copier-answers.yml`" in result.stderr
    assert time.monotonic() - start < 30
