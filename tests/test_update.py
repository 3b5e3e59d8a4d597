"""`fastproj update` through the real program: every release, in every state that a user's project may be in."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from conftest import Fastproj
from updating import VERSIONS, build, files_of, git, lost

Made = Callable[[str], Path]
State = Callable[[Path], None]


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The template's bundle as each release brought it."""
    return [build(tmp_path_factory.mktemp(f"bundle{number}"), number) for number in (1, 2, 3)]


@pytest.fixture(scope="session")
def rendered(bundles: list[Path], fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A project made from each release by the real program; its template's bundle is then the newest."""
    made: dict[str, Path] = {}

    def make(version: str) -> Path:
        if version not in made:
            folder = tmp_path_factory.mktemp("rendered")
            shutil.copy(bundles[VERSIONS.index(version)], folder / "team.bundle")
            done = fastproj("new", "proj", "--yes", "--template", str(folder / "team.bundle"), cwd=folder)
            assert done.returncode == 0, done.stderr
            shutil.copy(bundles[-1], folder / "team.bundle")
            made[version] = folder / "proj"
        return made[version]

    return make


@pytest.fixture
def project(rendered: Made, tmp_path: Path) -> Made:
    """A copy of such a project, to do with as one likes."""

    def copy(version: str = "v0.1.0") -> Path:
        return shutil.copytree(rendered(version), tmp_path / "proj", symlinks=True)

    return copy


def commit(project: Path, message: str = "mine") -> None:
    git(project, "add", "-A")
    git(project, "-c", "user.name=u", "-c", "user.email=u@example.org", "commit", "-qm", message, "--no-verify")


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


PACKAGE = Path("src/proj")


def untouched(project: Path) -> None:
    pass


def edited_far(project: Path) -> None:
    edit(project / PACKAGE / "engine.py", "return 20\n", "return 20 + 1  # mine, far away\n")


def edited_near(project: Path) -> None:
    edit(project / PACKAGE / "engine.py", "return 0\n", "return 0 + 1  # mine, just below\n")
    edit(project / "README.md", "Release", "My release")


def edited_same_line(project: Path) -> None:
    edit(project / PACKAGE / "engine.py", '"""Of release', '"""Mine, and of release')


def deleted(project: Path) -> None:
    (project / PACKAGE / "engine.py").unlink()
    (project / "logo.bin").unlink()


def renamed(project: Path) -> None:
    (project / PACKAGE / "engine.py").rename(project / PACKAGE / "motor.py")
    edit(project / PACKAGE / "motor.py", "return 20\n", "return 20 + 1  # mine, in a renamed file\n")


def edited_what_goes(project: Path) -> None:
    for name in ("old.py", "loop.py"):
        if (project / PACKAGE / name).exists():
            with (project / PACKAGE / name).open("a") as file:
                file.write(f"MINE = '{name}'\n")


def binary_on_both_sides(project: Path) -> None:
    (project / "logo.bin").write_bytes(b"\0mine" * 50)


def own_binary(project: Path) -> None:
    (project / "weights.bin").write_bytes(os.urandom(2000))


def ignored_elsewhere(project: Path) -> None:
    (project / "cache").mkdir()
    (project / "cache/data.bin").write_bytes(b"\0mine")
    (project / "mine.local").write_text("mine\n")


def untracked(project: Path) -> None:
    (project / "scratch.txt").write_text("mine, never added\n")


def repeated_blocks(project: Path) -> None:
    file = project / "configs/default.yaml"
    blocks = file.read_text().split("\n\n")
    blocks[-2] = blocks[-2].replace("workers: 4", "workers: 16  # mine, of the last block")
    blocks.insert(1, blocks[0].replace("train", "mine").replace("pinned: true", "pinned: false  # of my block"))
    file.write_text("\n\n".join(blocks))


def added_same_name(project: Path) -> None:
    (project / "docs").mkdir(exist_ok=True)
    (project / "docs/new.md").write_text("# My own page\n\nAll mine.\n")


def file_for_a_folder(project: Path) -> None:
    if not (project / PACKAGE / "extras").exists():
        (project / PACKAGE / "extras").write_text("a file of mine where the template will have a folder\n")


def crlf(project: Path) -> None:
    for file in (project / PACKAGE / "engine.py", project / "configs/default.yaml"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    edit_bytes(project / PACKAGE / "engine.py", b"return 20\r\n", b"return 21  # mine\r\n")


def edit_bytes(file: Path, old: bytes, new: bytes) -> None:
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new, 1))


def crlf_and_renamed(project: Path) -> None:
    content = (project / PACKAGE / "engine.py").read_bytes().replace(b"\n", b"\r\n")
    (project / PACKAGE / "engine.py").unlink()
    (project / PACKAGE / "motor.py").write_bytes(content.replace(b"return 20\r\n", b"return 21  # mine\r\n"))


def mode_changed(project: Path) -> None:
    (project / PACKAGE / "engine.py").chmod(0o755)
    (project / "README.md").chmod(0o755)


def made_a_link(project: Path) -> None:
    (project / "README.md").unlink()
    (project / "mine.md").write_text("mine\n")
    (project / "README.md").symlink_to("mine.md")


def own_model(project: Path) -> None:
    (project / PACKAGE / "model.py").write_text("# a network of my own\nSIZE = 99\n")


def odd_names(project: Path) -> None:
    for name in ("a b", "ä", 'quo"te', "tab\there", "-rf", "new\nline", os.fsdecode(b"\xff")):
        (project / name).write_text(f"mine, {len(name)}\n")


def detached(project: Path) -> None:
    commit_all = (project / "x.txt").write_text("mine\n")
    assert commit_all
    commit(project)
    git(project, "checkout", "-q", "--detach")


def failing_hooks(project: Path) -> None:
    hooks = project / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-commit", "post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc"):
        (hooks / name).write_text("#!/bin/sh\necho $0 >> $(git rev-parse --git-dir)/hooked\nexit 1\n")
        (hooks / name).chmod(0o755)


def own_attributes(project: Path) -> None:
    (project / ".gitattributes").write_text("*.yaml text eol=crlf\n*.py text=auto\n")
    edited_far(project)
    commit(project)
    (project / "configs/default.yaml").unlink()
    git(project, "checkout", "--", "configs")


def deleted_folder(project: Path) -> None:
    shutil.rmtree(project / "launch")


STATES = [
    untouched,
    edited_far,
    edited_near,
    edited_same_line,
    deleted,
    deleted_folder,
    renamed,
    edited_what_goes,
    binary_on_both_sides,
    own_binary,
    ignored_elsewhere,
    untracked,
    repeated_blocks,
    added_same_name,
    file_for_a_folder,
    crlf,
    crlf_and_renamed,
    mode_changed,
    made_a_link,
    own_model,
    odd_names,
    detached,
    failing_hooks,
    own_attributes,
]


@pytest.mark.parametrize("version", VERSIONS[:-1])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_nothing_is_lost(state: State, version: str, project: Made, fastproj: Fastproj) -> None:
    folder = project(version)
    rendered = files_of(folder)
    state(folder)
    if state is not untracked:
        git(folder, "add", "-A")
        if git(folder, "status", "--porcelain"):
            commit(folder)
    before, head = files_of(folder), git(folder, "rev-parse", "HEAD")
    (folder / ".git/hooked").unlink(missing_ok=True)
    done = fastproj("update", "--yes", cwd=folder)
    assert not (folder / ".git/hooked").exists(), "no hook ran"
    conflicts = bool(git(folder, "ls-files", "-u"))
    assert done.returncode == int(conflicts), done.stdout + done.stderr
    assert done.stderr == ""
    assert ("CONFLICT" in done.stdout) == conflicts
    assert lost(folder, before, rendered) == []
    assert git(folder, "rev-parse", "HEAD") == head
    changed = {line[3:] for line in git(folder, "status", "--porcelain").splitlines() if line[1] != " "}
    unmerged = {line.partition("\t")[2] for line in git(folder, "ls-files", "-u").splitlines()}
    assert changed <= {*unmerged, "? scratch.txt", "scratch.txt"}, "all is staged"
    assert not (folder / ".git/fastproj").exists()
    assert answers(folder)["_commit"] == "v0.3.0"

    undo = done.stdout.strip().splitlines()[-1]
    subprocess.run(undo, shell=True, check=state is not failing_hooks, cwd="/")  # noqa: S602
    assert git(folder, "status", "--porcelain", "--untracked-files=no") == ""
    assert files_of(folder) == before


def answers(project: Path) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load((project / ".copier-answers.yml").read_text())
    return found
