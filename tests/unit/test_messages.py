"""The messages of failures: the reason, no boilerplate, no password, and the way out."""

from pathlib import Path

import pytest
from fastproj.errors import printable
from fastproj.git import Result
from program import Fastproj
from updating import MakeProject, commit, edit

SSH = """ssh: Could not resolve hostname example: Name or service not known
fatal: Could not read from remote repository.

Please make sure you have the correct access rights
and the repository exists.
"""


ADD = """hint: something to know
error: insufficient permission for adding an object to repository database .git/objects
error: unable to index file 'x'
fatal: adding files failed
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SSH, "ssh: Could not resolve hostname example: Name or service not known"),
        (
            f"Warning: Permanently added it to the list of known hosts.\n{SSH}",
            SSH.partition("\n")[0],
        ),
        (
            ADD,
            "error: insufficient permission for adding an object to repository database "
            ".git/objects",
        ),
        ("", "no message"),
    ],
)
def test_reason_is_the_first_error_of_git(text: str, expected: str) -> None:
    assert Result([], 1, b"", text.encode()).reason == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:secret@host/x.git and more", "https://***@host/x.git and more"),
        ("'http://token@host/x'", "'http://***@host/x'"),
        ("ssh://git:secret@host/x", "ssh://git:***@host/x"),
        (
            "ssh://git@host/x git@host:x https://host/a@b",
            "ssh://git@host/x git@host:x https://host/a@b",
        ),
    ],
)
def test_passwords_are_hidden(text: str, expected: str) -> None:
    assert printable(text) == expected


@pytest.mark.parametrize(
    "text", ["a\x1b[2Jb", "a\nb", "a\rb", "a\x9bb", "a\u202eb", "a\u2028b", "a\udcffb", "a\x07b"]
)
def test_text_cannot_control_a_terminal(text: str) -> None:
    line = printable(text)
    assert (line.isprintable(), line[0], line[-1]) == (True, "a", "b")
    assert line.encode("ascii")
    assert printable(line) == line
    assert printable("größe 模型.py") == "größe 模型.py"


def test_password_in_the_answers_file_is_not_printed(
    make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project()
    file = folder / ".copier-answers.yml"
    location = file.read_text().partition("_src_path: ")[2].partition("\n")[0]
    edit(file, f"_src_path: {location}", "_src_path: https://user:secret@127.0.0.1:9/x.git")
    commit(folder)
    for command in (["status"], ["status", "--json"], ["update"]):
        result = fastproj(*command, cwd=folder, status=1)
        assert "https://***@127.0.0.1:9/x.git" in result.stderr
        assert "secret" not in result.stdout + result.stderr


def test_broken_git_settings_are_named(
    make_project: MakeProject, fastproj: Fastproj, tmp_path: Path
) -> None:
    (tmp_path / ".gitconfig").write_text("[broken\n")
    for command in (["status"], ["update"], ["new", "x", "--yes", "--output", str(tmp_path)]):
        result = fastproj(
            *command, cwd=make_project().rename(tmp_path / command[0]), HOME=str(tmp_path), status=1
        )
        assert f"bad config line 1 in file {tmp_path}/.gitconfig" in result.stderr


@pytest.mark.parametrize("version", ["HEAD", "main", "@"])
def test_version_that_may_move_is_refused(
    version: str, make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project()
    edit(folder / ".copier-answers.yml", "_commit: v0.1.0", f"_commit: '{version}'")
    commit(folder)
    result = fastproj("update", cwd=folder, status=1)
    assert f"has no version {version}" in result.stderr
