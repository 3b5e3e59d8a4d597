#!/usr/bin/env python3
"""Replay the examples: render a project, apply the change, train, evaluate, export, resume, and update the template.

    examples/replay.py                       # all of them, with a table in the end
    examples/replay.py timm-classifier       # one of them
    examples/replay.py NAME --keep FOLDER    # leave FOLDER/NAME/proj, to look at it or to change the example
    examples/replay.py --requirements        # the packages that the examples need, one per line

An example is a folder with README.md, change.patch, which `git apply` applies to the project as rendered, and
example.toml:

    requirements = ["timm>=1.0"]       # packages, as for pip; none by default
    answers = ["--model", "resnet"]    # of `fastproj new`; the package is named `proj`
    prepare = ["weights.py"]   # optional: a program of the example, run in the project; git must ignore what it writes
    bar = "accuracy >= 0.97"           # what `evaluate` must find; the recipe is in the patch
    tools = [["export"]]               # tools to run on the trained run; evaluate, export and report by default
    faults = ["sigint", "torn-file"]   # after which a short run is resumed and compared to the bit; see tools/faults.py

The project is rendered from an earlier state of the template, in which every module of the engine ends with another
line; the update to the current state must end without a conflict.
"""

import argparse
import json
import operator
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
ROOT = EXAMPLES.parent
ENGINE = "template/project/src/{{ package }}"
COMPARE = {">=": operator.ge, "<=": operator.le}
EARLIER = "# Of an earlier template.\n"


class ReplayError(Exception):
    """What does not work in an example, in a line or with the output of the command that failed."""


@dataclass(frozen=True)
class Example:
    """What `example.toml` says."""

    answers: list[str]
    bar: str
    requirements: list[str] = field(default_factory=list)
    prepare: list[str] = field(default_factory=list)
    tools: list[list[str]] = field(default_factory=lambda: [["export"], ["report"]])
    faults: list[str] = field(default_factory=lambda: ["sigint", "torn-file"])


def read(folder: Path) -> Example:
    """Read an example.

    Raises:
        ReplayError: a file is missing, or a key is unknown.
    """
    try:
        found = tomllib.loads((folder / "example.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ReplayError(f"{folder.name}/example.toml: {error}") from error
    names = {it.name for it in fields(Example)}
    if wrong := (found.keys() - names) | ({"answers", "bar"} - found.keys()):
        raise ReplayError(f"{folder.name}/example.toml: unknown or missing {', '.join(sorted(wrong))}")
    if not re.fullmatch(r"\w+ (>=|<=) [\d.e-]+", found["bar"]):
        raise ReplayError(f'{folder.name}/example.toml: bar must be as "accuracy >= 0.9"')
    return Example(**found)


class Replay:
    """One example in a folder of its own."""

    def __init__(self, name: str, scratch: Path) -> None:
        self.source, self.scratch, self.example = EXAMPLES / name, scratch, read(EXAMPLES / name)
        self.project, self.template = scratch / "proj", scratch / "template"
        paths = [ROOT / "generator", self.project / "src", *filter(None, [os.environ.get("PYTHONPATH")])]
        who = {f"GIT_{it}_{key}": "examples" for it in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
        own = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "FASTPROJ_HOME": str(scratch / "home")}
        self.environment = os.environ | who | own

    def run(self, *command: str, where: Path | None = None) -> str:
        """Run a command in the project and return what it printed.

        Raises:
            ReplayError: it failed.
        """
        folder = where or self.project
        result = subprocess.run(command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False)
        if result.returncode:
            printed = "\n".join((result.stdout + result.stderr).splitlines()[-40:])
            raise ReplayError(f"`{' '.join(command)}` ended with {result.returncode}:\n{printed}")
        return result.stdout

    def python(self, *arguments: str) -> str:
        return self.run(sys.executable, *arguments)

    def commit(self, folder: Path, *tag: str) -> None:
        self.run("git", "add", "--all", where=folder)
        self.run("git", "commit", "--quiet", "--no-verify", "--message", "examples", where=folder)
        if tag:
            self.run("git", "tag", *tag, where=folder)

    def render(self) -> None:
        """Render the project from an earlier state of the template."""
        shutil.copytree(ROOT / "template", self.template / "template", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "copier.yml", self.template)
        self.run("git", "init", "--quiet", where=self.template)
        engine = [*(self.template / ENGINE).rglob("*.py")]
        for file in engine:
            file.write_text(file.read_text(encoding="utf-8") + EARLIER, encoding="utf-8")
        self.commit(self.template, "v0.0.1")
        new = [sys.executable, "-m", "fastproj", "new", "proj", "--yes", "--template", str(self.template)]
        self.run(*new, *self.example.answers, where=self.scratch)
        for file in engine:
            file.write_text(file.read_text(encoding="utf-8").removesuffix(EARLIER), encoding="utf-8")
        self.commit(self.template, "v0.0.2")

    def change(self) -> tuple[int, int, int]:
        """Apply the patch; return how many files it touches, and how many lines it adds and deletes."""
        patch = str(self.source / "change.patch")
        self.run("git", "apply", "--index", patch)
        self.commit(self.project)
        lines = [line.split("\t") for line in self.run("git", "apply", "--numstat", patch).splitlines()]
        added, deleted = (sum(int(line[place]) for line in lines if line[place] != "-") for place in (0, 1))
        if self.example.prepare:
            program, *options = self.example.prepare
            self.python(str(self.source / program), *options)
        return len(lines), added, deleted

    def evaluate(self) -> str:
        """Evaluate the trained run against the bar; return the metric as text."""
        self.python("-m", "proj.tools.evaluate", "runs/example")
        newest = max((self.project / "runs/example/checkpoints").glob("step-*/evaluation.json"))
        name, compare, bar = self.example.bar.split()
        value = json.loads(newest.read_text(encoding="utf-8")).get(name)
        if value is None or not COMPARE[compare](value, float(bar)):
            raise ReplayError(f"{name} is {value}, and it must be {compare} {bar}")
        return f"{name} {value:.4g}"

    def update(self) -> None:
        """Update to the current template, which must change the engine and nothing else."""
        self.python("-m", "fastproj", "update", "--yes")
        if back := self.run("git", "diff", "--cached", "--name-only", "--diff-filter=A").split():
            raise ReplayError(f"the update added {back}")
        engine = {file: file.read_text(encoding="utf-8") for file in self.project.rglob("src/**/*.py")}
        if left := [str(file) for file, text in engine.items() if EARLIER in text or "<<<<<<< " in text]:
            raise ReplayError(f"the update left {left}")

    def whole(self) -> dict[str, str]:
        """Return the row of the table."""
        begin, example = time.perf_counter(), self.example
        self.render()
        files, added, deleted = self.change()
        step("trains", self.python, "-m", "proj.train", "--config=configs/default.yaml", "--run.name=example")
        result = self.evaluate()
        for name, *options in example.tools:
            step(name, self.python, "-m", f"proj.tools.{name}", "runs/example", *options)
        step("resumes", self.python, "-m", "proj.tools.faults", *example.faults)
        step("updates", self.update)
        self.evaluate()
        step("tests", self.python, "-m", "pytest", "-q", "-m", "fast", "-p", "no:cacheprovider")
        row = {"files": files, "added": added, "deleted": deleted, "bar": example.bar, "found": result}
        return {key: str(value) for key, value in row.items()} | {"seconds": f"{time.perf_counter() - begin:.0f}"}


def step(name: str, action: object, *arguments: str) -> None:
    """Do one step of a replay, and say on stderr how long it took."""
    assert callable(action)
    begin = time.perf_counter()
    action(*arguments)
    print(f"  {name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)


def table(rows: dict[str, dict[str, str]]) -> str:
    """Return the rows as a Markdown table."""
    names = ["example", *next(iter(rows.values()))]
    lines = [names, ["---"] * len(names), *([name, *row.values()] for name, row in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Read the command line, replay, and print the table; return the exit status."""
    known = sorted(file.parent.name for file in EXAMPLES.glob("*/example.toml"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"examples, all by default: {', '.join(known)}")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="an empty or new folder to leave the projects in")
    parser.add_argument("--requirements", action="store_true", help="print the packages that the examples need")
    args = parser.parse_args()
    if unknown := {*args.names} - {*known}:
        parser.error(f"no example {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    if args.keep and args.keep.exists() and any(args.keep.iterdir()):
        parser.error(f"--keep {args.keep}: the folder is not empty")
    names: list[str] = args.names or known
    if args.requirements:
        print(*sorted({entry for name in names for entry in read(EXAMPLES / name).requirements}), sep="\n")
        return 0
    rows: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            print(name, file=sys.stderr)
            folder = (args.keep or Path(scratch)).absolute() / name
            folder.mkdir(parents=True)
            try:
                rows[name] = Replay(name, folder).whole()
            except ReplayError as error:
                print(f"{name}: {error}", file=sys.stderr)
    if rows:
        print(table(rows))
    return int(len(rows) < len(names))


if __name__ == "__main__":
    sys.exit(main())
