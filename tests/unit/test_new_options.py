"""`fastproj new`: its options, and templates of each kind."""

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

from fastproj.cli import new
from fastproj.template.answers import ANSWERS
from matrix import MODELS, QUESTIONS, ROOT, TEMPLATE
from program import Fastproj
from updating import commit, git, read_answers

COMMANDS = ("detect", "new", "update", "status", "components", "add", "report", "tune", "bench")


def test_every_question_is_an_option() -> None:
    asked = {
        name
        for name, entry in QUESTIONS.items()
        if not name.startswith("_") and False not in (entry.get("when"), entry.get("ask"))
    }
    options = set(new.__annotations__)
    assert asked - {"project_name", "update_source"} == set(ANSWERS) <= options


def test_version_is_that_of_the_template(fastproj: Fastproj) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    shown = fastproj("--version").stdout
    assert shown.startswith(f"fastproj {declared['version']}")
    installed = metadata("fastproj-cli").get_all("Project-URL")
    if installed:  # since this program was installed
        assert shown.endswith(f" from {declared['urls']['Repository']}\n")


def test_no_arguments_print_help(fastproj: Fastproj) -> None:
    assert fastproj().stdout == fastproj("--help").stdout != ""


def test_help_is_plain_and_shows_choices(fastproj: Fastproj) -> None:
    text = " ".join(fastproj("new", "--help").stdout.split())
    for choices in (", ".join(MODELS), "pytorch, lightning", "none, fp16, bf16, fp8", "MIT, "):
        assert f"One of {choices}" in text, choices
    assert "--license" in text
    assert "licence" not in text
    for command in COMMANDS:
        text = fastproj(command, "--help").stdout
        assert not re.search(r"[<>{}]|\brange\b|default: |list\[", text), text
        assert text.startswith(f"Usage: fastproj {command} [OPTIONS]")


def test_author_and_licence_are_rendered(fastproj: Fastproj, tmp_path: Path) -> None:
    author = 'Zoë "Z" O\'Neil \\ {{ 1 }} $(touch x) <z@example.org>'
    folder = tmp_path / "a/new/folder"
    for name, option in {"first": "--licence=MIT", "second": "--data=license=none"}.items():
        fastproj(
            "new",
            name,
            "--yes",
            "--no-git",
            "--author",
            author,
            option,
            "--output=a/new/folder",
            cwd=tmp_path,
        )
        declared = tomllib.loads((folder / name / "pyproject.toml").read_text())["project"]
        assert declared["authors"] == [{"name": author}]
    assert f"Copyright (c) {author}" in (folder / "first/LICENSE").read_text()
    assert not (folder / "second/LICENSE").exists()
    assert not (tmp_path / "x").exists()


def test_every_licence_has_a_text_with_the_author() -> None:
    files = {file.stem: file.read_text() for file in (TEMPLATE / "licences").iterdir()}
    assert {*files, "none"} == {*QUESTIONS["licence"]["choices"].values()}
    for text in files.values():
        assert re.search(r"Copyright (\(c\) )?{{ author }}", text)


def test_template_from_a_broken_bundle(
    bundles: list[Path], fastproj: Fastproj, tmp_path: Path
) -> None:
    (tmp_path / "broken.bundle").write_bytes(bundles[-1].read_bytes()[:2000])
    fastproj(
        "new",
        "third",
        "--yes",
        "--template",
        str(tmp_path / "broken.bundle"),
        cwd=tmp_path,
        status=1,
    )
    assert not (tmp_path / "third").exists()


def test_template_from_a_work_tree_and_a_bare_repository(
    fork: Path, fastproj: Fastproj, tmp_path: Path
) -> None:
    git(fork, "tag", "v9.0.0rc1")
    git(tmp_path, "clone", "-q", "--bare", "fork", "fork.git")
    (fork / "project/new.txt").write_text("committed\n")
    commit(fork)
    (fork / "project/new.txt").write_text("not committed\n")
    for name, source in {"tree": "fork", "bare": "fork.git"}.items():
        fastproj("new", name, "--yes", "--template", source, cwd=tmp_path)
        assert read_answers(tmp_path / name)["_src_path"] == str(tmp_path / source)
    assert (tmp_path / "tree/new.txt").read_text() == "committed\n"
    assert read_answers(tmp_path / "bare")["_commit"] == "v0.3.0", "the newest release"
    assert (tmp_path / "bare/docs/new.md").exists()


def test_linked_work_tree_of_a_template_is_rendered_at_its_last_commit(
    fork: Path, fastproj: Fastproj, tmp_path: Path
) -> None:
    git(fork, "worktree", "add", "-q", "-b", "side", "../linked")
    (tmp_path / "linked/project/new.txt").write_text("committed\n")
    commit(tmp_path / "linked")
    fastproj("new", "proj", "--yes", "--template", "linked", cwd=tmp_path)
    assert (tmp_path / "proj/new.txt").exists()


def test_template_without_a_commit_is_a_one_line_error(fastproj: Fastproj, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "empty")
    result = fastproj(
        "new",
        "proj",
        "--yes",
        "--template",
        "empty",
        cwd=tmp_path,
        status=1,
    )
    assert "invalid reference: HEAD" in result.stderr
