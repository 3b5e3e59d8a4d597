"""The package installed from a wheel, offline and without its source."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from fastproj.template.embedded import entries
from history import Repository
from matrix import ROOT

PAST = ("0.0.1", "0.0.2")


def add_past(repository: Repository) -> None:
    """Add two earlier releases, which lack one file and have another."""
    pyproject = (repository.folder / "pyproject.toml").read_text()
    repository.start()
    (repository.folder / "template/project/Makefile.jinja").rename(
        repository.folder.parent / "Makefile.jinja"
    )
    repository.write({"template/project/early.txt": "early\n"})
    for version in PAST:
        repository.commit(f"Release {version}", version)
    (repository.folder.parent / "Makefile.jinja").rename(
        repository.folder / "template/project/Makefile.jinja"
    )
    repository.write({"template/project/early.txt": None, "pyproject.toml": pyproject})
    repository.commit("As it is now")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheels from a repository with two releases, and from its sdist without git."""
    folder = tmp_path_factory.mktemp("built")
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for file in filter(None, files.split("\0")):
        if (ROOT / file).exists():
            (folder / "tree" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / "tree" / file, follow_symlinks=False)
    add_past(Repository(folder / "tree"))

    def build(source: Path, kind: str) -> Path:
        output = folder / f"{source.name}-{kind}"
        command = [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            f"--{kind}",
            "--outdir",
            str(output),
            str(source),
        ]
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return next(output.iterdir())

    sdist = build(folder / "tree", "sdist")
    shutil.unpack_archive(sdist, folder / "unpacked", filter="data")
    source = next((folder / "unpacked").iterdir())
    assert not (source / ".git").exists()
    made = {"tree": build(folder / "tree", "wheel"), "sdist": build(source, "wheel")}
    for name in ("tree", "unpacked"):
        shutil.rmtree(folder / name)
    return made


def test_wheel_contains_the_bundle_and_no_template_files(built: dict[str, Path]) -> None:
    contents = []
    for file in map(zipfile.ZipFile, built.values()):
        contents.append({name: file.read(name) for name in file.namelist()})
    assert contents[0] == contents[1]
    names = contents[0].keys()
    assert "fastproj/_template.bundle" in names
    assert "fastproj/copier.yml" in names
    assert "fastproj/pages/optimization.md" in names
    assert "fastproj/py.typed" in names, "type checkers use its annotations"
    page = "fastproj/runs/page.html.jinja"  # of a report
    endings = (".jinja", "/component.py", ".pyc")
    assert [name for name in names if name.endswith(endings)] == [page]
    assert built["tree"].stat().st_size < 1_000_000


def test_readme_of_the_index_has_no_links_into_the_repository(built: dict[str, Path]) -> None:
    metadata = next(
        name for name in zipfile.ZipFile(built["sdist"]).namelist() if name.endswith("/METADATA")
    )
    readme = zipfile.ZipFile(built["sdist"]).read(metadata).decode().partition("\n\n")[2]
    assert readme.startswith("# fastproj\n")
    assert re.findall(r"(?:\]\(|(?:src|href|srcset)=\")(?!https?:|#)[^)\"]*", readme) == []


def test_readme_has_absolute_links_once_the_repository_is_known() -> None:
    sys.path.insert(0, str(ROOT))
    try:
        from hatch_build import for_index
    finally:
        sys.path.remove(str(ROOT))
    images = '![chart](docs/a.svg) <img width="9" src="docs/b.svg">'
    text = f"{images} [docs](docs/x.md#y) [uv](https://u.example) [here](#z)"
    assert for_index(text, None) == "  docs [uv](https://u.example) [here](#z)"
    assert for_index(text, "https://h.example/r") == (
        "![chart](https://h.example/r/raw/HEAD/docs/a.svg) "
        '<img width="9" src="https://h.example/r/raw/HEAD/docs/b.svg"> '
        "[docs](https://h.example/r/blob/HEAD/docs/x.md#y) [uv](https://u.example) [here](#z)"
    )


def test_bundle_has_every_release(built: dict[str, Path], tmp_path: Path) -> None:
    bundle = zipfile.ZipFile(built["sdist"]).read("fastproj/_template.bundle")
    (tmp_path / "template.bundle").write_bytes(bundle)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert list(entries(tmp_path / "template.bundle")) == [*PAST, declared]


def test_installed_wheel_renders_offline(
    built: dict[str, Path], environment: dict[str, str], tmp_path: Path
) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "venv",
            "--without-pip",
            str(tmp_path / "env"),
        ],
        check=True,
    )
    python = tmp_path / "env/bin/python"
    packages = next((tmp_path / "env/lib").glob("python*/site-packages"))
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*install, str(built["sdist"])], check=True)
    # Its requirements come from this environment, after its own packages, so that the wheel hides
    # the editable one.
    (packages / "requirements.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    home = environment | {
        "HOME": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "https_proxy": "http://127.0.0.1:9",
    }
    program = str(tmp_path / "env/bin/fastproj")

    def run(*arguments: str) -> str:
        result = subprocess.run(
            [program, *arguments],
            cwd=tmp_path,
            env=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    where = subprocess.run(
        [str(python), "-c", "import fastproj; print(fastproj.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path) in where.stdout
    run("new", "proj", "--yes", "--model", "gpt")
    assert (tmp_path / "proj/src/proj/model.py").read_bytes() == (
        ROOT / "template/models/gpt/model.py"
    ).read_bytes()
    assert "One of resnet, vit" in " ".join(run("new", "--help").split())
    assert "exponential moving average" in run("components", "ema"), "its page is in the wheel"
    early = ["copy", "--quiet", "--defaults", "--vcs-ref", "v0.0.1", "--data", "project_name=early"]
    copier = [sys.executable, "-m", "copier", *early, "~/.fastproj/template.bundle", "early"]
    subprocess.run(copier, cwd=tmp_path, env=home, check=True)
    assert (tmp_path / "early/early.txt").is_file()
    assert not (tmp_path / "early/Makefile").exists()


WITH_PINS = ["--constraints", str(ROOT / "constraints.txt")]
AS_USERS = {
    "uvx": ["--python", sys.executable, "--from", "{wheel}", "fastproj", "new", "demo", "--yes"],
    "pipx": [*WITH_PINS, "pipx", "run", "--spec", "{wheel}", "fastproj", "new", "demo", "--yes"],
    "twine": [*WITH_PINS, "twine", "check", "--strict", "{wheel}", "{sdist}"],
}


@pytest.mark.slow
@pytest.mark.test_all
@pytest.mark.parametrize("tool", AS_USERS)
def test_wheel_is_installed_as_users_do(
    built: dict[str, Path], uv: str, environment: dict[str, str], tmp_path: Path, tool: str
) -> None:
    """In a clean home, with requirements from the package index of this machine."""
    sdist = next((built["tree"].parents[1] / "tree-sdist").iterdir())
    command = [it.format(wheel=built["tree"], sdist=sdist) for it in AS_USERS[tool]]
    home = environment | {
        "HOME": str(tmp_path / "home"),
        "NO_COLOR": "1",
        "PYTHONPATH": "",
    }
    result = subprocess.run(
        [uv, "tool", "run", *command],
        cwd=tmp_path,
        env=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    if tool == "twine":
        assert result.stdout.count("PASSED") == 2
    else:
        assert (tmp_path / "demo/Makefile").is_file()
        assert (tmp_path / "home/.fastproj/template.bundle").is_file()
