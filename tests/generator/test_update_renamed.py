"""A file that the template renames and rewrites: edits follow the table `renamed` of its copier.yml."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Fastproj
from updating import MakeProject, commit, edit, git, lost_edits, read_files

OLD, NEW = Path("src/proj/engine.py"), Path("src/proj/core/motor.py")
TABLE = """
renamed:
  type: yaml
  when: false
  default: |
    src/{{ package }}/engine.py: src/{{ package }}/parts/engine.py
    src/{{ package }}/parts/: src/{{ package }}/core/
    src/{{ package }}/core/engine.py: src/{{ package }}/core/motor.py
"""


@pytest.fixture
def template(bundles: list[Path], tmp_path: Path) -> list[str]:
    """Options for a template whose v0.4.0 moves `engine.py`, three functions in four of which it rewrites."""
    folder = tmp_path / "template"
    git(tmp_path, "clone", "-q", str(bundles[-1]), str(folder))
    package = folder / "project/src/{{ package }}"
    functions = (package / "engine.py").read_text().split("\n\n\n")
    functions[:30] = [f"class Part{number}:\n    '''Rewritten.'''\n\n    size = {number}" for number in range(30)]
    (package / "engine.py").unlink()
    (package / "core").mkdir()
    (package / "core/motor.py").write_text("\n\n\n".join(functions))
    with (folder / "copier.yml").open("a") as file:
        file.write(TABLE)
    commit(folder)
    git(folder, "tag", "v0.4.0")
    return ["--template", str(folder)]


def keep_shim(template: list[str]) -> None:
    """Let the template keep a small file at the old path."""
    (Path(template[1]) / "project/src/{{ package }}/engine.py").write_text("from .core.motor import *\n")
    commit(Path(template[1]))
    git(Path(template[1]), "tag", "-f", "v0.4.0")


@pytest.mark.parametrize("shim", [False, True])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_edit_arrives_at_the_new_path(
    shim: bool, ending: str, template: list[str], make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project("v0.1.0")
    edit(folder / OLD, "return 35\n", "return 35 + 1  # mine\n")
    (folder / OLD).write_bytes((folder / OLD).read_bytes().replace(b"\n", ending.encode()))
    commit(folder)
    if shim:
        keep_shim(template)
    result = fastproj("update", "--yes", *template, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    content = (folder / NEW).read_bytes()
    assert b"return 35 + 1  # mine" + ending.encode() in content
    assert b"class Part0:" in content
    assert content.count(b"\n") == content.count(ending.encode())
    assert (folder / OLD).exists() == shim


def test_conflict_is_at_the_new_path(template: list[str], make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.1.0")
    edit(folder / OLD, "return 20\n", "return 20 + 1  # mine\n")
    commit(folder)
    result = fastproj("update", "--yes", *template, cwd=folder)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"CONFLICT (content): Merge conflict in {NEW}" in result.stdout
    assert "return 20 + 1  # mine\n" in (folder / NEW).read_text()
    assert not (folder / OLD).exists()


def delete(folder: Path) -> None:
    (folder / OLD).unlink()


def rename(folder: Path) -> None:
    (folder / OLD).rename(folder / OLD.with_name("mine.py"))
    edit(folder / OLD.with_name("mine.py"), "return 35\n", "return 35 + 1  # mine\n")


def rename_like_the_template(folder: Path) -> None:
    (folder / NEW).parent.mkdir()
    (folder / OLD).rename(folder / NEW)
    edit(folder / NEW, "return 35\n", "return 35 + 1  # mine\n")


@pytest.mark.parametrize(
    ("change", "path"), [(delete, None), (rename, OLD.with_name("mine.py")), (rename_like_the_template, NEW)]
)
def test_deletion_or_rename_by_the_user_stays(
    change: Callable[[Path], None],
    path: Path | None,
    template: list[str],
    make_project: MakeProject,
    fastproj: Fastproj,
) -> None:
    folder = make_project("v0.1.0")
    change(folder)
    commit(folder)
    result = fastproj("update", "--yes", *template, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    found = [it for it in (OLD, NEW, OLD.with_name("mine.py")) if (folder / it).exists()]
    assert found == ([path] if path else [])
    if path:
        assert "class Part0:" in (folder / path).read_text()
        assert "return 35 + 1  # mine\n" in (folder / path).read_text()


def test_users_file_at_the_new_path_is_kept(template: list[str], make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.1.0")
    (folder / NEW).parent.mkdir()
    (folder / NEW).write_text("MINE = 1\n")
    edit(folder / OLD, "return 35\n", "return 35 + 1  # mine\n")
    commit(folder)
    result = fastproj("update", "--yes", *template, cwd=folder)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "MINE = 1" in (folder / NEW).read_text()
    assert any("return 35 + 1  # mine" in file.read_text() for file in (folder / "src").rglob("*.py"))


def file_at_the_folder(folder: Path) -> None:
    (folder / NEW.parent).write_text("notes of mine\n")


def link_at_the_folder(folder: Path) -> None:
    (folder / NEW.parent).symlink_to("../../configs")


def folder_at_the_file(folder: Path) -> None:
    (folder / NEW).mkdir(parents=True)
    (folder / NEW / "notes").write_text("notes of mine\n")


@pytest.mark.parametrize("change", [file_at_the_folder, link_at_the_folder, folder_at_the_file])
def test_users_file_in_the_way_of_a_rename_is_never_lost(
    change: Callable[[Path], None], template: list[str], make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project("v0.1.0")
    rendered = read_files(folder)
    change(folder)
    edit(folder / OLD, "return 35\n", "return 35 + 1  # mine\n")
    commit(folder)
    before = read_files(folder)
    result = fastproj("update", "--yes", *template, cwd=folder)
    assert (result.returncode, "CONFLICT" in result.stdout) == (1, True), result.stdout + result.stderr
    assert lost_edits(folder, before, rendered) == []
    after = read_files(folder)
    own = next(content for path, content in before.items() if path.startswith(str(NEW.parent)))
    assert own in after.values()
    assert any(b"return 35 + 1  # mine" in content for _, content in after.values())
    git(folder, "cherry-pick", "--abort")
    assert read_files(folder) == before


def test_project_in_a_folder_of_a_larger_repository(
    template: list[str], make_project: MakeProject, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = tmp_path / "large/proj"
    shutil.copytree(make_project("v0.1.0"), folder)
    shutil.rmtree(folder / ".git")
    git(folder.parent, "init", "-q")
    edit(folder / OLD, "return 35\n", "return 35 + 1  # mine\n")
    commit(folder.parent)
    assert fastproj("update", "--yes", *template, cwd=folder).returncode == 0
    assert "return 35 + 1  # mine\n" in (folder / NEW).read_text()
