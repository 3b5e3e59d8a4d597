"""The program's local copy of the template: always complete, and never without a release that it once had."""

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
from history import RELEASES, Repository, program_in, refresh, start
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


def test_program_without_history_keeps_all_releases(
    programs: dict[str, dict[str, str]], home: Path, tmp_path: Path
) -> None:
    refresh(programs["0.2.0"], home)
    assert refresh(programs["archive"], home) == "v0.4.0"
    assert held_versions(home) == ["0.1.0", "0.2.0", "0.4.0"]
    assert refresh(programs["0.3.0"], home) == "v0.3.0"
    assert held_versions(home) == ["0.1.0", "0.2.0", "0.3.0", "0.4.0"]
    assert refresh(programs["checkout"], home) == "v0.3.1.dev0"
    assert held_versions(home) == ["0.1.0", "0.2.0", "0.3.0", "0.3.1.dev0", "0.4.0"]
    assert clones(home, tmp_path / "clone")
    assert Repository(tmp_path / "clone").git("describe", "--tags", "HEAD") == "v0.4.0"


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
    assert {*held_versions(home)} >= {*RELEASES, "0.4.0"}
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
    code = "from fastproj.shared.source import embedded; embedded()"
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True, text=True)
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
    assert len(os.listdir(home)) == 2, "its half-done folder"
    assert refresh(programs["checkout"], home) == "v0.3.1.dev0"
    assert held_versions(home) == [*RELEASES, "0.3.1.dev0"], "the next one swept it away"


def test_hanging_refresh_times_out_and_blocks_no_reader(
    programs: dict[str, dict[str, str]], home: Path, stuck: str
) -> None:
    refresh(programs["0.2.0"], home)
    process = packing(programs["checkout"], stuck, home)
    try:
        assert refresh(programs["0.1.0"], home) == "v0.1.0", "what is there already needs no lock"
        code = "import fastproj.shared.source as s\ns._LOCK_TIMEOUT_S = 0.3\n"
        code += "try: s.embedded()\nexcept s.FastprojError as error: print(error)"
        output, message = start(programs["0.3.0"], home, code).communicate(timeout=60)
        assert output.startswith(f"another fastproj has been using {home}"), message
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert len(os.listdir(home)) == 2, "one that waited in vain swept nothing away"


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
    code = f"{platform}from fastproj.shared.source import embedded; print(embedded().location)"
    environment = programs["0.3.0"] | {"HOME": str(home)}
    environment |= {key: value.format(home=home) for key, value in variables.items()}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    recorded = place.format(home=home) + "/template.bundle"
    assert run.stdout == f"{recorded}\n"
    assert newest(entries(Path(recorded.replace("~", str(home))))) == "0.3.0"


def test_recorded_locations_stay_valid(programs: dict[str, dict[str, str]], home: Path) -> None:
    """Of earlier releases and of other machines; and a newer program updates the copy that plain copier reads there."""
    former, macos = home / ".fastproj", home / "Library/Application Support/fastproj"

    def source(location: str, program: str = "0.3.0") -> str:
        code = "import sys; from fastproj.shared.source import from_location\n"
        code += "found = from_location(sys.argv[1]); print(found.own, found.location)"
        environment = programs[program] | {"HOME": str(home)}
        run = [sys.executable, "-c", code, location]
        result = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
        return result.stdout.strip() or result.stderr.strip().splitlines()[-1]

    own = "True ~/.local/share/fastproj/template.bundle"
    assert source("~/.fastproj/template.bundle", "0.2.0") == own
    assert held_versions(former) == ["0.1.0", "0.2.0"]
    assert source("~/Library/Application Support/fastproj/template.bundle") == own
    assert held_versions(macos) == held_versions(former) == [*RELEASES]
    assert source("~/snap/code/1/.local/share/fastproj/template.bundle") == own, "of another XDG_DATA_HOME"
    assert source("/scratch/ada/fastproj/template.bundle") == own, "of one outside of the home folder"
    assert not (home / "snap").exists()
    assert source("~/data/template.bundle").endswith(
        "~/.local/share/fastproj/template.bundle is the one of this program"
    )


def test_home_that_cannot_be_written_to_needs_none(programs: dict[str, dict[str, str]], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = programs["0.3.0"] | {"HOME": str(tmp_path / "file")}
    code = "from fastproj.shared.source import from_location\n"
    code += "print(from_location('~/.fastproj/template.bundle').location)"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.stderr.strip().endswith("set FASTPROJ_HOME to a writable folder")
    environment["XDG_DATA_HOME"] = str(tmp_path / "data")
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout == f"{tmp_path}/data/fastproj/template.bundle\n", run.stderr
