"""A template cannot render what git would execute, or a link that leaves the project."""

from pathlib import Path

import pytest
from fastproj.errors import FastprojError
from fastproj.template.inspection import check_rendered, is_of_git
from program import Fastproj
from updating import commit, git

OF_GIT = [
    ".git",
    ".GIT",
    ".Git",
    ".git ",
    ".git.",
    ".git. .",
    ".gitmodules",
    ".GITMODULES",
    ".gitmodules ",
]
ORDINARY = [
    ".gitignore",
    ".gitattributes",
    ".github",
    ".gitkeep",
    "git",
    "gitx",
    ".git-blame-ignore-revs",
    "x.git",
]


@pytest.mark.parametrize("name", OF_GIT)
def test_name_of_git(name: str, tmp_path: Path) -> None:
    assert is_of_git(name)
    (tmp_path / "a" / name).mkdir(parents=True)
    with pytest.raises(FastprojError, match="which git treats as its own"):
        check_rendered(tmp_path, "x")


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    check_rendered(tmp_path, "x")


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "..", "../x", "a/../../x", ".git/config", "a/.GIT/x", "~/../../.."]
)
def test_link_that_leaves_the_project(target: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(FastprojError, match="a symbolic link to"):
        check_rendered(tmp_path, "x")


CHAINS = {
    "through another link": {"a": "b/../../..", "b": "sub/deep"},
    "through a folder that is a link": {"sub/back": "..", "a": "sub/back/../x"},
    "out and back in, under the name that the folder has now": {
        "deep": "sub",
        "a": "deep/../../{name}/sub",
    },
    "to git's files by way of a link": {"here": ".", "a": "here/.git/hooks"},
}


@pytest.mark.parametrize("links", CHAINS.values(), ids=CHAINS)
def test_chain_of_links_that_leaves_the_project(links: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sub/deep").mkdir(parents=True)
    for name, target in links.items():
        (tmp_path / name).symlink_to(target.format(name=tmp_path.name))
    with pytest.raises(FastprojError, match="'a', a symbolic link to"):
        check_rendered(tmp_path, "x")


@pytest.mark.parametrize(
    "names",
    [
        ["HEAD", "objects", "refs"],
        ["head", "OBJECTS", "Refs"],
        ["HEAD", "commondir"],
    ],
)
def test_bare_repository(names: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / "docs" / name).mkdir(parents=True)
    with pytest.raises(FastprojError, match="'docs', which git treats as its own"):
        check_rendered(tmp_path, "x")
    (tmp_path / "docs" / names[1]).rename(tmp_path / "elsewhere")
    check_rendered(tmp_path, "x")


@pytest.mark.parametrize("target", ["a", "a/../b", "missing", ".", "link", "link/x"])
def test_link_inside_the_project(target: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "below").mkdir()
    (tmp_path / "below/link").symlink_to(f"../{target}")
    check_rendered(tmp_path, "x")


def test_template_sees_no_variable_and_no_home_of_the_user(
    fastproj: Fastproj, fork: Path, tmp_path: Path
) -> None:
    (fork / "project/seen.txt.jinja").write_text(
        "{{ '$MINE' | expandvars }} {{ '~' | expanduser }}\n"
    )
    (fork / "project/set.txt.jinja").write_text("{{ '$PATH' | expandvars }}\n")
    commit(fork)
    options = ["--yes", "--template", str(fork), "--output", str(tmp_path)]
    fastproj(
        "new",
        "proj",
        *options,
        MINE="mine",
        HOME=str(tmp_path),
    )
    variable, home = (tmp_path / "proj/seen.txt").read_text().split()
    assert variable == "$MINE"
    assert home != str(tmp_path)
    assert (tmp_path / "proj/set.txt").read_text() == "\n"


@pytest.mark.parametrize("url", ["{private}", "file://{private}", "../private"])
def test_submodule_of_a_template_is_never_a_local_repository(
    url: str, fastproj: Fastproj, fork: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "key.txt").write_text("secret\n")
    git(private, "init", "-q")
    commit(private)
    address = url.format(private=private)
    module = f'[submodule "x"]\n\tpath = project/x\n\turl = {address}\n'
    (fork / ".gitmodules").write_text(module)
    head = git(private, "rev-parse", "HEAD")
    git(fork, "add", ".gitmodules")
    git(fork, "update-index", "--add", "--cacheinfo", f"160000,{head},project/x")
    who = ["-c", "user.name=u", "-c", "user.email=u@example.org"]
    git(fork, *who, "commit", "-qm", "x")
    git(fork, "tag", "v0.4.0")
    result = fastproj(
        "new",
        "proj",
        "--yes",
        "--template",
        str(fork),
        cwd=tmp_path,
        status=1,
    )
    assert "transport 'file' not allowed" in result.stderr
    assert not (tmp_path / "proj").exists()


@pytest.mark.parametrize("line", ["_src_path: /elsewhere", "'_src_path': x", "_commit: v9.9.9"])
def test_template_cannot_record_another_one(
    line: str, fastproj: Fastproj, fork: Path, tmp_path: Path
) -> None:
    answers = fork / "project/{{ _copier_conf.answers_file }}.jinja"
    answers.write_text(f"{answers.read_text()}\n{line}\n")
    commit(fork)
    git(fork, "tag", "v0.4.0")
    result = fastproj(
        "new",
        "proj",
        "--yes",
        "--template",
        str(fork),
        cwd=tmp_path,
        status=1,
    )
    assert "records another location or version" in result.stderr
    assert not (tmp_path / "proj").exists()
