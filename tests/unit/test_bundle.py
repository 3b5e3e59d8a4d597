"""The bundle: one commit per release of the history, identical on every machine."""

import os
import subprocess
from pathlib import Path

import pytest
from bundles import _bare, archived, built, clone
from fastproj.template.embedded import entries
from fastproj.template.versions import newest
from history import RELEASES, Repository
from template_bundle import build


def test_each_entry_equals_the_template_of_its_commit(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
    repository, made = origin
    found = built(repository.folder, tmp_path)
    assert list(found) == [*RELEASES, "0.3.1.dev0"]
    subprocess.run(
        ["git", "clone", "--quiet", "--no-checkout", "template.bundle", "clone"],
        cwd=tmp_path,
        check=True,
    )
    taken = Repository(tmp_path / "clone")
    for version, commit in made.items():
        entry = archived(taken.folder, f"v{version}")
        assert entry == archived(repository.folder, commit, "copier.yml", "template")
        assert taken.git("rev-parse", f"v{version}") == found[version]
        assert (
            taken.git("log", "--format=%P %s %an", f"v{version}") == f"Template {version} fastproj"
        )
    assert archived(taken.folder, "v0.3.1.dev0") == archived(
        repository.folder, "HEAD", "copier.yml", "template"
    )
    assert taken.git("rev-parse", "origin/HEAD") == found["0.3.1.dev0"]


def test_bundle_is_byte_identical_wherever_it_is_built(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
    repository, _ = origin
    build(repository.folder, tmp_path / "first.bundle")
    loose = Repository(tmp_path / "loose", date="2030-03-03T03:03:03+0300")
    loose.three_releases()  # other commits, not packed
    packed = clone(repository, tmp_path / "packed", "--no-local")
    packed.git("repack", "-adfq", "--depth=50", "--write-bitmap-index")
    packed.git("worktree", "add", "--quiet", str(tmp_path / "worktree"))
    borrowed = clone(repository, tmp_path / "borrowed", "--shared")
    for number, folder in enumerate(
        [loose.folder, packed.folder, tmp_path / "worktree", borrowed.folder]
    ):
        build(folder, tmp_path / f"{number}.bundle")
        assert (tmp_path / f"{number}.bundle").read_bytes() == (
            tmp_path / "first.bundle"
        ).read_bytes()


def test_settings_of_the_caller_do_not_change_the_bundle(
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
    (mine.folder / ".git/info/attributes").write_text(
        "* text eol=crlf\npyproject.toml -diff\n*.txt filter=upper\n"
    )
    mine.git("config", "filter.upper.clean", "tr a-z A-Z")
    (tmp_path / "attributes").write_text("*.txt filter=upper\n")
    settings = f"[core]\nautocrlf = true\nattributesFile = {tmp_path}/attributes\n[filter.upper]\n"
    (tmp_path / ".gitconfig").write_text(
        settings.replace("filter.upper", 'filter "upper"') + "clean = tr a-z A-Z\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "x")
    assert built(mine.folder, tmp_path / "again") == expected
    assert not (tmp_path / "index").exists()


def test_later_releases_keep_earlier_entries(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
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


def test_working_tree_is_the_last_entry_between_releases(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
    repository, made = origin
    mine = clone(repository, tmp_path / "mine")
    before = built(mine.folder, tmp_path)
    mine.write(
        {
            "template/project/new.txt": "mine\n",
            "template/project/x.log": "ignored\n",
            "template/y": "new\n",
        }
    )
    after = built(mine.folder, tmp_path)
    assert after["0.3.1.dev0"] != before["0.3.1.dev0"]
    names = Repository(tmp_path).git(
        "--git-dir", str(_bare(tmp_path)), "ls-tree", "-r", "--name-only", "HEAD"
    )
    assert "template/y" in names
    assert "x.log" not in names
    mine.write({"template/project/x.log": "tracked\n"})
    mine.git("add", "--force", "template/project/x.log")
    mine.git("commit", "--quiet", "--message", "Tracked though ignored")
    built(mine.folder, tmp_path)
    assert "x.log" in Repository(tmp_path).git(
        "--git-dir", str(_bare(tmp_path)), "ls-tree", "-r", "HEAD"
    )

    mine.git("checkout", "--quiet", "--force", made["0.2.0"])
    mine.write({"template/project/new.txt": "changed after the release\n"})
    found = built(mine.folder, tmp_path)
    assert list(found) == ["0.1.0", "0.2.0", "0.2.1.dev0"], (
        "a release is never what was changed after it"
    )
    assert found["0.2.0"] == before["0.2.0"]

    mine.version("0.9.0")
    found = built(mine.folder, tmp_path)
    assert list(found) == ["0.1.0", "0.2.0", "0.9.0.dev0"], "nor what is not committed yet"


def test_incomplete_bundle_is_detected(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path
) -> None:
    assert built(origin[0].folder, tmp_path)
    bundle = tmp_path / "template.bundle"
    whole = bundle.read_bytes()
    spoiled = {
        "empty": b"",
        "random": os.urandom(5000),
        "half": whole[: len(whole) // 2],
        "a byte short": whole[:-1],
        "head": whole[:60],
        "a bit": whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:],
        "another format": whole.replace(b"bundle", b"bungle", 1),
    }
    for name, content in spoiled.items():
        bundle.write_bytes(content)
        assert entries(bundle) == {}, name
