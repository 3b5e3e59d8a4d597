"""The bundle: each release of the history is one commit in it, the same on every machine, and copier can read it."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import copier
import pytest
from fastproj.shared.bundle import build, entries, newest, releases
from history import RELEASES, Repository


def contents(archive: bytes) -> dict[str, tuple[int, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        return {it.name: (it.mode, files.extractfile(it).read()) for it in files if it.isfile()}  # type: ignore[union-attr]


def archived(folder: Path, commit: str, *paths: str) -> dict[str, tuple[int, bytes]]:
    return contents(
        subprocess.run(["git", "archive", commit, *paths], cwd=folder, capture_output=True, check=True).stdout
    )


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, dict[str, str]]:
    """A repository with three releases, each with its own commit; tests that change it clone it first."""
    repository = Repository(tmp_path_factory.mktemp("origin"))
    return repository, repository.three_releases()


def clone(origin: Repository, folder: Path, *options: str) -> Repository:
    origin.git("clone", "--quiet", *options, str(origin.folder), str(folder))
    return Repository(folder, date="2027-07-07T07:07:07+0700")


def built(root: Path, folder: Path) -> dict[str, str]:
    build(root, folder / "template.bundle")
    return entries(folder / "template.bundle")


def test_each_release_is_its_commits_template(origin: tuple[Repository, dict[str, str]], tmp_path: Path) -> None:
    repository, made = origin
    found = built(repository.folder, tmp_path)
    assert list(found) == [*RELEASES, "0.3.1.dev0"]
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", "template.bundle", "clone"], cwd=tmp_path, check=True)
    taken = Repository(tmp_path / "clone")
    for version, commit in made.items():
        entry = archived(taken.folder, f"v{version}")
        assert entry == archived(repository.folder, commit, "copier.yml", "template")
        assert taken.git("rev-parse", f"v{version}") == found[version]
        assert taken.git("log", "--format=%P %s %an", f"v{version}") == f"Template {version} fastproj"
    assert archived(taken.folder, "v0.3.1.dev0") == archived(repository.folder, "HEAD", "copier.yml", "template")
    assert taken.git("rev-parse", "origin/HEAD") == found["0.3.1.dev0"]


def test_the_bytes_are_the_same_wherever_it_is_built(origin: tuple[Repository, dict[str, str]], tmp_path: Path) -> None:
    repository, _ = origin
    build(repository.folder, tmp_path / "first.bundle")
    loose = Repository(tmp_path / "loose", date="2030-03-03T03:03:03+0300")
    loose.three_releases()  # other commits, not packed
    packed = clone(repository, tmp_path / "packed", "--no-local")
    packed.git("repack", "-adfq", "--depth=50", "--write-bitmap-index")
    packed.git("worktree", "add", "--quiet", str(tmp_path / "worktree"))
    borrowed = clone(repository, tmp_path / "borrowed", "--shared")
    for number, folder in enumerate([loose.folder, packed.folder, tmp_path / "worktree", borrowed.folder]):
        build(folder, tmp_path / f"{number}.bundle")
        assert (tmp_path / f"{number}.bundle").read_bytes() == (tmp_path / "first.bundle").read_bytes()


def test_no_setting_of_the_caller_changes_it(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, made = origin
    expected = built(repository.folder, tmp_path)
    mine = clone(repository, tmp_path / "mine")
    mine.git("config", "core.autocrlf", "true")
    mine.git("config", "log.showRoot", "false")
    mine.git("config", "diff.noprefix", "true")
    mine.git("config", "pack.window", "0")
    mine.git("replace", made["0.2.0"], made["0.1.0"])
    (mine.folder / ".git/info/attributes").write_text("* text eol=crlf\npyproject.toml -diff\n*.txt filter=upper\n")
    mine.git("config", "filter.upper.clean", "tr a-z A-Z")
    (tmp_path / "attributes").write_text("*.txt filter=upper\n")
    settings = f"[core]\nautocrlf = true\nattributesFile = {tmp_path}/attributes\n[filter.upper]\n"
    (tmp_path / ".gitconfig").write_text(settings.replace("filter.upper", 'filter "upper"') + "clean = tr a-z A-Z\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "x")
    assert built(mine.folder, tmp_path / "again") == expected
    assert not (tmp_path / "index").exists()


def test_later_releases_move_no_earlier_one(origin: tuple[Repository, dict[str, str]], tmp_path: Path) -> None:
    repository, made = origin
    mine = clone(repository, tmp_path / "mine")
    seen: dict[str, str] = {}
    for version, commit in made.items():
        mine.git("checkout", "--quiet", commit)
        found = built(mine.folder, tmp_path)
        assert seen.items() <= found.items()
        assert newest(found) == version, "at a release, the release itself is the newest"
        seen = found
    mine.git("checkout", "--quiet", "main")
    assert seen.items() <= built(mine.folder, tmp_path).items()


def test_between_releases_the_files_as_they_are_come_last(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
    repository, made = origin
    mine = clone(repository, tmp_path / "mine")
    before = built(mine.folder, tmp_path)
    mine.write({"template/project/new.txt": "mine\n", "template/project/x.log": "ignored\n", "template/y": "new\n"})
    after = built(mine.folder, tmp_path)
    assert after["0.3.1.dev0"] != before["0.3.1.dev0"]
    names = Repository(tmp_path).git("--git-dir", str(_bare(tmp_path)), "ls-tree", "-r", "--name-only", "HEAD")
    assert "template/y" in names
    assert "x.log" not in names
    mine.write({"template/project/x.log": "tracked\n"})
    mine.git("add", "--force", "template/project/x.log")
    mine.git("commit", "--quiet", "--message", "Tracked though ignored")
    built(mine.folder, tmp_path)
    assert "x.log" in Repository(tmp_path).git("--git-dir", str(_bare(tmp_path)), "ls-tree", "-r", "HEAD")

    mine.git("checkout", "--quiet", "--force", made["0.2.0"])
    mine.write({"template/project/new.txt": "changed after the release\n"})
    found = built(mine.folder, tmp_path)
    assert list(found) == ["0.1.0", "0.2.0", "0.2.1.dev0"], "a release is never what was changed after it"
    assert found["0.2.0"] == before["0.2.0"]

    mine.version("0.9.0")
    found = built(mine.folder, tmp_path)
    assert list(found) == ["0.1.0", "0.2.0", "0.9.0.dev0"], "nor what is not committed yet"


def _bare(folder: Path) -> Path:
    shutil.rmtree(folder / "bare.git", ignore_errors=True)
    command = ["git", "clone", "--quiet", "--bare", str(folder / "template.bundle"), str(folder / "bare.git")]
    subprocess.run(command, check=True)
    return folder / "bare.git"


@pytest.mark.parametrize("kind", ["archive", "shallow", "partial", "elsewhere", "unborn", "sha256"])
def test_without_a_history_the_files_are_the_only_entry(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path, kind: str
) -> None:
    repository, _ = origin
    folder = tmp_path / "mine"
    if kind == "shallow":
        clone(repository, folder, "--depth=1", "--no-local")
    elif kind == "partial":
        repository.git("config", "uploadpack.allowFilter", "true")
        clone(repository, folder, "--no-local", "--filter=blob:limit=100")  # pyproject.toml is smaller than that
        assert list(folder.glob(".git/objects/pack/*.promisor"))
    else:
        folder.mkdir()
        archive = subprocess.run(["git", "archive", "main"], cwd=repository.folder, capture_output=True, check=True)
        subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
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


@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "in a repository about something else"])
def test_an_archive_of_a_release_is_that_release(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path, elsewhere: bool
) -> None:
    repository, made = origin
    if elsewhere:
        Repository(tmp_path).start()
        Repository(tmp_path).commit("Mine")
    archive = subprocess.run(["git", "archive", made["0.2.0"]], cwd=repository.folder, capture_output=True, check=True)
    (tmp_path / "mine").mkdir()
    subprocess.run(["tar", "-x"], cwd=tmp_path / "mine", input=archive.stdout, check=True)
    assert built(tmp_path / "mine", tmp_path) == {"0.2.0": releases(repository.folder)["0.2.0"]}


def test_a_folder_of_a_larger_repository_and_a_submodule(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
    repository, _ = origin
    expected = built(repository.folder, tmp_path)
    larger = Repository(tmp_path / "larger")
    larger.start()
    larger.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repository.folder), "as/module")
    assert built(larger.folder / "as/module", tmp_path) == expected
    inner = Repository(larger.folder / ":a folder [x]/tool")
    inner.write(RELEASES["0.1.0"])
    inner.version("0.1.0")
    larger.commit("Take in a tool")
    inner.version("0.1.1.dev0")
    found = built(inner.folder, tmp_path)
    assert list(found) == ["0.1.0", "0.1.1.dev0"]
    assert found["0.1.0"] == expected["0.1.0"]


def test_what_counts_as_a_release(tmp_path: Path) -> None:
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
def test_a_merge_hides_no_release(meanwhile: str, tmp_path: Path) -> None:
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
    mine.git("merge", "--quiet", "--no-ff", "--message", "Merge what was released meanwhile", "side")
    assert list(built(mine.folder, tmp_path)) == ["0.1.0", "0.1.1.dev0"]


def test_copier_renders_every_entry_and_updates_between_them(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path, environment: dict[str, str]
) -> None:
    repository, _ = origin
    found = built(repository.folder, tmp_path)
    for version in found:
        copier.run_copy(
            str(tmp_path / "template.bundle"), tmp_path / version, vcs_ref=f"v{version}", defaults=True, quiet=True
        )
        assert f"_commit: v{version}\n" in (tmp_path / version / ".copier-answers.yml").read_text()
    project = Repository(tmp_path / "0.1.0")
    assert (project.folder / "old.txt").exists()
    project.start()
    project.write({"mine.txt": "mine\n", "README.md": "# proj\n\nmine\n"})
    project.commit("Mine")
    update = [sys.executable, "-m", "copier", "update", "--quiet", "--defaults"]
    subprocess.run(update, cwd=project.folder, env=environment | {"https_proxy": "http://127.0.0.1:9"}, check=True)
    assert "_commit: v0.3.0\n" in (project.folder / ".copier-answers.yml").read_text(), "the newest that is no .dev"
    assert (project.folder / "new.txt").read_text() == "one\ntwo\nthree\nfour\n"
    assert not (project.folder / "old.txt").exists()
    assert (project.folder / "README.md").read_text() == "# proj\n\nmine\n"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: os.urandom(5000),
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: content[:60],
        lambda content: content[:-30] + bytes([content[-30] ^ 1]) + content[-29:],
        lambda content: content.replace(b"bundle", b"bungle", 1),
    ],
    ids=["empty", "random", "half", "a byte short", "head", "a bit", "another format"],
)
def test_a_bundle_that_is_not_whole_is_seen(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path, spoil: object
) -> None:
    assert callable(spoil)
    built(origin[0].folder, tmp_path)
    bundle = tmp_path / "template.bundle"
    bundle.write_bytes(spoil(bundle.read_bytes()))
    with pytest.raises(ValueError, match=str(bundle)):
        entries(bundle)


def test_versions_are_compared_as_versions() -> None:
    assert newest(["0.9.0", "0.10.0.dev0", "0.10.0rc1", "0.9.10"]) == "0.10.0rc1"
    assert newest(["1.0.0.dev3", "1.0.0"]) == "1.0.0"
