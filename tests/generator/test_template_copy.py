"""The program's local copy of the template: always complete, and with all releases of the program that runs."""

import contextlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fastproj.shared.embedded import entries
from fastproj.shared.versions import newest
from history import RELEASES, Repository, installed, refresh, start
from template_copy import clones, held_versions


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The program's folder, with its copy of the template."""
    return tmp_path / "home"


def test_newer_program_adds_releases_and_older_one_removes_none(
    programs: dict[str, dict[str, str]], home: Path, tmp_path: Path
) -> None:
    assert refresh(programs["0.1.0"], home) == "v0.1.0"
    assert held_versions(home) == ["0.1.0"]
    assert refresh(programs["0.3.0"], home) == "v0.3.0"
    newer = (home / "template.bundle").read_bytes()
    assert newer == Path(programs["0.3.0"]["PYTHONPATH"], "fastproj/_template.bundle").read_bytes()
    assert refresh(programs["0.2.0"], home) == "v0.2.0", "each renders its own version"
    assert (home / "template.bundle").read_bytes() == newer
    assert refresh(programs["development"], home) == "v0.3.1.dev0"
    assert held_versions(home) == [*RELEASES, "0.3.1.dev0"]
    assert refresh(programs["0.1.0"], home) == "v0.1.0"
    assert held_versions(home) == [*RELEASES, "0.3.1.dev0"]
    assert clones(home, tmp_path / "clone")


def test_program_without_the_others_releases_replaces_the_copy(
    programs: dict[str, dict[str, str]], home: Path, tmp_path: Path
) -> None:
    refresh(programs["0.2.0"], home)
    for program, tag, held in [
        ("archive", "v0.4.0", ["0.4.0"]),
        ("0.3.0", "v0.3.0", [*RELEASES]),
        ("development", "v0.3.1.dev0", [*RELEASES, "0.3.1.dev0"]),
    ]:
        assert refresh(programs[program], home) == tag
        assert held_versions(home) == held
        assert clones(home, tmp_path / "clone")


def test_other_files_of_a_development_version_replace_it(
    programs: dict[str, dict[str, str]], home: Path, tmp_path: Path
) -> None:
    refresh(programs["development"], home)
    before, written = entries(home / "template.bundle"), (home / "template.bundle").stat().st_mtime_ns
    refresh(programs["development"], home)
    assert (home / "template.bundle").stat().st_mtime_ns == written, "the same entries are not written again"
    changed = Repository(tmp_path / "changed")
    changed.three_releases()
    changed.write({"template/project/new.txt": "changed\n"})
    assert refresh(installed(changed, tmp_path / "site"), home) == "v0.3.1.dev0"
    after = entries(home / "template.bundle")
    assert {version for version in after if after[version] != before[version]} == {"0.3.1.dev0"}


def test_concurrent_refreshes_keep_the_copy_complete(
    programs: dict[str, dict[str, str]], home: Path, tmp_path: Path
) -> None:
    kinds = ["0.1.0", "development", "0.3.0", "archive", "0.2.0"]
    running = [start(programs[kind], home) for kind in kinds * 4]
    reads = 0
    while any(process.poll() is None for process in running):
        with contextlib.suppress(FileNotFoundError):
            reads += bool(entries(home / "template.bundle"))
        time.sleep(0.005)
    messages = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), messages
    assert reads
    # The archive has no history in common with the others, so any of them may be the last to write.
    of_each = [[*entries(Path(programs[kind]["PYTHONPATH"], "fastproj/_template.bundle"))] for kind in kinds]
    assert held_versions(home) in of_each
    assert clones(home, tmp_path / "clone")


PLACES = [({}, "~/.fastproj"), ({"FASTPROJ_HOME": "{home}/else/where"}, "{home}/else/where")]


@pytest.mark.parametrize(("variables", "place"), PLACES, ids=[place for _, place in PLACES])
def test_copy_is_in_the_home_folder(
    programs: dict[str, dict[str, str]], home: Path, variables: dict[str, str], place: str
) -> None:
    code = "from fastproj.shared.embedded import location, refresh_copy; refresh_copy(); print(location())"
    environment = programs["0.3.0"] | {"HOME": str(home)}
    environment |= {key: value.format(home=home) for key, value in variables.items()}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    recorded = place.format(home=home) + "/template.bundle"
    assert run.stdout == f"{recorded}\n"
    assert newest(entries(Path(recorded.replace("~", str(home))))) == "0.3.0"


OPEN = """
import sys
from pathlib import Path
from fastproj.shared.template import open_template
found = open_template(sys.argv[1], Path(sys.argv[2]))
print(found.newest, found.location)
"""


def opened(location: str, program: dict[str, str], work: Path) -> str:
    """Open a recorded template in a new process, and return what it is, or the error."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    run = [sys.executable, "-c", OPEN, location, str(work)]
    result = subprocess.run(run, env=program, capture_output=True, text=True, check=False)
    return result.stdout.strip() or result.stderr.strip().splitlines()[-1]


def test_recorded_locations_of_other_machines_stay_valid(
    programs: dict[str, dict[str, str]], home: Path, tmp_path: Path
) -> None:
    environment, work = programs["0.3.0"] | {"HOME": str(home)}, tmp_path / "work"
    assert opened("~/.fastproj/template.bundle", environment, work) == "v0.3.0 ~/.fastproj/template.bundle"
    of_another_home = opened("/home/ada/.fastproj/template.bundle", environment, work)
    assert of_another_home == "v0.3.0 ~/.fastproj/template.bundle"
    refresh(programs["0.1.0"], home / ".fastproj")
    elsewhere = opened("~/.fastproj/template.bundle", environment | {"FASTPROJ_HOME": str(tmp_path / "other")}, work)
    assert elsewhere == "v0.3.0 ~/.fastproj/template.bundle", "not what an older program left there"
    missing = opened("~/data/template.bundle", environment, work)
    assert missing.endswith("~/data/template.bundle is not on this machine: pass an existing folder, or a URL")


def test_home_that_cannot_be_written_to_needs_none(programs: dict[str, dict[str, str]], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = programs["0.3.0"] | {"HOME": str(tmp_path / "file")}
    location, work = "~/.fastproj/template.bundle", tmp_path / "work"
    assert opened(location, environment, work).endswith("set FASTPROJ_HOME to a writable folder")
    environment["FASTPROJ_HOME"] = str(tmp_path / "data")
    assert opened(location, environment, work) == f"v0.3.0 {location}"
    assert (tmp_path / "data/template.bundle").exists()
