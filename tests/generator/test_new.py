"""`fastproj new` through the real program: what it renders, prints and records."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from fastproj.cli import new
from fastproj.shared.answers import ANSWERS
from matrix import MODELS, QUESTIONS, ROOT
from program import PROGRAMS, Fastproj, read_tree
from updating import build, commit, git, read_answers


def test_new_renders_commits_and_prints_next_steps(fastproj: Fastproj, tmp_path: Path) -> None:
    result = fastproj("new", "my-proj", "--yes", "--gpus", "2", "--nodes", "3", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "my-proj"
    assert os.listdir(tmp_path) == ["my-proj"]
    assert (folder / "src/my_proj/train.py").is_file()
    assert git(folder, "log", "--format=%an %s") == "Ada Lovelace Render my-proj with fastproj"
    assert git(folder, "status", "--porcelain") == ""
    assert git(folder, "branch", "--show-current") == "main"
    recorded = read_answers(folder)
    assert recorded["_src_path"] == "~/.fastproj/template.bundle"
    assert str(recorded["_commit"]).startswith("v0.")
    assert (recorded["gpus"], recorded["nodes"], recorded["tensor_cores"]) == (2, 3, "bf16")
    assert (recorded["author"], recorded["components"]) == ("Ada Lovelace", ["multinode"])
    assert "make setup" in result.stdout


def test_every_question_is_an_option() -> None:
    asked = {name for name, entry in QUESTIONS.items() if not name.startswith("_") and entry.get("when") is not False}
    options = set(new.__annotations__)
    assert asked - {"project_name", "update_source"} == set(ANSWERS) <= options


def test_help_shows_choices_and_imports_little(fastproj: Fastproj, environment: dict[str, str]) -> None:
    text = fastproj("new", "--help").stdout
    for choice in (
        f"[{'|'.join(MODELS)}]",
        "[pytorch",
        "[none|fp16|bf16|fp8]",
        "MIT|",
    ):
        assert choice in "".join(text.split()), choice
    command = [sys.executable, str(PROGRAMS / "list_help_imports.py")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "'typer'" in result.stderr
    for heavy in ("copier", "torch", "yaml", "jinja2", "pydantic", "rich", "questionary"):
        assert f"'{heavy}'" not in result.stderr


def test_version_is_that_of_the_template(fastproj: Fastproj) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert fastproj("--version").stdout == f"fastproj {declared}\n"


def test_no_arguments_print_help(fastproj: Fastproj) -> None:
    assert fastproj().stdout == fastproj("--help").stdout != ""


def test_author_and_licence_are_rendered(fastproj: Fastproj, tmp_path: Path) -> None:
    author = 'Zoë "Z" O\'Neil \\ {{ 1 }} $(touch x) <z@example.org>'
    for licence in ("MIT", "Apache-2.0", "BSD-3-Clause", "none"):
        name = f"p{licence.lower().replace('.', '')}"
        result = fastproj("new", name, "--yes", "--author", author, "--licence", licence, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        declared = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())["project"]
        assert declared["authors"] == [{"name": author}]
        assert (tmp_path / name / "LICENSE").exists() == (licence != "none")
        if licence != "none":
            assert f"Copyright {'(c) ' if licence != 'Apache-2.0' else ''}{author}" in (
                (tmp_path / name / "LICENSE").read_text()
            )
    assert not (tmp_path / "x").exists()


def test_template_from_a_bundle(fastproj: Fastproj, tmp_path: Path, home: Path) -> None:
    fastproj("new", "first", "--yes", cwd=tmp_path)
    bundle = shutil.copy(home / ".fastproj/template.bundle", tmp_path / "team.bundle")
    result = fastproj("new", "second", "--yes", "--template", str(bundle), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (tmp_path / "broken.bundle").write_bytes(Path(bundle).read_bytes()[:2000])
    result = fastproj("new", "third", "--yes", "--template", str(tmp_path / "broken.bundle"), cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "third").exists()


def test_template_from_a_work_tree_and_a_bare_repository(fastproj: Fastproj, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(build(tmp_path)), "fork")
    git(tmp_path / "fork", "tag", "v9.0.0rc1")
    git(tmp_path, "clone", "-q", "--bare", "fork", "fork.git")
    (tmp_path / "fork/project/new.txt").write_text("committed\n")
    commit(tmp_path / "fork")
    (tmp_path / "fork/project/new.txt").write_text("not committed\n")
    for name, source in {"tree": "fork", "bare": "fork.git"}.items():
        result = fastproj("new", name, "--yes", "--template", source, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert read_answers(tmp_path / name)["_src_path"] == str(tmp_path / source)
    assert (tmp_path / "tree/new.txt").read_text() == "committed\n"
    assert read_answers(tmp_path / "bare")["_commit"] == "v0.3.0", "the newest release"
    assert (tmp_path / "bare/docs/new.md").exists()


def test_linked_work_tree_of_a_template_is_rendered_at_its_last_commit(fastproj: Fastproj, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(build(tmp_path)), "fork")
    git(tmp_path / "fork", "worktree", "add", "-q", "-b", "side", "../linked")
    (tmp_path / "linked/project/new.txt").write_text("committed\n")
    commit(tmp_path / "linked")
    result = fastproj("new", "proj", "--yes", "--template", "linked", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "proj/new.txt").exists()


def test_template_without_a_commit_is_a_one_line_error(fastproj: Fastproj, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "empty")
    result = fastproj("new", "proj", "--yes", "--template", "empty", cwd=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1), result.stderr
    assert "invalid reference: HEAD" in result.stderr


def test_no_path_of_this_machine_is_recorded(fastproj: Fastproj, tmp_path: Path) -> None:
    fastproj("new", "proj", "--yes", cwd=tmp_path)
    for content in read_tree(tmp_path / "proj").values():
        assert str(ROOT).encode() not in content
        assert str(tmp_path).encode() not in content
