"""The questions, answered with the keyboard in a real terminal."""

import sys
from pathlib import Path

import pexpect
import pytest
import yaml
from fastproj.creating.hardware import Gpu, Machine
from fastproj.show import detected
from matrix import COMPONENTS, EVERY, QUESTIONS, UPDATE_SOURCE
from program import LIMIT_S, Fastproj
from updating import commit, git, read_answers

DOWN = "\x1b[B"
ENTER = "\r"
ESC = "\x1b"
CTRL_C = "\x03"
CTRL_D = "\x04"
BACKSPACE = "\x7f"
FIRST = next(name for name, entry in COMPONENTS.items() if "requires" in entry)
REQUIRED = COMPONENTS[FIRST]["requires"]
ASKED = [
    name
    for name, entry in QUESTIONS.items()
    if "help" in entry and entry.get("ask") is not False and name != "project_name"
]
# Invalid answers, each with the message about it, and the keys of a valid one.
ANSWERS: dict[str, tuple[dict[str, str], str]] = {
    "gpus": ({"70": "enter a number from 0 to 64", "two": "enter a whole number"}, "2"),
    "nodes": ({"0": "enter a number from 1 to 10000"}, ""),
    "tensor_cores": ({}, "hopper"),
    "framework": ({}, ""),
    "model": ({"zzz": 'no match for "zzz"'}, BACKSPACE * 3 + "decoder"),
    "author": ({"x" * 101: "at most 100 characters"}, ""),
    "licence": ({}, "bsd"),
    "components": (
        {},
        f"{FIRST} update-workflow ",
    ),
    "update_source": (
        {"http://x": "or URL#sha256=HASH", "git+https://x/y/z": "a full commit hash"},
        UPDATE_SOURCE,
    ),
}
RECORDED = {
    "gpus": 2,
    "nodes": 1,
    "tensor_cores": "fp8",
    "framework": "pytorch",
    "model": "gpt",
    "author": "Ada Lovelace",
    "licence": "BSD-3-Clause",
    "components": [it for it in COMPONENTS if it in (FIRST, *REQUIRED, "update-workflow")],
    "update_source": UPDATE_SOURCE,
}
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def start(
    environment: dict[str, str], cwd: Path, *arguments: str, width: int = 80
) -> "pexpect.spawn[str]":
    variables = environment | {"TERM": "xterm-256color", "COLUMNS": str(width)}
    command = ["-m", "fastproj", *arguments]
    terminal = pexpect.spawn(
        sys.executable,
        command,
        cwd=str(cwd),
        env=variables,
        encoding="utf-8",
        dimensions=(40, width),
        timeout=LIMIT_S,
    )
    terminal.delaybeforesend = None
    return terminal


def finish(terminal: "pexpect.spawn[str]") -> tuple[int | None, str]:
    """Wait for the end, and return the exit status and the output that no test has expected yet."""
    terminal.expect(pexpect.EOF)
    terminal.close()
    return terminal.exitstatus, terminal.before or ""


def lines(name: str) -> list[str]:
    """Return the lines of a question."""
    return [line.strip() for line in QUESTIONS[name]["help"].splitlines()]


def test_detected_hardware_is_one_line() -> None:
    gpu = Gpu("NVIDIA H100 80GB HBM3", "9.0", "fp8")
    for gpus, text in {
        (): "no GPU",
        (gpu,): f"1 GPU ({gpu.name})",
        (gpu,) * 8: f"8 GPUs ({gpu.name})",
    }.items():
        machine = Machine(gpus, cores=128)
        line = detected(machine).partition("\n")[0]
        assert line == f"Detected: 128 CPU cores, {text}"
        assert len(line) < 60


def test_questions_fit_60_columns() -> None:
    for name in ["project_name", *ASKED]:
        assert all(len(line) <= 57 for line in lines(name)), name


@pytest.mark.parametrize("width", [60, 80, 120] if EVERY else [60])  # the narrowest shows most
def test_every_question_and_every_invalid_answer(
    width: int, environment: dict[str, str], tmp_path: Path
) -> None:
    terminal = start(environment, tmp_path, "new", "proj", width=width)
    terminal.expect(r"Detected: \d+ CPU cores?, ")
    assert list(ANSWERS) == ASKED
    for name, (invalid, valid) in ANSWERS.items():
        for line in lines(name):
            terminal.expect_exact(line)
        for text, message in invalid.items():
            terminal.send(text + ENTER)
            terminal.expect_exact(message)
            if "choices" not in QUESTIONS[name]:
                terminal.expect_exact(lines(name)[0])  # below the error, with an empty field
        terminal.send(valid + ENTER)
    terminal.expect_exact("Create proj?")
    terminal.expect_exact("license        BSD-3-Clause")
    assert list(tmp_path.glob("proj")) == []
    terminal.send({60: ENTER, 80: CTRL_C, 120: "cancel" + ENTER}[width])
    status, output = finish(terminal)
    assert "Traceback" not in output
    assert status == (0 if width == 60 else 130), output
    assert ("Created proj" if width == 60 else "no incomplete project is left") in output
    if width == 60:
        recorded = read_answers(tmp_path / "proj")
        assert {name: recorded[name] for name in RECORDED} == RECORDED
    else:
        assert list(tmp_path.iterdir()) == []


def test_enter_accepts_what_yes_accepts(
    environment: dict[str, str], fastproj: Fastproj, tmp_path: Path
) -> None:
    terminal = start(environment, tmp_path, "new", "proj")
    skipped = ("nodes", "tensor_cores", "update_source")  # there is no GPU and no workflow
    for name in [it for it in ASKED if it not in skipped]:
        terminal.expect_exact(lines(name)[0])
        assert not any(lines(it)[0] in (terminal.before or "") for it in skipped)
        terminal.send(ENTER)
    terminal.expect_exact("Create proj?")
    terminal.send(ENTER)
    status, output = finish(terminal)
    assert status == 0, output
    (tmp_path / "yes").mkdir()
    fastproj("new", "proj", "--yes", cwd=tmp_path / "yes")
    assert read_answers(tmp_path / "proj") == read_answers(tmp_path / "yes/proj")


def test_nothing_is_asked_at_the_end_if_every_answer_is_given(
    environment: dict[str, str], tmp_path: Path
) -> None:
    answers = [
        "--framework=pytorch",
        "--model=mlp",
        "--components=none",
        "--author=A",
        "--license=MIT",
    ]
    status, output = finish(
        start(
            environment,
            tmp_path,
            "new",
            "proj",
            "--gpus=0",
            *answers,
        )
    )
    assert (status, "Created proj" in output, "?" in output) == (0, True, False), output


def test_end_of_the_input_is_a_one_line_error(environment: dict[str, str], tmp_path: Path) -> None:
    terminal = start(environment, tmp_path, "new", "proj")
    terminal.expect_exact(lines("gpus")[0])
    terminal.send(CTRL_D)
    status, output = finish(terminal)
    assert (status, "fastproj: the input ended before all questions were answered" in output) == (
        1,
        True,
    ), output
    assert list(tmp_path.iterdir()) == []


# Each kind of question that our own template does not have.
CUSTOM = """\
project_name: {type: str}
rate: {type: float, default: 0.5}
table: {type: yaml, default: {a: 1}}
note: {type: str, default: ""}
sure: {type: bool, default: true, validator: "{% if sure %}it must be no{% endif %}"}
pick: {type: int, choices: {one: 1, two: 2}}
limit: {type: int, default: 1, validator: "{% if limit < rate %}at least {{ rate }}{% endif %}"}
"""


def custom_template(folder: Path, questions: str) -> None:
    """Make a template with these questions, in a git repository."""
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "copier.yml").write_text(questions)
    answers = "{{ _copier_answers | to_nice_yaml -}}\n"
    (folder / "{{ _copier_conf.answers_file }}.jinja").write_text(answers)
    commit(folder)


def test_questions_of_a_custom_template(environment: dict[str, str], tmp_path: Path) -> None:
    custom_template(tmp_path / "template", CUSTOM)
    terminal = start(environment, tmp_path, "new", "proj", "--template", "template")
    for question, keys in {"rate": "x", "enter a number": "2"}.items():
        terminal.expect_exact(question)
        terminal.send(keys + ENTER)
    for question, keys in {
        "table": ENTER,
        "note": ENTER,
        "sure": ENTER,
        "it must be no": "",
        "> yes": "no" + ENTER,
        "pick": DOWN + ENTER,
        "limit": "3" + ENTER,
        "Create proj?": ENTER,
    }.items():
        terminal.expect_exact(question)
        terminal.send(keys)
    status, output = finish(terminal)
    assert status == 0, output
    recorded = yaml.safe_load((tmp_path / "proj/.copier-answers.yml").read_text())
    assert {it: recorded[it] for it in recorded if not it.startswith("_")} == {
        **{"project_name": "proj", "rate": 2.0, "table": {"a": 1}},
        **{"note": "", "sure": False, "pick": 2, "limit": 3},
    }


GIVEN = ["--gpus=0", "--framework=pytorch", "--model=mlp", "--components=none", "--license=MIT"]


@pytest.mark.parametrize("keys", ["cancel" + ENTER, CTRL_C])
def test_last_question_can_be_declined(
    keys: str, environment: dict[str, str], tmp_path: Path
) -> None:
    terminal = start(environment, tmp_path, "new", "proj", *GIVEN)
    terminal.expect_exact(lines("author")[0])
    terminal.send(ENTER)
    terminal.expect_exact("Create proj?")
    terminal.send(keys)
    ended, output = finish(terminal)
    assert ended == 130
    assert "fastproj: interrupted" in output
    assert list(tmp_path.iterdir()) == []


def test_answers_are_changed_by_going_back_and_at_the_end(
    environment: dict[str, str], tmp_path: Path
) -> None:
    terminal = start(
        environment,
        tmp_path,
        "new",
        *GIVEN[1:3],
        *GIVEN[4:],
    )
    for expected, keys in [
        ("What is the project called?", "Proj" + ENTER),
        ("for example proj", "proj" + ENTER),
        (lines("gpus")[0], "2" + ENTER),
        (lines("nodes")[0], ESC),
        (lines("gpus")[1], "1" + ENTER),
        (lines("nodes")[1], ENTER),
        (lines("tensor_cores")[0], ENTER),
        (lines("author")[0], ENTER),
        (lines("components")[0], "ema" + ENTER + ENTER),
        ("Create proj?", "gpus" + ENTER),
        (lines("gpus")[1], "0" + ENTER),
    ]:
        terminal.expect_exact(expected)
        terminal.send(keys)
    terminal.expect_exact("Create proj?")
    assert lines("nodes")[0] not in (terminal.before or "")
    terminal.expect_exact("components  ema")
    terminal.send(ENTER)
    status, output = finish(terminal)
    assert status == 0, output
    recorded = read_answers(tmp_path / "proj")
    assert (recorded["gpus"], recorded["nodes"], recorded["components"]) == (0, 1, ["ema"])
