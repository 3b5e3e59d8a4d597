"""Answers files that are too deep or repetitive are refused quickly and in one line."""

import time
from pathlib import Path

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
    for command in (["status"], ["update"], ["components"]):
        result = fastproj(*command, cwd=folder)
        assert (result.returncode, result.stderr.count("\n")) == (1, 1), result.stderr
        assert reason in result.stderr
        assert "or restore the file: git checkout $(git log -1" in result.stderr
    assert time.monotonic() - start < 30


ORIGIN = "_src_path: {{ _copier_answers._src_path }}\n"


@pytest.mark.parametrize(
    "content", [f"{ORIGIN}a: !mine x\n", f"- |\n  {ORIGIN}- 1\n", f"{ORIGIN}a: [\n", f"a: &a 1\nb: *a\n{ORIGIN}"]
)
def test_answers_file_of_a_template_that_is_not_yaml(
    content: str, fastproj: Fastproj, fork: Path, tmp_path: Path
) -> None:
    (fork / "project/{{ _copier_conf.answers_file }}.jinja").write_text(content)
    commit(fork)
    result = fastproj("new", "x", "--yes", "--template", str(fork), "--output", str(tmp_path))
    assert (result.returncode, result.stderr.count("\n")) == (1, 1), result.stderr
    assert ".copier-answers.yml" in result.stderr
    assert not (tmp_path / "x").exists()
