"""The command line itself: exit statuses, and suggestions for near misses."""

import sys

import pexpect
import pytest
from fastproj.errors import UsageError
from fastproj.template.answers import combine
from matrix import ROOT
from program import Fastproj


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["udpate"], "Did you mean 'update'?"),
        (
            ["new", "x", "--modle", "gpt"],
            "No such option: --modle. Did you mean --model or --nodes?",
        ),
        (["new", "x", "--gpus", "two"], "'--gpus': it must be a valid integer. See"),
        (["new", "3d", "--yes"], "for example p3d"),
        (["new", "x", "--yes", "--model", "restnet"], "did you mean resnet?"),
        (["new", "x", "--yes", "--data", "modle=gpt"], "did you mean model?"),
        (["new", "x", "--yes", "--license", "bsd"], "did you mean BSD-3-Clause?"),
    ],
)
def test_near_miss_is_suggested(
    arguments: list[str],
    suggested: str,
    fastproj: Fastproj,
) -> None:
    result = fastproj(*arguments, status=2)
    assert result.stdout == ""
    assert suggested in result.stderr


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_message_wraps_at_the_end_of_words(environment: dict[str, str]) -> None:
    command = ["-m", "fastproj", "new", "My-Project", "--yes"]
    terminal = pexpect.spawn(
        sys.executable,
        command,
        env=environment | {"COLUMNS": "60"},
        dimensions=(24, 60),
        encoding="utf-8",
    )
    terminal.expect(pexpect.EOF)
    lines = (terminal.before or "").splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60
    assert "for example my-project" in " ".join(lines)


def test_exit_statuses_are_documented(fastproj: Fastproj) -> None:
    """What `new` refuses has 1 and 2, `status` has 3, interrupted commands have 128 + N."""
    text = " ".join(fastproj("--help").stdout.split())
    assert text.count("...") == 1, "no description is cut: [ARGS]..."
    page = (ROOT / "docs/reference/commands.md").read_text()
    for status, meaning in {
        "0": "success",
        "1": "error",
        "2": "usage error",
        "3": "outdated",
        "128 + N": "after",
    }.items():
        assert f"{status} {meaning}" in text
        assert f"| {status} | " in page


def test_license_of_a_custom_template() -> None:
    assert combine({"licence": "MIT"}, [], {"license": {}}) == {"license": "MIT"}
    assert combine({}, ["license=MIT"], {"licence": {}}) == {"licence": "MIT"}
    with pytest.raises(UsageError, match="license is given twice"):
        combine({"licence": "MIT"}, ["license=MIT"], {"licence": {}})
