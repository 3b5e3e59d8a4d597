"""`fastproj new` through the real program: what it makes, what it refuses, and that it leaves nothing behind."""

import fcntl
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from fastproj.cli import new
from matrix import MODELS, QUESTIONS, ROOT
from program import Fastproj


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def answers(folder: Path) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load((folder / ".copier-answers.yml").read_text())
    return found


def test_it_renders_commits_and_says_how_to_go_on(fastproj: Fastproj, tmp_path: Path) -> None:
    done = fastproj("new", "my-proj", "--yes", "--gpus", "2", "--nodes", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "my-proj"
    assert os.listdir(tmp_path) == ["my-proj"]
    assert (folder / "src/my_proj/train.py").is_file()
    assert git(folder, "log", "--format=%an %s") == "Ada Lovelace Render my-proj with fastproj"
    assert git(folder, "status", "--porcelain") == ""
    assert git(folder, "branch", "--show-current") == "main"
    recorded = answers(folder)
    assert recorded["_src_path"] == "~/.fastproj/template.bundle"
    assert str(recorded["_commit"]).startswith("v0.")
    assert (recorded["gpus"], recorded["nodes"], recorded["tensor_cores"]) == (2, 3, "bf16")
    assert (recorded["author"], recorded["launchers"]) == ("Ada Lovelace", ["multinode"])
    assert "make setup" in done.stdout

    again = shlex.split(done.stdout.strip().splitlines()[-1])
    elsewhere = tmp_path / "again"
    elsewhere.mkdir()
    assert fastproj(*again[1:], cwd=elsewhere).returncode == 0
    assert tree(elsewhere / "my-proj") == tree(folder)


def tree(folder: Path) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file() and ".git" not in file.parts]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_every_question_is_an_option() -> None:
    asked = {name for name, entry in QUESTIONS.items() if not name.startswith("_") and entry.get("when") is not False}
    options = set(new.__annotations__)
    assert asked - {"project_name"} <= options


def test_help_shows_choices_and_is_quick_to_start(fastproj: Fastproj, environment: dict[str, str]) -> None:
    text = fastproj("new", "--help").stdout
    for choice in (f"[{'|'.join(MODELS)}]", "[pytorch", "[none|fp16|bf16|fp8]", "[multinode|slurm|none]", "MIT|"):
        assert choice in "".join(text.split()), choice
    code = "import sys; sys.argv = ['fastproj', '--help']; from fastproj.__main__ import main\n"
    code += "try: main()\nexcept SystemExit: print(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "'typer'" in done.stderr
    for heavy in ("copier", "torch", "yaml", "jinja2", "pydantic", "rich", "questionary"):
        assert f"'{heavy}'" not in done.stderr


def test_version_names_the_template(fastproj: Fastproj) -> None:
    assert fastproj("--version").stdout.startswith("fastproj 0.")
    assert "template v0." in fastproj("--version").stdout


def test_completion_knows_the_models(fastproj: Fastproj) -> None:
    asked = {"_FASTPROJ_COMPLETE": "complete_bash", "COMP_WORDS": "fastproj new x --model r", "COMP_CWORD": "4"}
    assert fastproj(**asked).stdout.split() == ["resnet"]


BAD = [
    (["--gpus", "-1"], "gpus"),
    (["--gpus", "65"], "from 0 to 64"),
    (["--gpus", "two"], "integer"),
    (["--nodes", "0"], "from 1 to 10000"),
    (["--tensor-cores", "fp8", "--gpus", "0"], "fp8 needs a GPU"),
    (["--tensor-cores", "int4", "--gpus", "1"], "int4"),
    (["--framework", "tensorflow"], "tensorflow"),
    (["--model", "perceptron"], "perceptron"),
    (["--model", ""], "model"),
    (["--model", "../models/resnet"], "../models/resnet"),
    (["--launchers", "kubernetes"], "kubernetes"),
    (["--licence", "GPL"], "GPL"),
    (["--author", ""], "author"),
    (["--author", "a\nb"], "author"),
    (["--author", "x" * 101], "author"),
    (["--gpu", "1"], "--gpu"),
    (["--nonsense"], "--nonsense"),
    (["extra"], "extra"),
    (["--data", "nonsense=1"], "has no such question"),
    (["--data", "gpus"], "KEY=VALUE"),
    (["--data", "=1"], "KEY=VALUE"),
    (["--data", "precision=fp8"], "has no such question"),
    (["--data", "project_name=../../x"], "has no such question"),
    (["--data", "_src_path=x"], "has no such question"),
    (["--data", "gpus=99"], "from 0 to 64"),
    (["--data", "gpus=x"], "integer"),
    (["--data", "gpus=1", "--data", "gpus=2"], "given twice"),
    (["--gpus", "1", "--data", "gpus=2"], "both given"),
    (["--author", "\udcff"], "not valid text"),
    (["--template", ""], "no such folder"),
    (["--template", "~nosuchuser/x"], "no such folder"),
    (["--template", "a" * 300], "no such folder"),
    (["--template", "/no/such/template"], "no such folder or bundle"),
    (["--template", "https://127.0.0.1:9/x.git"], "could not read the template"),
    (["--output", "/no/such/folder"], "is not a folder"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=lambda value: ascii(" ".join(value))[:40])
def test_bad_options_are_one_line(options: list[str], message: str, fastproj: Fastproj, tmp_path: Path) -> None:
    done = fastproj("new", "proj", "--yes", *options, cwd=tmp_path)
    assert done.returncode in (1, 2), done.stdout
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_it_asks_for_yes(fastproj: Fastproj, tmp_path: Path) -> None:
    done = fastproj("new", "proj", cwd=tmp_path)
    assert done.returncode == 1
    assert "pass --yes" in done.stderr
    assert list(tmp_path.iterdir()) == []


def make_file(target: Path) -> None:
    target.write_text("mine")


def make_folder(target: Path) -> None:
    target.mkdir()


def make_full_folder(target: Path) -> None:
    target.mkdir()
    (target / "mine").write_text("mine")


def make_link(target: Path) -> None:
    (target.parent / "elsewhere").mkdir()
    target.symlink_to("elsewhere")


def make_dangling_link(target: Path) -> None:
    target.symlink_to("nowhere")


@pytest.mark.parametrize("make", [make_file, make_folder, make_full_folder, make_link, make_dangling_link])
def test_what_exists_is_never_touched(make: Callable[[Path], None], fastproj: Fastproj, tmp_path: Path) -> None:
    make(tmp_path / "proj")
    before = sorted((str(path), path.is_symlink()) for path in tmp_path.rglob("*"))
    done = fastproj("new", "proj", "--yes", cwd=tmp_path)
    assert done.returncode == 1
    assert "exists already" in done.stderr
    assert sorted((str(path), path.is_symlink()) for path in tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_written(fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    closed = "/proc" if os.geteuid() == 0 else str(tmp_path / "closed")  # root may write in any ordinary folder
    done = fastproj("new", "proj", "--yes", "--output", closed)
    assert done.returncode == 1
    assert "cannot" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("limit", [0, 500, 5_000])
def test_a_full_disk_leaves_nothing(limit: int, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "fastproj", "new", "proj", "--yes", "--output", str(tmp_path / "out")],
        env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


def test_no_git_is_said(fastproj: Fastproj, tmp_path: Path) -> None:
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, PATH=str(tmp_path))
    assert done.returncode == 1
    assert "install git" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_no_identity_is_no_failure(fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    home = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "home"), "GIT_CONFIG_NOSYSTEM": "1"}
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, **home)
    assert done.returncode == 0, done.stderr
    assert "git does not know you" in done.stdout
    assert (tmp_path / "proj/.git").is_dir()


def test_an_unwritable_home_names_the_way_out(fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, HOME=str(tmp_path / "file"))
    assert done.returncode == 1
    assert "FASTPROJ_HOME" in done.stderr
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, HOME="/nowhere", FASTPROJ_HOME=str(tmp_path / "other"))
    assert done.returncode == 0, done.stderr
    assert answers(tmp_path / "proj")["_src_path"] == str(tmp_path / "other/template.bundle")


def test_inside_a_repository_it_makes_none(fastproj: Fastproj, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    done = fastproj("new", "proj", "--yes", cwd=tmp_path)
    assert done.returncode == 0
    assert not (tmp_path / "proj/.git").exists()
    assert "as the folder is in one" in done.stdout
    assert fastproj("new", "other", "--yes", "--no-git", cwd=tmp_path).returncode == 0


def test_hostile_git_settings_do_no_harm(fastproj: Fastproj, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "pre-commit").chmod(0o755)
    (tmp_path / "ignore").write_text("*\n")
    settings = f"[user]\nname = A\nemail = a@b\n[core]\nhooksPath = {hooks}\nexcludesFile = {tmp_path}/ignore\n"
    settings += "autocrlf = true\n[protocol]\nallow = never\n[safe]\nbareRepository = explicit\n"
    (tmp_path / ".gitconfig").write_text(settings + "[commit]\ngpgSign = true\n[init]\ntemplateDir = /nowhere\n")
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, HOME=str(tmp_path))
    assert "a first commit" in done.stdout, done.stdout + done.stderr
    assert git(tmp_path / "proj", "status", "--porcelain") == ""
    assert not [name for name, content in tree(tmp_path / "proj").items() if b"\r\n" in content]


def test_author_and_licence_reach_the_files(fastproj: Fastproj, tmp_path: Path) -> None:
    author = 'Zoë "Z" O\'Neil \\ {{ 1 }} $(touch x) <z@example.org>'
    for licence in ("MIT", "Apache-2.0", "BSD-3-Clause", "none"):
        name = f"p{licence.lower().replace('.', '')}"
        done = fastproj("new", name, "--yes", "--author", author, "--licence", licence, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        import tomllib

        declared = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())["project"]
        assert declared["authors"] == [{"name": author}]
        assert (tmp_path / name / "LICENSE").exists() == (licence != "none")
        if licence != "none":
            assert f"Copyright {'(c) ' if licence != 'Apache-2.0' else ''}{author}" in (
                (tmp_path / name / "LICENSE").read_text()
            )
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_leaves_the_project_whole_or_absent(
    number: signal.Signals, environment: dict[str, str], tmp_path: Path
) -> None:
    for attempt, delay in enumerate([0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.1, 1.3]):
        output = tmp_path / str(attempt)
        (output / "tmp").mkdir(parents=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "fastproj", "new", "proj", "--yes", "--output", str(output)],
            env=environment | {"TMPDIR": str(output / "tmp")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        time.sleep(delay)
        process.send_signal(number)
        _, message = process.communicate(timeout=60)
        if (output / "proj").exists():
            assert git(output / "proj", "status", "--porcelain") == ""
            assert (output / "proj/src/proj/train.py").is_file()
        if number == signal.SIGKILL:
            continue
        assert process.returncode in (0, 128 + number, -number), message
        assert "Traceback" not in message
        assert process.returncode <= 0 or message == "fastproj: stopped; no half-made project is left\n"
        assert {path.name for path in output.iterdir()} <= {"tmp", "proj"}
        assert list((output / "tmp").iterdir()) == []


def test_what_a_killed_render_left_is_swept_away(fastproj: Fastproj, tmp_path: Path) -> None:
    for name in (".proj.fastproj-dead", ".proj.fastproj-alive"):
        (tmp_path / name / "project").mkdir(parents=True)
        os.utime(tmp_path / name, (0, 0))
    descriptor = os.open(tmp_path / ".proj.fastproj-alive", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert fastproj("new", "proj", "--yes", cwd=tmp_path).returncode == 0
    os.close(descriptor)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".proj.fastproj-alive", "proj"]


def test_two_at_once_make_one_whole_project(environment: dict[str, str], tmp_path: Path) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "fastproj", "new", "proj", "--yes", "--output", str(tmp_path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    messages = [process.communicate(timeout=60)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 1], messages
    assert [path.name for path in tmp_path.iterdir()] == ["proj"]
    assert git(tmp_path / "proj", "status", "--porcelain") == ""


def test_a_repository_of_the_callers_is_not_touched(fastproj: Fastproj, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    git(mine, "init", "-q")
    (mine / "a").write_text("1")
    git(mine, "add", "a")
    git(mine, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "m")
    git(mine, "tag", "v0.1.0.dev0")
    (mine / "b").write_text("2")
    git(mine, "add", "b")
    before = (git(mine, "status", "--porcelain=2", "--branch"), (mine / ".git/HEAD").read_text())
    hostile = {"GIT_DIR": str(mine / ".git"), "GIT_INDEX_FILE": str(mine / ".git/index"), "GIT_WORK_TREE": str(mine)}
    hostile |= {"GIT_CONFIG_COUNT": "x", "GIT_DEFAULT_HASH": "sha256", "GIT_ALLOW_PROTOCOL": "https"}
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, **hostile)
    assert done.returncode == 0, done.stderr
    assert "a first commit" in done.stdout
    assert (git(mine, "status", "--porcelain=2", "--branch"), (mine / ".git/HEAD").read_text()) == before


@pytest.mark.parametrize("value", ["rel", "~/there"])
def test_the_programs_home_may_be_relative(value: str, fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    done = fastproj("new", "proj", "--yes", "-o", "sub", cwd=tmp_path, FASTPROJ_HOME=value, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    recorded = Path(str(answers(tmp_path / "sub/proj")["_src_path"]))
    assert recorded.is_absolute()
    assert recorded.is_file()


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"TERM": ""},
        {"TERM": "dumb"},
    ],
)
def test_other_encodings_and_terminals(variables: dict[str, str], fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_bytes(b"[user]\nname = Ad\xe9\nemail = a@b\n")
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, HOME=str(tmp_path), **variables)
    assert done.returncode == 0, done.stderr
    if "LC_ALL" not in variables:
        done = fastproj("new", "other", "--yes", "--author", "\u5f20", cwd=tmp_path, HOME=str(tmp_path), **variables)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["detect"], ["--version"], ["--help"], ["new", "proj", "--yes"]])
def test_an_output_that_takes_nothing(arguments: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fastproj", *arguments],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "could not be printed" in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_arguments_show_the_help(fastproj: Fastproj) -> None:
    assert fastproj().stdout == fastproj("--help").stdout != ""


OLD_GIT = "#!/bin/sh\necho git version 2.17.6\n"


@pytest.mark.parametrize(
    "script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho nonsense\n", "\x7fELF", "#!/no/shell\n", OLD_GIT]
)
def test_a_broken_git_is_one_line(script: str, fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text(script)
    (tmp_path / "bin/git").chmod(0o755)
    (tmp_path / "out").mkdir()
    done = fastproj("new", "proj", "--yes", cwd=tmp_path / "out", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "git" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


def test_the_template_as_a_bundle_and_a_repository(fastproj: Fastproj, tmp_path: Path, home: Path) -> None:
    fastproj("new", "first", "--yes", cwd=tmp_path)
    bundle = shutil.copy(home / ".fastproj/template.bundle", tmp_path / "team.bundle")
    done = fastproj("new", "second", "--yes", "--template", str(bundle), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "broken.bundle").write_bytes(Path(bundle).read_bytes()[:2000])
    done = fastproj("new", "third", "--yes", "--template", str(tmp_path / "broken.bundle"), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "third").exists()


def test_no_path_of_this_machine_is_recorded(fastproj: Fastproj, tmp_path: Path) -> None:
    fastproj("new", "proj", "--yes", cwd=tmp_path)
    for content in tree(tmp_path / "proj").values():
        assert str(ROOT).encode() not in content
        assert str(tmp_path).encode() not in content
