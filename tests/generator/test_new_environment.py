"""`fastproj new` in unusual environments: git settings, home folders, encodings, other repositories."""

from pathlib import Path

import pytest
from program import Fastproj, read_tree
from updating import git, read_answers


def test_no_identity_is_no_failure(fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    home = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "home"), "GIT_CONFIG_NOSYSTEM": "1"}
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, **home)
    assert done.returncode == 0, done.stderr
    assert "git does not know you" in done.stdout
    assert (tmp_path / "proj/.git").is_dir()


def test_an_unwritable_home_names_the_way_out(fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, HOME=str(tmp_path / "file"))
    assert done.returncode == 1
    assert "FASTPROJ_HOME" in done.stderr
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, HOME="/nowhere", FASTPROJ_HOME=str(tmp_path / "other"))
    assert done.returncode == 0, done.stderr
    assert read_answers(tmp_path / "proj")["_src_path"] == str(tmp_path / "other/template.bundle")


def test_inside_a_repository_it_makes_none(fastproj: Fastproj, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    done = fastproj("new", "proj", "--yes", cwd=tmp_path)
    assert done.returncode == 0
    assert not (tmp_path / "proj/.git").exists()
    assert "as it lies in one" in done.stdout
    assert fastproj("new", "other", "--yes", "--no-git", cwd=tmp_path).returncode == 0


def test_hostile_git_settings_do_no_harm(fastproj: Fastproj, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "pre-commit").chmod(0o755)
    (tmp_path / "ignore").write_text("*\n")
    settings = f"[user]\nname = A\nemail = a@b\n[core]\nhooksPath = {hooks}\nexcludesFile = {tmp_path}/ignore\n"
    settings += "autocrlf = true\n[protocol]\nallow = never\n[safe]\nbareRepository = explicit\n"
    (tmp_path / ".gitconfig").write_text(settings + "[commit]\ngpgSign = true\n[init]\ntemplateDir = /nowhere\n")
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, HOME=str(tmp_path))
    assert "a first commit" in done.stdout, done.stdout + done.stderr
    assert git(tmp_path / "proj", "status", "--porcelain") == ""
    assert not [name for name, content in read_tree(tmp_path / "proj").items() if b"\r\n" in content]


def test_a_repository_of_the_callers_is_not_touched(fastproj: Fastproj, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    git(mine, "init", "-q")
    (mine / "a").write_text("1")
    git(mine, "add", "a")
    git(mine, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "m")
    git(mine, "tag", "v0.1.0.dev0")
    (mine / "b").write_text("2")
    git(mine, "add", "b")
    before = (git(mine, "status", "--porcelain=2", "--branch"), (mine / ".git/HEAD").read_text())
    hostile = {"GIT_DIR": str(mine / ".git"), "GIT_INDEX_FILE": str(mine / ".git/index"), "GIT_WORK_TREE": str(mine)}
    hostile |= {"GIT_CONFIG_COUNT": "x", "GIT_DEFAULT_HASH": "sha256", "GIT_ALLOW_PROTOCOL": "https"}
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, **hostile)
    assert done.returncode == 0, done.stderr
    assert "a first commit" in done.stdout
    assert (git(mine, "status", "--porcelain=2", "--branch"), (mine / ".git/HEAD").read_text()) == before


@pytest.mark.parametrize("value", ["rel", "~/there"])
def test_the_programs_home_may_be_relative(value: str, fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    done = fastproj("new", "proj", "--yes", "-o", "sub", cwd=tmp_path, FASTPROJ_HOME=value, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    recorded = Path(str(read_answers(tmp_path / "sub/proj")["_src_path"]))
    assert recorded.is_absolute()
    assert recorded.is_file()


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"TERM": ""},
        {"TERM": "dumb"},
    ],
)
def test_other_encodings_and_terminals(variables: dict[str, str], fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_bytes(b"[user]\nname = Ad\xe9\nemail = a@b\n")
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, HOME=str(tmp_path), **variables)
    assert done.returncode == 0, done.stderr
    if "LC_ALL" not in variables:
        done = fastproj("new", "other", "--yes", "--author", "\u5f20", cwd=tmp_path, HOME=str(tmp_path), **variables)
        assert done.returncode == 0, done.stderr
