"""The program's copy of the template is complete, with all releases of the program."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fastproj.errors import FastprojError
from fastproj.template import embedded
from fastproj.template.clone import Template, open_template
from fastproj.template.embedded import entries
from history import RELEASES, Repository
from template_bundle import build
from template_copy import clones, held_versions

Refresh = Callable[[str], str]


def test_newer_program_adds_releases_and_older_one_removes_none(
    packed: dict[str, Path], refresh: Refresh, copies: Path, tmp_path: Path
) -> None:
    assert refresh("0.1.0") == "v0.1.0"
    assert held_versions(copies) == ["0.1.0"]
    assert refresh("0.3.0") == "v0.3.0"
    newer = (copies / "template.bundle").read_bytes()
    assert newer == packed["0.3.0"].read_bytes()
    assert refresh("0.2.0") == "v0.2.0", "each renders its own version"
    assert (copies / "template.bundle").read_bytes() == newer
    assert refresh("development") == "v0.3.1.dev0"
    assert held_versions(copies) == [*RELEASES, "0.3.1.dev0"]
    assert refresh("0.1.0") == "v0.1.0"
    assert held_versions(copies) == [*RELEASES, "0.3.1.dev0"]
    assert clones(copies, tmp_path / "clone")


def test_program_without_the_others_releases_replaces_the_copy(
    refresh: Refresh, copies: Path, tmp_path: Path
) -> None:
    refresh("0.2.0")
    for program, tag, held in [
        ("archive", "v0.4.0", ["0.4.0"]),
        ("0.3.0", "v0.3.0", [*RELEASES]),
        ("development", "v0.3.1.dev0", [*RELEASES, "0.3.1.dev0"]),
    ]:
        assert refresh(program) == tag
        assert held_versions(copies) == held
        assert clones(copies, tmp_path / "clone")


def test_other_files_of_a_development_version_replace_it(
    refresh: Refresh, copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh("development")
    before = entries(copies / "template.bundle")
    written = (copies / "template.bundle").stat().st_mtime_ns
    refresh("development")
    assert (copies / "template.bundle").stat().st_mtime_ns == written, (
        "the same entries are not written again"
    )
    changed = Repository(tmp_path / "changed")
    changed.three_releases()
    changed.write({"template/project/new.txt": "changed\n"})
    build(changed.folder, tmp_path / "changed.bundle")
    monkeypatch.setattr(embedded, "_PACKED", tmp_path / "changed.bundle")
    assert embedded.refresh_copy()[1] == "v0.3.1.dev0"
    after = entries(copies / "template.bundle")
    assert {version for version in after if after[version] != before[version]} == {"0.3.1.dev0"}


PLACES = [({}, "~/.fastproj"), ({"FASTPROJ_HOME": "{home}/else/where"}, "{home}/else/where")]


@pytest.mark.parametrize(
    ("variables", "place"),
    PLACES,
    ids=[place for _, place in PLACES],
)
def test_copy_is_in_the_home_folder(
    variables: dict[str, str],
    place: str,
    refresh: Refresh,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FASTPROJ_HOME")
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home=tmp_path))
    refresh("0.3.0")
    recorded = place.format(home=tmp_path) + "/template.bundle"
    assert embedded.location() == recorded
    assert [*entries(Path(recorded).expanduser())] == [*RELEASES]


@pytest.fixture
def opened(
    refresh: Refresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Template]:
    """Opens a recorded template with the program of release 0.3.0, in another home folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FASTPROJ_HOME")
    numbers = iter(range(9))

    def run(location: str) -> Template:
        refresh("0.3.0")
        work = tmp_path / f"work{next(numbers)}"
        work.mkdir()
        return open_template(location, work)

    return run


def test_recorded_locations_of_other_machines_stay_valid(
    opened: Callable[[str], Template],
    refresh: Refresh,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = "~/.fastproj/template.bundle"
    for location in (own, "/home/ada/.fastproj/template.bundle"):
        assert (opened(location).newest, opened(location).location) == ("v0.3.0", own)
    refresh("0.1.0")
    monkeypatch.setenv("FASTPROJ_HOME", str(tmp_path / "other"))
    assert opened(own).newest == "v0.3.0", "not what an older program left there"
    with pytest.raises(
        FastprojError,
        match=r"~/data/template.bundle is not on this machine: pass an existing folder",
    ):
        opened("~/data/template.bundle")


def test_home_that_cannot_be_written_to_needs_none(
    opened: Callable[[str], Template], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(FastprojError, match="set FASTPROJ_HOME to a writable folder"):
        opened("~/.fastproj/template.bundle")
    monkeypatch.setenv("FASTPROJ_HOME", str(tmp_path / "data"))
    found = opened("~/.fastproj/template.bundle")
    assert (found.newest, found.location) == ("v0.3.0", "~/.fastproj/template.bundle")
    assert (tmp_path / "data/template.bundle").exists()
