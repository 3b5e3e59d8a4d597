"""Answers files that are too large, deep or repetitive are refused quickly and in one line."""

import time

import pytest
from hostile_answers import HOSTILE
from program import Fastproj
from updating import MakeProject, commit


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
