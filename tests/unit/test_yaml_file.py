"""Answers files that are too deep or repetitive are refused in one line."""

from pathlib import Path

import pytest
from fastproj.errors import FastprojError
from fastproj.template.yaml_file import read_answers
from hostile_answers import HOSTILE
from program import Fastproj
from updating import MakeProject, commit


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_file(name: str, tmp_path: Path) -> None:
    text, reason = HOSTILE[name]
    content: bytes = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "answers.yml").write_bytes(b"_src_path: ~/x.bundle\n_commit: v0.1.0\n" + content)
    with pytest.raises(FastprojError, match=reason) as refusal:
        read_answers(tmp_path / "answers.yml")
    assert "or restore the file (git log -p -- .copier-answers.yml shows" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_command_refuses_it(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project()
    (folder / ".copier-answers.yml").write_text("a: &a [*a]\n")
    commit(folder)
    for command in ("status", "update", "components"):
        result = fastproj(command, cwd=folder, status=1)
        assert "it has an alias" in result.stderr


ORIGIN = "_src_path: {{ _copier_answers._src_path }}\n"


@pytest.mark.parametrize(
    "content",
    [
        f"{ORIGIN}a: !mine x\n",
        f"- |\n  {ORIGIN}- 1\n",
        f"{ORIGIN}a: [\n",
        f"a: &a 1\nb: *a\n{ORIGIN}",
    ],
)
def test_answers_file_of_a_template_that_is_not_yaml(
    content: str, fastproj: Fastproj, fork: Path, tmp_path: Path
) -> None:
    (fork / "project/{{ _copier_conf.answers_file }}.jinja").write_text(content)
    commit(fork)
    result = fastproj(
        "new", "x", "--yes", "--template", str(fork), "--output", str(tmp_path), status=1
    )
    assert ".copier-answers.yml" in result.stderr
    assert not (tmp_path / "x").exists()
