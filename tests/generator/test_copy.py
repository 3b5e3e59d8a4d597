"""The program's copy of the template: whole at any moment, never without a release that it once had."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fastproj.shared.bundle import build, entries, newest
from history import RELEASES, Repository, installed, program_in, refresh, start


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The program of three releases and of a checkout, and one without history: environments to run them in."""
    folder = tmp_path_factory.mktemp("programs")
    checkout = Repository(folder / "checkout")
    made = checkout.three_releases()
    found = {}
    for version in made:
        checkout.git("checkout", "--quiet", made[version])
        found[version] = installed(checkout, folder / version)
    checkout.git("checkout", "--quiet", "main")
    archive = Repository(folder / "archive")
    archive.write({"pyproject.toml": (checkout.folder / "pyproject.toml").read_text()})
    for name in ("copier.yml", "template"):
        source = checkout.folder / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, archive.folder / name)
    archive.version("0.4.0")
    found["archive"] = installed(archive, folder / "archived")
    found["checkout"] = program_in(checkout)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def held(home: Path) -> list[str]:
    assert os.listdir(home) == ["template.bundle"], "nothing else is left there"
    return list(entries(home / "template.bundle"))


def clones(home: Path, folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    command = ["git", "clone", "--quiet", str(home / "template.bundle"), str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_a_newer_program_brings_its_releases_and_an_older_one_takes_none_away(
    programs: dict[str, dict[str, str]], home: Path, tmp_path: Path
) -> None:
    assert refresh(programs["0.1.0"], home) == "v0.1.0"
    assert held(home) == ["0.1.0"]
    assert refresh(programs["0.3.0"], home) == "v0.3.0"
    newer = (home / "template.bundle").read_bytes()
    assert newer == Path(programs["0.3.0"]["PYTHONPATH"], "fastproj/_template.bundle").read_bytes()
    assert refresh(programs["0.2.0"], home) == "v0.2.0", "each renders its own version"
    assert (home / "template.bundle").read_bytes() == newer
    assert refresh(programs["checkout"], home) == "v0.3.1.dev0"
    assert held(home) == [*RELEASES, "0.3.1.dev0"]
    assert refresh(programs["0.1.0"], home) == "v0.1.0"
    assert held(home) == [*RELEASES, "0.3.1.dev0"]
    assert clones(home, tmp_path / "clone")


def test_a_program_without_history_loses_none_of_the_others(
    programs: dict[str, dict[str, str]], home: Path, tmp_path: Path
) -> None:
    refresh(programs["0.2.0"], home)
    assert refresh(programs["archive"], home) == "v0.4.0"
    assert held(home) == ["0.1.0", "0.2.0", "0.4.0"]
    assert refresh(programs["0.3.0"], home) == "v0.3.0"
    assert held(home) == ["0.1.0", "0.2.0", "0.3.0", "0.4.0"]
    assert refresh(programs["checkout"], home) == "v0.3.1.dev0"
    assert held(home) == ["0.1.0", "0.2.0", "0.3.0", "0.3.1.dev0", "0.4.0"]
    assert clones(home, tmp_path / "clone")
    assert Repository(tmp_path / "clone").git("describe", "--tags", "HEAD") == "v0.4.0"


def test_a_checkouts_own_entry_moves(tmp_path: Path, home: Path) -> None:
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
    assert held(home) == [*RELEASES, "0.4.0"]


def other_template(home: Path, version: str) -> None:
    """Put the bundle of somebody else's template there, made by git's own commands."""
    mine = Repository(home.parent / "other")
    mine.start()
    mine.write({"copier.yml": "_subdirectory: template\n", "template/mine.txt": "mine\n"})
    mine.commit("Mine")
    mine.git("tag", f"v{version}")
    mine.git("bundle", "create", "--quiet", str(home / "template.bundle"), "--all", "HEAD")


def a_fork(home: Path) -> None:
    """Put a bundle there whose history has other files under a version of ours, and a later one."""
    mine = Repository(home.parent / "other")
    mine.start()
    mine.write({**RELEASES["0.1.0"], "template/project/old.txt": "other\n"})
    mine.commit("Release", "0.1.0")
    mine.commit("Release", "9.9.9")
    build(mine.folder, home / "template.bundle")


def dangling_link(home: Path) -> None:
    (home / "template.bundle").unlink()
    (home / "template.bundle").symlink_to("nowhere")


SPOILT: dict[str, Callable[[Path], object]] = {
    "empty": lambda home: (home / "template.bundle").write_bytes(b""),
    "random": lambda home: (home / "template.bundle").write_bytes(os.urandom(3000)),
    "truncated": lambda home: os.truncate(home / "template.bundle", 900),
    "a byte short": lambda home: os.truncate(home / "template.bundle", (home / "template.bundle").stat().st_size - 1),
    "another's of a later version": lambda home: other_template(home, "9.9.9"),
    "another's of the same version": lambda home: other_template(home, "0.2.0"),
    "a fork's": a_fork,
    "a dangling link": dangling_link,
    "gone": lambda home: (home / "template.bundle").unlink(),
}


@pytest.mark.parametrize("program", ["0.2.0", "checkout"])
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_copy_that_is_not_ours_is_made_again(
    spoil: Callable[[Path], object], program: str, programs: dict[str, dict[str, str]], home: Path, tmp_path: Path
) -> None:
    tag = refresh(programs[program], home)
    right = entries(home / "template.bundle")
    spoil(home)
    assert refresh(programs[program], home) == tag
    assert entries(home / "template.bundle") == right
    assert clones(home, tmp_path / "clone")


def test_many_at_once_leave_a_whole_copy_at_any_moment(
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
    assert {*held(home)} >= {*RELEASES, "0.4.0"}
    assert clones(home, tmp_path / "clone")


@pytest.fixture
def stuck(tmp_path: Path) -> str:
    """A PATH whose git stops for good before it packs, after saying so."""
    (tmp_path / "bin").mkdir()
    real = shutil.which("git")
    script = f'#!/bin/sh\ncase " $* " in *" pack-objects "*) touch {tmp_path}/packing; exec sleep 60;; esac\n'
    (tmp_path / "bin/git").write_text(f'{script}exec {real} "$@"\n')
    (tmp_path / "bin/git").chmod(0o755)
    return f"{tmp_path}/bin:{os.environ['PATH']}"


def packing(program: dict[str, str], path: str, home: Path) -> subprocess.Popen[str]:
    """Start a refresh and return when it is in the middle."""
    environment = program | {"PATH": path, "FASTPROJ_HOME": str(home)}
    code = "from fastproj.shared.source import embedded; embedded()"
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True, text=True)
    while not (home.parent / "packing").exists():
        assert process.poll() is None
        time.sleep(0.01)
    return process


def test_a_kill_in_the_middle_leaves_the_copy_of_before(
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
    assert held(home) == [*RELEASES, "0.3.1.dev0"], "the next one swept it away"


def test_one_that_hangs_is_told_after_a_while_and_stops_no_reader(
    programs: dict[str, dict[str, str]], home: Path, stuck: str
) -> None:
    refresh(programs["0.2.0"], home)
    process = packing(programs["checkout"], stuck, home)
    try:
        assert refresh(programs["0.1.0"], home) == "v0.1.0", "what is there already needs no lock"
        code = "import fastproj.shared.source as s\ns._LOCK_TIMEOUT_S = 0.3\n"
        code += "try: s.embedded()\nexcept s.FastprojError as error: print(error)"
        output, message = start(programs["0.3.0"], home, code).communicate(timeout=60)
        assert output.startswith(f"another fastproj has been at work in {home}"), message
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert len(os.listdir(home)) == 2, "one that waited in vain swept nothing away"


def run_new(program: dict[str, str], folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "fastproj", "new", "proj", "--yes", "--output", str(folder)],
        env=program | changes,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("place", ["/proc/fastproj", "{}/file/below", "{}/taken"])
@pytest.mark.parametrize("program", ["0.3.0", "checkout"])
def test_a_home_that_cannot_be_written_is_one_line(
    place: str, program: str, programs: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken/template.bundle/x").mkdir(parents=True)
    done = run_new(programs[program], tmp_path / "out", FASTPROJ_HOME=place.format(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "set FASTPROJ_HOME to a writable folder" in done.stderr
    assert os.listdir(tmp_path / "out") == []
    assert os.listdir(tmp_path / "taken") == ["template.bundle"]


def test_a_whole_copy_in_a_folder_that_is_read_only_will_do(programs: dict[str, dict[str, str]], home: Path) -> None:
    refresh(programs["0.3.0"], home)
    code = (
        "import os, fastproj.shared.source as s\n"
        "def refuse(*a, **k): raise PermissionError(13, 'Permission denied')\n"  # root may write anywhere
        "os.mkdir = os.replace = refuse\n"
        "print(s.embedded().revision)"
    )
    for program in ("0.3.0", "0.2.0"):
        output, message = start(programs[program], home, code).communicate(timeout=60)
        assert output == f"v{program}\n", message


@pytest.mark.parametrize("spoil", [Path.unlink, lambda file: os.truncate(file, 500)], ids=["gone", "truncated"])
def test_a_damaged_installation_is_one_line(
    spoil: Callable[[Path], None], programs: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    site = shutil.copytree(programs["0.3.0"]["PYTHONPATH"], tmp_path / "site")
    spoil(site / "fastproj/_template.bundle")
    done = run_new(
        programs["0.3.0"] | {"PYTHONPATH": str(site)}, tmp_path / "out", FASTPROJ_HOME=str(tmp_path / "home")
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "reinstall fastproj" in done.stderr


def test_a_checkout_that_states_no_version_is_one_line(tmp_path: Path) -> None:
    checkout = Repository(tmp_path / "checkout")
    checkout.write({**RELEASES["0.1.0"], "pyproject.toml": "[project]\n[tool.x]\nversion = '1'\n"})
    done = run_new(program_in(checkout), tmp_path / "out", FASTPROJ_HOME=str(tmp_path / "home"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "pyproject.toml states no version" in done.stderr


def test_the_copy_lies_at_home_unless_it_is_moved(programs: dict[str, dict[str, str]], tmp_path: Path) -> None:
    code = "from fastproj.shared.source import embedded; print(embedded().location)"
    environment = programs["0.3.0"] | {"HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "~/.fastproj/template.bundle\n"
    assert newest(entries(tmp_path / ".fastproj/template.bundle")) == "0.3.0"
    elsewhere = str(tmp_path / "else/where")
    environment |= {"FASTPROJ_HOME": elsewhere}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == f"{elsewhere}/template.bundle\n"
    assert entries(Path(elsewhere, "template.bundle"))
