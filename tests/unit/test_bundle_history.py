"""Which commits are releases, and what the bundle contains without a complete history."""

import subprocess
from pathlib import Path

import pytest
from bundles import built, clone
from fastproj.template.versions import newest
from history import RELEASES, Repository
from template_bundle import releases


@pytest.mark.parametrize("kind", ["archive", "shallow", "partial", "elsewhere", "unborn", "sha256"])
def test_bundle_without_history_has_one_entry(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path, kind: str
) -> None:
    repository, _ = origin
    folder = tmp_path / "mine"
    if kind == "shallow":
        clone(repository, folder, "--depth=1", "--no-local")
    elif kind == "partial":
        repository.git("config", "uploadpack.allowFilter", "true")
        # pyproject.toml is smaller than that
        clone(repository, folder, "--no-local", "--filter=blob:limit=100")
        assert list(folder.glob(".git/objects/pack/*.promisor"))
    else:
        folder.mkdir()
        archive = subprocess.run(
            ["git", "archive", "main"], cwd=repository.folder, capture_output=True, check=True
        )
        subprocess.run(
            ["tar", "-x"],
            cwd=folder,
            input=archive.stdout,
            check=True,
        )
    if kind == "elsewhere":  # in a repository that is about something else
        around = Repository(tmp_path)
        around.start()
        around.git("commit", "--quiet", "--allow-empty", "--message", "Mine")
    if kind == "unborn":
        Repository(folder).start()
    if kind == "sha256":
        Repository(folder).git("init", "--quiet", "--object-format=sha256")
        Repository(folder).commit("Release", "0.3.1.dev0")
    expected = built(repository.folder, tmp_path)["0.3.1.dev0"]
    assert built(folder, tmp_path) == {"0.3.1.dev0": expected}


@pytest.mark.parametrize(
    "elsewhere", [False, True], ids=["", "in a repository about something else"]
)
def test_archive_of_a_release_builds_that_release(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path, elsewhere: bool
) -> None:
    repository, made = origin
    if elsewhere:
        Repository(tmp_path).start()
        Repository(tmp_path).commit("Mine")
    archive = subprocess.run(
        [
            "git",
            "archive",
            made["0.2.0"],
        ],
        cwd=repository.folder,
        capture_output=True,
        check=True,
    )
    (tmp_path / "mine").mkdir()
    subprocess.run(
        ["tar", "-x"],
        cwd=tmp_path / "mine",
        input=archive.stdout,
        check=True,
    )
    assert built(tmp_path / "mine", tmp_path) == {"0.2.0": releases(repository.folder)["0.2.0"]}


def test_subfolder_of_a_repository_and_submodule(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
    repository, _ = origin
    expected = built(repository.folder, tmp_path)
    larger = Repository(tmp_path / "larger")
    larger.start()
    larger.git(
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        str(repository.folder),
        "as/module",
    )
    assert built(larger.folder / "as/module", tmp_path) == expected
    inner = Repository(larger.folder / ":a folder [x]/tool")
    inner.write(RELEASES["0.1.0"])
    inner.version("0.1.0")
    larger.commit("Take in a tool")
    inner.version("0.1.1.dev0")
    found = built(inner.folder, tmp_path)
    assert list(found) == ["0.1.0", "0.1.1.dev0"]
    assert found["0.1.0"] == expected["0.1.0"]


def test_which_commits_are_releases(tmp_path: Path) -> None:
    mine = Repository(tmp_path / "mine")
    mine.start()
    mine.commit("A version before there was a template", "0.0.1")
    mine.write(RELEASES["0.1.0"])
    mine.commit("The template", "0.1.0.dev0")
    for version in ("0.1.0rc1", "0.1.0a2", "0.1.0.dev1", "nonsense", "0.1"):
        mine.write({"template/project/new.txt": f"{version}\n"})
        mine.commit("Next", version)
    first = releases(mine.folder)
    assert list(first) == ["0.1"]
    mine.write({"pyproject.toml": "version = [broken"})
    mine.commit("Broken")
    mine.commit("Back to work", "0.2.0.dev0")
    mine.write({"template/project/new.txt": "other\n"})
    mine.commit("The same version once more", "0.1")
    assert releases(mine.folder) == first, "the first commit of a version is the release"
    assert list(built(mine.folder, tmp_path)) == ["0.1", "0.2.dev0"]


@pytest.mark.parametrize("meanwhile", ["0.1.0.dev0", "0.1.1.dev0"])
def test_release_on_a_merged_branch_is_found(meanwhile: str, tmp_path: Path) -> None:
    mine = Repository(tmp_path / "mine")
    mine.start()
    mine.write(RELEASES["0.1.0"])
    mine.commit("The template", "0.1.0.dev0")
    mine.git("checkout", "--quiet", "-b", "side")
    mine.commit("Release 0.1.0", "0.1.0")
    mine.commit("Go on", "0.1.1.dev0")
    mine.git("checkout", "--quiet", "main")
    mine.write({"template/project/old.txt": "mine\n"})
    mine.commit("Local work", meanwhile)
    mine.git(
        "merge", "--quiet", "--no-ff", "--message", "Merge what was released meanwhile", "side"
    )
    assert list(built(mine.folder, tmp_path)) == ["0.1.0", "0.1.1.dev0"]


def test_versions_are_compared_as_versions() -> None:
    assert newest(["0.9.0", "0.10.0.dev0", "0.10.0rc1", "0.9.10"]) == "0.10.0rc1"
    assert newest(["1.0.0.dev3", "1.0.0"]) == "1.0.0"
