"""The scripts of the workflow that opens a pull request, with stand-ins for `gh` and pip."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2.sandbox import SandboxedEnvironment
from matrix import QUESTIONS, UPDATE_SOURCE, tiers
from program import Fastproj
from updating import MakeProject, commit, edit, git

WHEEL = f"https://git.example.org/files/fastproj_cli-0.3.0-py3-none-any.whl#sha256={'0a' * 32}"
WorkflowOf = Callable[[str], dict[str, Any]]
COMMIT = f"git+https://git.example.org/group/owner/fastproj.git@{'0123456789' * 4}"


@dataclass
class GitHub:
    """Runs the jobs of a workflow, each in a clone of the project."""

    jobs: dict[str, Any]
    folder: Path
    environment: dict[str, str]

    @property
    def called(self) -> list[str]:
        """The calls of the stand-ins."""
        file = self.folder / "called"
        return file.read_text().splitlines() if file.exists() else []

    def start(self, branch: str = "main") -> None:
        """Check the branch out for both jobs."""
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        for job in ("update", "pull-request"):
            (self.folder / f"work/{job}-temp").mkdir(parents=True)
            git(self.folder, "clone", "-q", "--branch", branch, "origin.git", f"work/{job}")

    def run(self, branch: str) -> list[str]:
        """Run both jobs for a branch; return the name and the errors of the one that failed."""
        self.start(branch)
        done = self.job("update")
        if done.returncode != 0:
            return ["update", done.stderr]
        pairs = (line.split("=") for line in self.output.read_text().splitlines())
        outputs = {f"needs.update.outputs.{name}": value for name, value in pairs}
        if not outputs:
            return []
        shutil.copytree(
            self.folder / "work/update-temp/update", self.folder / "work/pull-request-temp/update"
        )
        done = self.job("pull-request", outputs)
        return [] if done.returncode == 0 else ["pull-request", done.stderr]

    @property
    def output(self) -> Path:
        return self.folder / "work/update-temp/output"

    def job(
        self, name: str, outputs: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run the scripts of a job up to the first that fails.

        `outputs` are those of the first job.
        """
        values = {"secrets.FASTPROJ_TOKEN || github.token": "token"} | (outputs or {})
        temporary = self.folder / f"work/{name}-temp"
        self.output.touch()
        variables = self.environment | {
            "RUNNER_TEMP": str(temporary),
            "GITHUB_OUTPUT": str(self.output),
        }
        variables |= {"PATH": f"{self.folder}/{name}:{os.environ['PATH']}"}
        for step in self.jobs[name]["steps"]:
            assert "${{" not in step.get("run", ""), "text from outside is only ever in variables"
            env = {key: values[value.strip("${} ")] for key, value in step.get("env", {}).items()}
            shell = [
                "bash",
                "--noprofile",
                "--norc",
                "-eo",
                "pipefail",
                "-c",
                step.get("run", "true"),
            ]
            done = subprocess.run(
                shell,
                cwd=self.folder / "work" / name,
                env=variables | env,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                break
        return done


@pytest.fixture(scope="module")
def workflow_of(fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory) -> WorkflowOf:
    """Return the jobs of the workflow that installs from a source."""

    @cache
    def render(source: str) -> str:
        folder = tmp_path_factory.mktemp("workflow")
        answers = ["--components", "update-workflow", "--data", f"update_source={source}"]
        fastproj(
            "new",
            "other",
            "--yes",
            "--no-git",
            *answers,
            "--output",
            str(folder),
        )
        return (folder / "other/.github/workflows/update.yml").read_text()

    return lambda source: yaml.safe_load(render(source))["jobs"]


def stand_ins(folder: Path, **scripts: str) -> None:
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)


@pytest.fixture
def github(
    workflow_of: WorkflowOf,
    environment: dict[str, str],
    tmp_path: Path,
) -> GitHub:
    """The workflow, stand-ins that record their calls, and a repository of the program."""
    record = f'echo "$(basename "$0") $@" >> {tmp_path}/called'
    python = f'case "$2" in pip) {record};; *) exec {sys.executable} "$@";; esac'
    stand_ins(
        tmp_path / "update",
        fastproj=f'exec {sys.executable} -m fastproj "$@"',
        python=python,
        gh=record,
    )
    stand_ins(
        tmp_path / "pull-request",
        fastproj=record,
        python=record,
        python3=record,
        pip=record,
        gh=record,
    )
    program = tmp_path / "program"
    git(tmp_path, "init", "-q", "program")
    for version in ("v0.3.0", "v0.4.0"):
        (program / "version").write_text(version)
        git(program, "add", "version")
        git(
            program, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", version
        )
        git(program, "tag", version)
    git(program, "branch", "v0.5.0")
    config = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{program}.insteadOf"}
    config |= {"GIT_CONFIG_VALUE_0": "https://git.example.org/owner/fastproj"}
    return GitHub(workflow_of(UPDATE_SOURCE), tmp_path, environment | config)


def project_on_github(github: GitHub, folder: Path) -> None:
    git(github.folder, "clone", "-q", "--bare", str(folder), "origin.git")


@pytest.mark.parametrize("conflict", tiers([False], [True]))
def test_workflow_opens_one_pull_request(
    conflict: bool, github: GitHub, make_project: MakeProject
) -> None:
    folder = make_project("v0.1.0")
    edit(
        folder / "src/proj/engine.py",
        *(('"""Of', '"""Mine') if conflict else ("return 20", "return 21")),
    )
    commit(folder)
    project_on_github(github, folder)
    assert github.run("main") == []
    work = github.folder / "work"
    assert (work / "update-temp/fastproj/version").read_text() == "v0.3.0", (
        "the tag, and not the branch"
    )
    installed, signed_in, opened = github.called
    assert installed == f"python -m pip install {work}/update-temp/fastproj"
    assert signed_in == "gh auth setup-git"
    assert opened.startswith(
        "gh pr create --head fastproj-v0.3.0 --title Update to template v0.3.0"
    )
    assert opened.endswith("--draft") == conflict
    assert "Updated" in (work / "pull-request-temp/update/report.md").read_text()
    origin = github.folder / "origin.git"
    pushed = git(origin, "show", "fastproj-v0.3.0:src/proj/engine.py")
    assert ("<<<<<<< HEAD" in pushed) == conflict
    assert ("Mine" if conflict else "return 21") in pushed
    assert "News" not in pushed
    staged = git(work / "update", "write-tree")
    assert git(origin, "rev-parse", "fastproj-v0.3.0^{tree}") == staged, (
        "binaries, modes and deletions too"
    )
    assert git(origin, "rev-parse", "fastproj-v0.3.0~1") == git(origin, "rev-parse", "main")
    if conflict:
        return
    assert github.run("main") == []
    assert github.called[3:] == [installed, signed_in], "no second one while the first is open"
    assert github.run("fastproj-v0.3.0") == []
    assert github.called[5:] == [installed], "nothing newer"


def test_error_fails_the_job(github: GitHub, make_project: MakeProject) -> None:
    folder = make_project("v0.1.0")
    edit(folder / ".copier-answers.yml", "_commit: v0.1.0", "_commit: v9.9.9")
    commit(folder)
    project_on_github(github, folder)
    job, error = github.run("main")
    assert job == "update"
    assert "has no version v9.9.9" in error
    assert github.output.read_text() == ""


def patch(github: GitHub, place: str) -> None:
    """Give the second job a patch that adds a script at this path."""
    update = github.folder / "work/pull-request-temp/update"
    update.mkdir()
    (update / "report.md").touch()
    script = f"@@ -0,0 +1,2 @@\n+#!/bin/sh\n+touch {github.folder}/ran\n"
    header = f"diff --git a/{place} b/{place}\nnew file mode 100755\n--- /dev/null\n+++ b/{place}\n"
    (update / "changes.patch").write_text(header + script)


def open_pull_request(github: GitHub, version: str) -> "subprocess.CompletedProcess[str]":
    return github.job(
        "pull-request",
        {"needs.update.outputs.version": version, "needs.update.outputs.draft": "false"},
    )


def test_second_job_uses_nothing_but_version_numbers(
    github: GitHub, make_project: MakeProject
) -> None:
    project_on_github(github, make_project("v0.3.0"))
    github.start()
    for version in [
        "",
        "v1;touch x",
        "../v1",
        "v1..2",
        "-v1",
        "v1 2",
        "v1\nv2",
        "$(id)",
        "v1@{1}",
        "main",
        "v1~1",
        "v1.",
    ]:
        done = open_pull_request(github, version)
        assert (done.returncode, done.stderr) == (
            1,
            "the newest version is not a version number\n",
        ), version
    assert github.called == []
    patch(github, "run.sh")
    for version in ["v0.3.0", "0.3.0", "2025.10", "1", "v1.0rc1", "1.2.dev0", "v0.2.0-3-g1a2b3c4"]:
        git(github.folder / "work/pull-request", "checkout", "-q", "--force", "main")
        assert open_pull_request(github, version).returncode == 0, version
        assert (
            git(
                github.folder / "origin.git",
                "ls-tree",
                "--name-only",
                f"fastproj-{version}",
                "run.sh",
            )
            == "run.sh"
        )


def test_second_job_runs_nothing_from_the_patch(github: GitHub, make_project: MakeProject) -> None:
    project_on_github(github, make_project("v0.3.0"))
    for place in (".git/hooks/pre-commit", ".GIT/hooks/pre-commit", "../outside", "run.sh"):
        github.start()
        patch(github, place)
        done = open_pull_request(github, "v0.4.0")
        assert (done.returncode == 0) == (place == "run.sh"), done.stderr
    assert not (github.folder / "ran").exists()
    assert not (github.folder / "work/outside").exists()
    assert all(line.startswith("gh ") for line in github.called), (
        "no program of the project or of an install"
    )


def test_workflow_installs_the_source_in_the_answers(workflow_of: WorkflowOf) -> None:
    for source, lines in {
        WHEEL: [f"python -m pip install '{WHEEL}'"],
        COMMIT: [
            "git clone --quiet 'https://git.example.org/group/owner/fastproj.git' "
            '"$RUNNER_TEMP/fastproj"',
            f"""git -C "$RUNNER_TEMP/fastproj" checkout --quiet --detach '{"0123456789" * 4}'""",
            'python -m pip install "$RUNNER_TEMP/fastproj"',
        ],
    }.items():
        steps = workflow_of(source)["update"]["steps"]
        assert [step["run"].rstrip() for step in steps if "install" in step.get("run", "")] == [
            "\n".join(lines)
        ]


def test_branch_named_like_a_version_is_not_installed(
    github: GitHub, workflow_of: WorkflowOf, make_project: MakeProject
) -> None:
    project_on_github(github, make_project("v0.1.0"))
    github.jobs = workflow_of(UPDATE_SOURCE.replace("v0.3.0", "v0.5.0"))
    job, error = github.run("main")
    assert job == "update"
    assert "refs/tags/v0.5.0" in error
    assert github.called == []


MOVING = [
    "",
    ".",
    "fastproj",
    "fastproj==0.1.0",
    "fastproj-cli",
    "git+https://h.example/o/r",
    "git+https://h.example/o/r@main",
    "git+https://h.example/o/r@1.x",
    "git+https://h.example/o/r@v1",
    "git+https://h.example/o/r@0123abc",
    "git+https://h.example/o/r@v1.0.0\n",
    "git+https://h.example/o/r@v1.0'",
    "git+https://h.example/o/r@v1.0 --pre",
    "git+https://h.example/$(id)/r@v1.0",
    "git+https://u:p@h.example/o/r@v1.0",
    "git+https://h.example/o/../r@v1.0",
    "git+https://h.example/-o/r@v1.0",
    "git+ssh://h.example/o/r@v1.0",
    "git+http://h.example/o/r@v1.0",
    "https://h.example/a.whl",
    f"https://h.example/a.tar.gz#sha256={'a' * 64}",
    f"http://h.example/a.whl#sha256={'a' * 64}",
    f"https://h.example/a.whl#sha256={'a' * 63}",
    f"https://h.example/a.whl#sha256={'a' * 64};id",
    f"https://h.example/${{{{x}}}}.whl#sha256={'a' * 64}",
]


def test_source_that_can_move_is_refused(fastproj: Fastproj, tmp_path: Path) -> None:
    jinja = SandboxedEnvironment(extensions=["jinja2_ansible_filters.AnsibleCoreFiltersExtension"])
    validator = jinja.from_string(QUESTIONS["update_source"]["validator"])
    for source in MOVING:
        said = validator.render(update_source=source, components=["update-workflow"]).strip()
        assert said.startswith(("enter git+https", "end it with @")), source
    release = "git+https://h.example/o/r@"
    for source in [
        WHEEL,
        COMMIT,
        UPDATE_SOURCE,
        f"{release}1.0",
        f"{release}v1.0.0rc1",
        f"{release}1.2.3.dev0",
    ]:
        assert (
            validator.render(update_source=source, components=["update-workflow"]).strip() == ""
        ), source
    result = fastproj(
        "new",
        "p",
        "--yes",
        "--components=update-workflow",
        "--data=update_source=fastproj",
        cwd=tmp_path,
        status=2,
    )
    assert result.stderr.startswith(
        "fastproj: --data update_source: enter git+https://HOST/OWNER/REPO@TAG"
    )
    assert list(tmp_path.iterdir()) == []


def test_source_is_required_with_the_workflow_only(fastproj: Fastproj, tmp_path: Path) -> None:
    missing = fastproj(
        "new",
        "p",
        "--yes",
        "--components=update-workflow",
        cwd=tmp_path,
        status=2,
    )
    assert (
        missing.stderr
        == "fastproj: update_source has no default: answer it with --data update_source\n"
    )
    alone = fastproj(
        "new", "p", "--yes", "--data", f"update_source={WHEEL}", cwd=tmp_path, status=2
    )
    assert alone.stderr.startswith(
        f"fastproj: --data update_source: {WHEEL} requires the component update-workflow"
    )
    assert list(tmp_path.iterdir()) == []
