"""Completion in real shells."""

import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest
from program import LIMIT_S

BASH = """
eval "$(fastproj)"; unset _FASTPROJ_COMPLETE
complete() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fastproj_completion fastproj; echo "${COMPREPLY[@]}"
}
complete fastproj up
complete fastproj new x --lic
"""
FISH = """
fastproj | source; set --erase _FASTPROJ_COMPLETE
for line in "fastproj up" "fastproj new x --lic"
    complete --do-complete $line | string split --fields 1 \\t
end
"""


@pytest.fixture
def complete(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An environment in which `fastproj` is a command that prints its completion script."""
    program = tmp_path / "fastproj"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fastproj "$@"\n')
    program.chmod(0o755)
    return environment | {"PATH": f"{tmp_path}:{environment['PATH']}", "TERM": "xterm"}


def require(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}: install it, then make test")


@pytest.mark.parametrize(
    ("shell", "script"), [(["bash", "--norc"], BASH), (["fish", "--no-config"], FISH)]
)
def test_completion_in_bash_and_fish(
    shell: list[str], script: str, complete: dict[str, str]
) -> None:
    require(shell[0])
    variables = complete | {"_FASTPROJ_COMPLETE": f"source_{shell[0]}"}
    done = subprocess.run(
        [
            *shell,
            "-c",
            script,
        ],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["update", "--license"], done.stderr


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_completion_in_zsh(complete: dict[str, str], tmp_path: Path) -> None:
    require("zsh")
    setup = tmp_path / "setup"
    setup.write_text(
        'autoload -Uz compinit; compinit -u -D; eval "$(_FASTPROJ_COMPLETE=source_zsh fastproj)"\n'
    )
    zsh = pexpect.spawn(
        "zsh", ["-f"], env=complete, encoding="utf-8", dimensions=(24, 100), timeout=LIMIT_S
    )
    zsh.send(f"PS1='rea'dy; source {setup}\r")
    zsh.expect_exact("ready")
    for typed, completed in (("up", "update"), ("new x --lic", "--license")):
        zsh.send(f"\x15fastproj {typed}\t")
        zsh.expect_exact(completed)
    zsh.close(force=True)
