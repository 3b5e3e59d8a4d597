"""`fastproj new` refuses, in one line and without leaving anything behind, what it cannot do."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fastproj.creating.question import Question
from fastproj.errors import FastprojError, UsageError
from fastproj.template.answers import ANSWERS, combine
from fastproj.template.clone import open_template, questions_in
from matrix import QUESTIONS, ROOT
from program import Fastproj
from updating import read_answers

ASKED = questions_in(ROOT)
WRONG_USAGE = [
    (["--gpus", "65"], "--gpus: enter a number from 0 to 64"),
    (["--gpus", "two"], "integer"),
    (["--model", "perceptron"], "perceptron"),
    (["--gpu", "1"], "--gpu"),
    (["--nonsense"], "--nonsense"),
    (["extra"], "extra"),
]
OTHER_ERRORS = [
    (["--template", "/no/such/template"], "is not on this machine"),
    (["--template", "https://127.0.0.1:9/x.git"], "could not read the template"),
    (["--output", "/dev/null"], "is not a folder"),
    (["--output", "/proc/no/folder"], "cannot write"),
]
BAD = [*((2, *case) for case in WRONG_USAGE), *((1, *case) for case in OTHER_ERRORS)]


@pytest.mark.parametrize(
    ("status", "options", "message"),
    BAD,
    ids=lambda value: ascii(value)[:40],
)
def test_bad_option_is_a_one_line_error(
    status: int, options: list[str], message: str, fastproj: Fastproj, tmp_path: Path
) -> None:
    result = fastproj(
        "new",
        "proj",
        "--yes",
        *options,
        cwd=tmp_path,
        status=status,
    )
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("location", ["", "~nosuchuser/x", "a" * 300])
def test_template_that_is_not_there_is_refused(location: str, tmp_path: Path) -> None:
    with pytest.raises(FastprojError, match="is not on this machine"):
        open_template(location, tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tensor_cores", "int4", "int4"),
        ("framework", "tensorflow", "tensorflow"),
        ("model", "", "model"),
        ("model", "../models/resnet", "../models/resnet"),
        ("components", "kubernetes", "kubernetes"),
        ("licence", "GPL", "GPL"),
        ("nonsense", "1", "has no such question"),
        ("", "1", "has no such question"),
        ("precision", "fp8", "has no such question"),
        ("project_name", "../../x", "has no such question"),
        ("_src_path", "x", "has no such question"),
        ("gpus", "x", "integer"),
    ],
)
def test_answer_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        combine({}, [f"{name}={value}"], ASKED)
    if name in ANSWERS:
        with pytest.raises(UsageError, match=re.escape(message)):
            combine({name: value}, [], ASKED)


def test_answers_are_pairs_and_given_once() -> None:
    with pytest.raises(UsageError, match="KEY=VALUE"):
        combine({}, ["gpus"], ASKED)
    for options, data in (({}, ["gpus=1", "gpus=2"]), ({"gpus": 1}, ["gpus=2"])):
        with pytest.raises(UsageError, match="gpus is given twice"):
            combine(options, data, ASKED)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gpus", "-1", "from 0 to 64"),
        ("gpus", "65", "from 0 to 64"),
        ("nodes", "0", "from 1 to 10000"),
        ("tensor_cores", "fp8", "fp8 requires a GPU"),
        ("author", "", "at most 100 characters on one line"),
        ("author", "a\nb", "at most 100 characters on one line"),
        ("author", "x" * 101, "at most 100 characters on one line"),
    ],
)
def test_answer_is_not_valid(name: str, value: str, message: str) -> None:
    question = Question(name, QUESTIONS[name], {"gpus": 0})
    assert message in question.problem(value)


def test_no_terminal_requires_yes_or_all_answers(fastproj: Fastproj, tmp_path: Path) -> None:
    given = ["--gpus=0", "--framework=pytorch", "--model=mlp", "--license=MIT", "--author=A"]
    result = fastproj(
        "new",
        "proj",
        *given[1:],
        cwd=tmp_path,
        status=2,
    )
    assert "give --gpus, --components, or pass --yes" in result.stderr
    assert "the project needs a name" in fastproj("new", "--yes", cwd=tmp_path, status=2).stderr
    assert list(tmp_path.iterdir()) == []
    fastproj("new", "proj", *given, "--components=tensorboard", cwd=tmp_path)
    assert read_answers(tmp_path / "proj")["components"] == ["tracker", "tensorboard"]


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


@pytest.mark.parametrize(
    "make", [make_file, make_folder, make_full_folder, make_link, make_dangling_link]
)
def test_existing_target_is_never_changed(
    make: Callable[[Path], None], fastproj: Fastproj, tmp_path: Path
) -> None:
    make(tmp_path / "proj")
    before = sorted((str(path), path.is_symlink()) for path in tmp_path.rglob("*"))
    result = fastproj("new", "proj", "--yes", cwd=tmp_path, status=1)
    assert "exists already" in result.stderr
    assert sorted((str(path), path.is_symlink()) for path in tmp_path.rglob("*")) == before


def test_unwritable_folder_is_a_one_line_error(fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    # root may write in any ordinary folder
    closed = "/proc" if os.geteuid() == 0 else str(tmp_path / "closed")
    result = fastproj("new", "proj", "--yes", "--output", closed, status=1)
    assert "cannot" in result.stderr


def test_folder_of_a_failed_rendering_is_removed(fastproj: Fastproj, tmp_path: Path) -> None:
    where = tmp_path / "new/deep"
    fastproj("new", "proj", "--yes", "--output", str(where), "--template", "/no/such", status=1)
    assert not (tmp_path / "new").exists()


def test_missing_git_is_a_one_line_error(fastproj: Fastproj, tmp_path: Path) -> None:
    result = fastproj(
        "new",
        "proj",
        "--yes",
        cwd=tmp_path,
        PATH=str(tmp_path),
        status=1,
    )
    assert "install git" in result.stderr
    assert list(tmp_path.iterdir()) == []


OLD_GIT = "#!/bin/sh\necho git version 2.17.6\n"


@pytest.mark.parametrize(
    "script",
    ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho nonsense\n", "\x7fELF", "#!/no/shell\n", OLD_GIT],
)
def test_broken_git_is_a_one_line_error(script: str, fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text(script)
    (tmp_path / "bin/git").chmod(0o755)
    (tmp_path / "out").mkdir()
    result = fastproj(
        "new",
        "proj",
        "--yes",
        cwd=tmp_path / "out",
        PATH=f"{tmp_path}/bin:{os.environ['PATH']}",
        status=1,
    )
    assert "git" in result.stderr
    assert list((tmp_path / "out").iterdir()) == []
