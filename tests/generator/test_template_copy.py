"""The program's local copy of the template: always complete, and with all releases of the program that runs."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fastproj.shared.embedded import entries
from fastproj.shared.versions import newest
from history import REFRESH, RELEASES, Repository, program_in, refresh, start
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
    assert refresh(programs["checkout"], home) == "v0.3.1.dev0"
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
        ("checkout", "v0.3.1.dev0", [*RELEASES, "0.3.1.dev0"]),
    ]:
        assert refresh(programs[program], home) == tag
        assert held_versions(home) == held
        assert clones(home, tmp_path / "clone")


def test_development_entry_of_a_checkout_is_replaced(tmp_path: Path, home: Path) -> None:
    checkout = Repository(tmp_path / "checkout")
    checkout.three_releases()
    program = program_in(checkout)
    refresh(program, home)
    before = entries(home / "template.bundle")
    written = (home / "template.bundle").stat().st_mtime_ns
    refresh(program, home)
    assert (home / "template.bundle").stat().st_mtime_ns == written, "the same entries are not written again"
    checkout.write({"template/project/new.txt": "changed\n"})
    assert refresh(program, home) == "v0.3.1.dev0"
    after = entries(home / "template.bundle")
    assert {version for version in after if after[version] != before[version]} == {"0.3.1.dev0"}
    checkout.commit("Release 0.4.0", "0.4.0")
    assert refresh(program, home) == "v0.4.0"
    assert held_versions(home) == [*RELEASES, "0.4.0"]


def test_concurrent_refreshes_keep_the_copy_complete(
    programs: dict[str, dict[str, str]], home: Path, tmp_path: Path
) -> None:
    kinds = ["0.1.0", "checkout", "0.3.0", "archive", "0.2.0"]
    running = [start(programs[kind], home) for kind in kinds * 4]
    reads = 0
    while any(process.poll() is None for process in running):
        with contextlib.suppress(FileNotFoundError):
            reads += bool(entries(home / "template.bundle"))
        time.sleep(0.005)
    messages = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), messages
    assert reads
    assert held_versions(home) in (["0.4.0"], [*RELEASES], [*RELEASES, "0.3.1.dev0"])
    assert clones(home, tmp_path / "clone")


@pytest.fixture
def stuck(tmp_path: Path) -> str:
    """A PATH whose git reports that it is about to pack, and then hangs."""
    (tmp_path / "bin").mkdir()
    real = shutil.which("git")
    script = f'#!/bin/sh\ncase " $* " in *" pack-objects "*) touch {tmp_path}/packing; exec sleep 60;; esac\n'
    (tmp_path / "bin/git").write_text(f'{script}exec {real} "$@"\n')
    (tmp_path / "bin/git").chmod(0o755)
    return f"{tmp_path}/bin:{os.environ['PATH']}"


def packing(program: dict[str, str], path: str, home: Path) -> subprocess.Popen[str]:
    """Start a refresh, and return while it packs."""
    environment = program | {"PATH": path, "FASTPROJ_HOME": str(home)}
    process = subprocess.Popen([sys.executable, "-c", REFRESH], env=environment, start_new_session=True, text=True)
    while not (home.parent / "packing").exists():
        assert process.poll() is None
        time.sleep(0.01)
    return process


def test_kill_during_refresh_keeps_the_previous_copy(
    programs: dict[str, dict[str, str]], home: Path, stuck: str, tmp_path: Path
) -> None:
    refresh(programs["0.2.0"], home)
    before = (home / "template.bundle").read_bytes()
    process = packing(programs["checkout"], stuck, home)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert (home / "template.bundle").read_bytes() == before
    (left,) = home.glob(".bundle.fastproj-*")
    os.utime(left, (0, 0))
    assert refresh(programs["checkout"], home) == "v0.3.1.dev0"
    assert held_versions(home) == [*RELEASES, "0.3.1.dev0"], "the next one removed the folder of the killed one"


def test_hanging_refresh_delays_no_other(programs: dict[str, dict[str, str]], home: Path, stuck: str) -> None:
    refresh(programs["0.2.0"], home)
    process = packing(programs["checkout"], stuck, home)
    try:
        assert refresh(programs["0.1.0"], home) == "v0.1.0"
        assert refresh(programs["0.3.0"], home) == "v0.3.0"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert list(entries(home / "template.bundle")) == [*RELEASES]


ON_MACOS = "import platformdirs, platformdirs.macos\nplatformdirs.PlatformDirs = platformdirs.macos.MacOS\n"
PLACES = [
    ("", {}, "~/.local/share/fastproj"),
    ("", {"XDG_DATA_HOME": "{home}/data"}, "~/data/fastproj"),
    ("", {"XDG_DATA_HOME": "{home}-other"}, "{home}-other/fastproj"),
    ("", {"FASTPROJ_HOME": "{home}/else/where"}, "{home}/else/where"),
    (ON_MACOS, {}, "~/Library/Application Support/fastproj"),
]


@pytest.mark.parametrize(("platform", "variables", "place"), PLACES, ids=[place for *_, place in PLACES])
def test_copy_is_in_the_platforms_folder(
    programs: dict[str, dict[str, str]], home: Path, platform: str, variables: dict[str, str], place: str
) -> None:
    code = f"{platform}from fastproj.shared.embedded import location, refresh_copy; refresh_copy(); print(location())"
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
print(found.own, found.version, found.location)
"""


def opened(location: str, program: dict[str, str], work: Path) -> str:
    """Open a recorded template in a new process, and return what it is, or the error."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    run = [sys.executable, "-c", OPEN, location, str(work)]
    result = subprocess.run(run, env=program, capture_output=True, text=True, check=False)
    return result.stdout.strip() or result.stderr.strip().splitlines()[-1]


def test_recorded_locations_stay_valid(programs: dict[str, dict[str, str]], home: Path, tmp_path: Path) -> None:
    """Of earlier releases and of other machines; and a newer program updates the copy that plain copier reads there."""
    former, macos = home / ".fastproj", home / "Library/Application Support/fastproj"
    refresh(programs["0.2.0"], former)
    for location in (
        "~/.fastproj/template.bundle",
        "~/Library/Application Support/fastproj/template.bundle",
        "~/snap/code/1/.local/share/fastproj/template.bundle",  # of another XDG_DATA_HOME
    ):
        found = opened(location, programs["0.3.0"] | {"HOME": str(home)}, tmp_path / "work")
        assert found == f"True v0.3.0 {location}", "an update records the same"
    outside = opened(
        "/scratch/ada/fastproj/template.bundle", programs["0.3.0"] | {"HOME": str(home)}, tmp_path / "work"
    )
    assert outside == "True v0.3.0 ~/.local/share/fastproj/template.bundle"
    assert held_versions(former) == [*RELEASES]
    assert not macos.exists()
    assert not (home / "snap").exists()
    missing = opened("~/data/template.bundle", programs["0.3.0"] | {"HOME": str(home)}, tmp_path / "work")
    assert missing.endswith("~/.local/share/fastproj/template.bundle is the one of this program")


def test_home_that_cannot_be_written_to_needs_none(programs: dict[str, dict[str, str]], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = programs["0.3.0"] | {"HOME": str(tmp_path / "file")}
    location, work = "~/.fastproj/template.bundle", tmp_path / "work"
    assert opened(location, environment, work).endswith("set FASTPROJ_HOME to a writable folder")
    environment["XDG_DATA_HOME"] = str(tmp_path / "data")
    assert opened(location, environment, work) == f"True v0.3.0 {location}"
    assert (tmp_path / "data/fastproj/template.bundle").exists()
