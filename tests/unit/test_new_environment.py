"""`fastproj new` in unusual environments: git settings, home folders, other repositories."""

from pathlib import Path
from unittest import mock

import pytest
from program import Fastproj, read_tree
from updating import commit, git, read_answers

pytestmark = pytest.mark.usefixtures("small_template")


def test_missing_git_identity_is_reported(fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    home = {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": str(tmp_path / "home"),
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    result = fastproj("new", "proj", "--yes", cwd=tmp_path, **home)
    assert "git does not know you" in result.stdout
    assert (tmp_path / "proj/.git").is_dir()


def test_unwritable_home_error_names_fastproj_home(fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = fastproj(
        "new",
        "proj",
        "--yes",
        cwd=tmp_path,
        HOME=str(tmp_path / "file"),
        status=1,
    )
    assert "FASTPROJ_HOME" in result.stderr
    fastproj(
        "new", "proj", "--yes", cwd=tmp_path, HOME="/nowhere", FASTPROJ_HOME=str(tmp_path / "other")
    )
    assert read_answers(tmp_path / "proj")["_src_path"] == str(tmp_path / "other/template.bundle")


def test_no_repository_inside_a_repository(fastproj: Fastproj, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    result = fastproj("new", "proj", "--yes", cwd=tmp_path)
    assert not (tmp_path / "proj/.git").exists()
    assert "as the folder is in one" in result.stdout
    fastproj("new", "other", "--yes", "--no-git", cwd=tmp_path)


def test_hostile_git_settings_have_no_effect(fastproj: Fastproj, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "pre-commit").chmod(0o755)
    (tmp_path / "ignore").write_text("*\n")
    settings = "[user]\nname = A\nemail = a@b\n"
    settings += f"[core]\nhooksPath = {hooks}\nexcludesFile = {tmp_path}/ignore\n"
    settings += "autocrlf = true\n[protocol]\nallow = never\n[safe]\nbareRepository = explicit\n"
    (tmp_path / ".gitconfig").write_text(
        settings + "[commit]\ngpgSign = true\n[init]\ntemplateDir = /nowhere\n"
    )
    result = fastproj(
        "new",
        "proj",
        "--yes",
        cwd=tmp_path,
        HOME=str(tmp_path),
    )
    assert "a first commit" in result.stdout, result.stdout + result.stderr
    assert git(tmp_path / "proj", "status", "--porcelain") == ""
    assert not [
        name for name, content in read_tree(tmp_path / "proj").items() if b"\r\n" in content
    ]


def test_git_variables_of_the_caller_are_ignored(fastproj: Fastproj, tmp_path: Path) -> None:
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
    hostile = {
        "GIT_DIR": str(mine / ".git"),
        "GIT_INDEX_FILE": str(mine / ".git/index"),
        "GIT_WORK_TREE": str(mine),
    }
    hostile |= {
        "GIT_CONFIG_COUNT": "x",
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_ALLOW_PROTOCOL": "https",
    }
    result = fastproj("new", "proj", "--yes", cwd=tmp_path, **hostile)
    assert "a first commit" in result.stdout
    assert (
        git(mine, "status", "--porcelain=2", "--branch"),
        (mine / ".git/HEAD").read_text(),
    ) == before


@pytest.mark.parametrize("value", ["rel", "~/there"])
def test_fastproj_home_may_be_relative(value: str, fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    fastproj(
        "new", "proj", "--yes", "-o", "sub", cwd=tmp_path, FASTPROJ_HOME=value, HOME=str(tmp_path)
    )
    recorded = Path(str(read_answers(tmp_path / "sub/proj")["_src_path"]))
    assert recorded.is_absolute()
    assert recorded.is_file()


def test_home_folder_that_is_not_known(fastproj: Fastproj, tmp_path: Path) -> None:
    result = fastproj(
        "new", "proj", "--yes", cwd=tmp_path, FASTPROJ_HOME="~nobody-of-this-name/x", status=1
    )
    assert "set FASTPROJ_HOME to a writable folder" in result.stderr
    with mock.patch("pathlib.Path.expanduser", side_effect=RuntimeError):
        result = fastproj("new", "proj", "--yes", cwd=tmp_path, status=1)
    assert "set FASTPROJ_HOME to a writable folder" in result.stderr


def test_name_of_the_user_that_is_too_long_is_no_fault_of_the_template(
    fastproj: Fastproj, fork: Path, tmp_path: Path
) -> None:
    with (fork / "copier.yml").open("a") as questions:
        limit = "{% if author | length > 100 %}use at most 100 characters{% endif %}"
        questions.write(f'author: {{type: str, default: me, validator: "{limit}"}}\n')
    commit(fork)
    git(fork, "tag", "v0.4.0")
    (tmp_path / ".gitconfig").write_text(f"[user]\nname = {'long ' * 30}\nemail = a@b\n")
    command = ["new", "proj", "--yes", "--template", str(fork)]
    result = fastproj(
        *command,
        cwd=tmp_path,
        HOME=str(tmp_path),
        status=2,
    )
    assert result.stderr == "fastproj: --author: use at most 100 characters\n"
    fastproj(
        *command,
        "--author",
        "me",
        cwd=tmp_path,
        HOME=str(tmp_path),
    )


def test_line_break_in_the_path_is_named(fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "two\nlines").mkdir()
    fastproj("new", "proj", "--yes", cwd=tmp_path / "two\nlines")
    for command in ("status", "update", "components"):
        result = fastproj(command, cwd=tmp_path / "two\nlines/proj", status=1)
        assert "has a line break" in result.stderr
