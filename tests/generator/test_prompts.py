"""The questions, answered with arrow keys in a real terminal."""

import sys
from pathlib import Path

import pexpect
import pytest
import yaml

DOWN, ENTER = "\x1b[B", "\r"


def start(environment: dict[str, str], cwd: Path, *options: str) -> "pexpect.spawn[str]":
    variables = environment | {"TERM": "xterm-256color"}
    command = ["-m", "fastproj", "new", "proj", *options]
    return pexpect.spawn(
        sys.executable, command, cwd=str(cwd), env=variables, encoding="utf-8", dimensions=(40, 120), timeout=60
    )


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_questions_are_answered_with_arrow_keys(environment: dict[str, str], tmp_path: Path) -> None:
    terminal = start(environment, tmp_path, "--licence", "MIT")
    terminal.expect("GPUs per machine")
    terminal.send("\x7f2" + ENTER)
    terminal.expect("machines that train one model")
    terminal.send(ENTER)
    terminal.expect("Newest number format")
    terminal.expect("Volta")
    terminal.send(DOWN + ENTER)
    terminal.expect("Training framework")
    terminal.send(ENTER)
    terminal.expect("Model, with")
    terminal.expect("decoder-only")
    terminal.send(DOWN * 3 + ENTER)
    terminal.expect("Launch scripts in addition")
    terminal.send(DOWN + " " + ENTER)
    terminal.expect("Author or team")
    terminal.send(ENTER)
    terminal.expect("opens a pull request")
    terminal.send(ENTER)
    terminal.expect("To render it again")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    answers = yaml.safe_load((tmp_path / "proj/.copier-answers.yml").read_text())
    assert (answers["gpus"], answers["tensor_cores"], answers["model"]) == (2, "fp8", "gpt")
    assert (answers["launchers"], answers["author"], answers["licence"]) == (["slurm"], "Ada Lovelace", "MIT")


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["ctrl-c", "ctrl-d"])
def test_aborting_a_question_writes_nothing(environment: dict[str, str], tmp_path: Path, key: str) -> None:
    terminal = start(environment, tmp_path)
    terminal.expect("GPUs per machine")
    terminal.send("\x7f" + key if key == "\x04" else key)
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus in (1, 130)
    assert "Traceback" not in (terminal.before or "")
    message = "interrupted; no incomplete project is left" if key == "\x03" else "the input ended before"
    assert message in (terminal.before or "")
    assert list(tmp_path.iterdir()) == []
