"""`fastproj new` through the real program: what it renders, prints and records."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from matrix import ROOT
from program import PROGRAMS, Fastproj, read_tree
from updating import git, read_answers


def test_new_renders_commits_and_prints_next_steps(fastproj: Fastproj, tmp_path: Path) -> None:
    result = fastproj(
        "new",
        "my-proj",
        "--yes",
        "--gpus",
        "2",
        "--nodes",
        "3",
        cwd=tmp_path,
    )
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
    for content in read_tree(folder).values():
        assert str(ROOT).encode() not in content
        assert str(tmp_path).encode() not in content


def test_help_imports_little(environment: dict[str, str]) -> None:
    command = [sys.executable, str(PROGRAMS / "list_help_imports.py")]
    result = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'typer'" in result.stderr
    heavy = {
        "copier",
        "torch",
        "yaml",
        "jinja2",
        "pydantic",
        "rich",
        "prompt_toolkit",
        "matplotlib",
        "fastproj.runs",
    }
    assert not heavy & {*ast.literal_eval(result.stderr)}


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TERM": ""},
        {"PYTHONIOENCODING": "ascii", "TERM": "dumb"},
    ],
)
def test_other_encodings_and_terminals(
    variables: dict[str, str], fastproj: Fastproj, tmp_path: Path
) -> None:
    (tmp_path / ".gitconfig").write_bytes(b"[user]\nname = Ad\xe9\nemail = a@b\n")
    author = [] if "LC_ALL" in variables else ["--author", "\u5f20"]
    fastproj(
        "new",
        "proj",
        "--yes",
        *author,
        cwd=tmp_path,
        HOME=str(tmp_path),
        **variables,
    )
