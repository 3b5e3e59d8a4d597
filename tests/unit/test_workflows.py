"""Every workflow: what it installs is pinned, and jobs that can write run no program."""

import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from matrix import ROOT, answers
from program import Fastproj

INSTALLERS = re.compile(r"(?:.*/)?(?:pip[\d.]*|pipx|uv|uvx|npm|npx)")
PINNED = re.compile(
    r"git\+https://\S+@[0-9a-f]{40}|https://\S+\.whl#sha256=[0-9a-f]{64}|\.{0,2}/.*|\."
)
WITH_VALUE = {"-r", "-c", "--requirement", "--constraint", "--group"}
"""Options whose next argument is a local file."""
VERBS = {"ci", "install", "pip", "run", "sync", "tool"}
KEYWORDS = {"!", "do", "done", "else", "fi", "if", "then", "while"}
TRUSTED = {"[", "[[", "echo", "exit", "gh", "git"}
"""Commands that a job with write permission may use: none runs a file."""
GIT = {"apply", "commit", "ls-remote", "push", "switch"}
READS_FILES = {"actions/checkout", "actions/download-artifact"}


def commands(script: str) -> list[list[str]]:
    """Return the simple commands of a script, without keywords, variable assignments, redirections and `python -m`."""
    text = re.sub(r"\[\[ .*? \]\]", "[[", script.replace("\\\n", " ").replace("python -m ", ""))
    lexer = shlex.shlex(
        re.sub(r"(?m)(^|\s)# .*$", "", text), posix=True, punctuation_chars=";|&()<>\n"
    )
    lexer.commenters, lexer.whitespace, lexer.whitespace_split = "", " \t", True
    found: list[list[str]] = [[]]
    before = ""
    for word in lexer:
        if not word or set(word) <= set(";|&()\n"):
            found += [[]] if not before.endswith("=") else []  # name=(values) is an array
        elif (
            not set(before) & set("<>")
            and (found[-1] or word not in KEYWORDS)
            and not re.match(r"\w+=", word)
        ):
            found[-1] += [word] if not set(word) & set("<>") else []
        before = word
    return [words for words in found if words and not words[0].startswith("--")]


def problems(workflow: dict[str, Any]) -> list[str]:
    """Return what is wrong with a workflow."""
    found = ["no permissions of its own"] if "permissions" not in workflow else []
    for name, job in workflow["jobs"].items():
        steps = job["steps"]
        lines = [line for step in steps for line in commands(step.get("run", ""))]
        found += [
            f"{name}: {step['uses']} is not pinned" for step in steps if not _pinned_action(step)
        ]
        found += [f"{name}: installs {it}" for line in lines for it in _unpinned(line)]
        if any(line[:2] == ["git", "clone"] for line in lines) and not any(
            _checks_out_a_pin(line) for line in lines
        ):
            found.append(f"{name}: clones a branch")
        for step in steps:
            keeps_token = step.get("with", {}).get("persist-credentials") is not False
            if keeps_token and "actions/checkout" in step.get("uses", ""):
                found.append(f"{name}: leaves the token in the checkout")
        permissions = job.get("permissions", workflow.get("permissions"))
        if (
            isinstance(permissions, dict)
            and "write" not in permissions.values()
            and "secrets." not in str(job)
        ):
            continue
        found += [
            f"{name}: can write, and runs {' '.join(line)}" for line in lines if not _trusted(line)
        ]
        actions = [step["uses"].partition("@")[0] for step in steps if "uses" in step]
        found += [f"{name}: can write, and uses {it}" for it in actions if it not in READS_FILES]
    return found


def _pinned_action(step: dict[str, Any]) -> bool:
    return "uses" not in step or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]) is not None


def _unpinned(words: list[str]) -> list[str]:
    if not INSTALLERS.fullmatch(words[0]):
        return []
    targets = [
        word
        for before, word in pairwise(words)
        if before not in WITH_VALUE and word not in VERBS and not word.startswith("-")
    ]
    return [it for it in targets if not PINNED.fullmatch(it.removeprefix("$RUNNER_TEMP"))]


def _checks_out_a_pin(words: list[str]) -> bool:
    return (
        "checkout" in words
        and re.fullmatch(r"refs/tags/v?\d\S*|[0-9a-f]{40}", words[-1]) is not None
    )


def _trusted(words: list[str]) -> bool:
    if any("$(" in word or "`" in word for word in words):
        return False
    if words[0] == "git":
        return next(it for it in words[1:] if not it.startswith(("-", "user."))) in GIT
    return words[0] in TRUSTED


def test_every_workflow_is_pinned_and_writes_only_where_nothing_runs(
    fastproj: Fastproj, tmp_path: Path
) -> None:
    """Ours, those of a project without a GPU, and those of one with all components."""
    folders = [ROOT]
    for hardware in ("cpu", "nodes"):
        options = ["--yes", "--no-git", *answers("pytorch", hardware), "--output", str(tmp_path)]
        rendered = fastproj("new", f"on-{hardware}", *options)
        assert rendered.returncode == 0, rendered.stderr
        folders.append(tmp_path / f"on-{hardware}")
    files = [file for folder in folders for file in (folder / ".github/workflows").iterdir()]
    assert {"ci.yml", "gpu.yml", "update.yml"} <= {file.name for file in files}
    for file in files:
        text = file.read_text()
        assert problems(yaml.safe_load(text)) == [], file
        assert len(
            re.findall(r"uses: .*@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", text, re.MULTILINE)
        ) == text.count("uses:")


CHECKOUT = f"actions/checkout@{'0' * 40}"
SAFE = {"uses": CHECKOUT, "with": {"persist-credentials": False}}
PIP = "python -m pip install"


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"run": f"{PIP} fastproj"}, "installs fastproj"),
        ({"run": f"{PIP} fastproj-cli==0.3.0"}, "installs fastproj-cli==0.3.0"),
        ({"run": f"true && {PIP} --quiet \\\n  -r requirements.txt torch"}, "installs torch"),
        ({"run": "if ! pipx install copier; then exit; fi"}, "installs copier"),
        ({"run": "uvx ruff"}, "installs ruff"),
        ({"run": "uv tool install fastproj"}, "installs fastproj"),
        ({"run": "x=$(npx cowsay)"}, "installs cowsay"),
        (
            {"run": f"{PIP} git+https://h.example/o/r@main"},
            "installs git+https://h.example/o/r@main",
        ),
        ({"run": f"{PIP} https://h.example/a.whl"}, "installs https://h.example/a.whl"),
        (
            {"run": f'git clone https://h.example/o/r "$RUNNER_TEMP/r"\n{PIP} "$RUNNER_TEMP/r"'},
            "clones a branch",
        ),
        ({"uses": "actions/setup-python@v6"}, "actions/setup-python@v6 is not pinned"),
        ({"uses": CHECKOUT}, "leaves the token in the checkout"),
    ],
    ids=lambda it: str(it)[:40],
)
def test_check_finds(step: dict[str, Any], problem: str) -> None:
    job = {"permissions": {"contents": "read"}, "steps": [SAFE, step]}
    assert problems({"permissions": {}, "jobs": {"job": job}}) == [f"job: {problem}"]


@pytest.mark.parametrize(
    "step",
    [
        {"run": "fastproj update"},
        {"run": "make test"},
        {"run": "cd x && ./run.sh"},
        {"run": "git -c core.hooksPath=x merge main"},
        {"run": 'python -c "print(1)"'},
        {"uses": f"actions/setup-python@{'0' * 40}"},
    ],
    ids=str,
)
@pytest.mark.parametrize("write", [{"contents": "write"}, "write-all", None])
def test_check_finds_programs_in_a_job_that_can_write(step: dict[str, Any], write: object) -> None:
    job: dict[str, Any] = {"steps": [step]} | (
        {"permissions": write} if write else {"env": "${{ secrets.TOKEN }}"}
    )
    found = problems({"permissions": {"contents": "read"}, "jobs": {"job": job}})
    assert found != []
    assert all("job: can write, and" in it for it in found)


def test_what_is_pinned_passes() -> None:
    clone = f'git clone https://h.example/o/r "$RUNNER_TEMP/r"\ngit -C "$RUNNER_TEMP/r" checkout --detach {"a" * 40}\n'
    for run in [
        f"{PIP} .",
        f"{PIP} --quiet --editable . --group dev -c constraints.txt",
        f"{PIP} -r requirements.txt",
        f"{PIP} 'https://h.example/a.whl#sha256={'a' * 64}'",
        f"{PIP} git+https://h.example/o/r@{'a' * 40}",
        f'{clone}{PIP} "$RUNNER_TEMP/r"',
    ]:
        job = {"permissions": {"contents": "read"}, "steps": [SAFE, {"run": run}]}
        assert problems({"permissions": {}, "jobs": {"job": job}}) == [], run


def test_no_text_says_to_install_by_a_name() -> None:
    """We have published no package, and `fastproj` on PyPI is somebody else's."""
    by_name = re.compile(
        r"(?:pip|pipx|uv)\s+(?:install|add|tool)\b[^`\n]*[ '\"]fastproj(?:-cli)?(?![\w/.-])|uvx +fastproj"
    )
    warning = re.compile(r"`pip install fastproj`[^.:]*\*\*another party's package\*\*")
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, files.split("\0")):
        file = ROOT / name
        if name == "tests/unit/test_workflows.py" or not file.is_file():
            continue
        assert not by_name.search(warning.sub("", file.read_text(errors="replace"))), name
    assert by_name.search("pip install --upgrade fastproj")
    assert by_name.search("uvx fastproj-cli")
