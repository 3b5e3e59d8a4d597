#!/usr/bin/env python3
"""Replay the examples: render a project, change it, check its types, train, evaluate, and run its tests.

    examples/replay.py                     # all of them, with a table in the end
    examples/replay.py gan own-graphs      # two of them
    examples/replay.py gan --edit FOLDER   # only render FOLDER/proj and change it; *.rej files are what does not fit
    examples/replay.py gan --save FOLDER   # write the changes of FOLDER/proj, as they are now, to gan/change.patch

To rebase a patch: `--edit`, resolve the *.rej files and delete them, `--save`.

An example is a folder with README.md, example.toml and, mostly, change.patch, which `git apply`
applies:

    model = "resnet"                   # `fastproj new proj --model resnet --gpus 0`
    components = ["ema"]               # `--components ema`; none by default
    replaces = ["src/proj/model.py"]   # files that are deleted before; the patch has the new ones, if there are any
    copies = ["first.ipynb"]           # files of the example that are copied into the project
    requirements = ["timm>=1.0"]       # packages, as for pip, besides those of the project
    prepare = "make_images.py"         # a program of the example, run in the project before training
    train = "first.ipynb"              # a notebook whose cells train, instead of configs/default.yaml
    expect = "accuracy >= 0.97"        # what `evaluate` must find
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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
CELLS = """import json, sys
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]))"""


class ReplayError(Exception):
    """What does not work in an example: a line, or the output of the command that failed."""


@dataclass(frozen=True)
class Example:
    """What example.toml says."""

    name: str
    model: str
    expect: str
    components: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    prepare: str = ""
    train: str = ""

    @classmethod
    def read(cls, name: str) -> "Example":
        """Read the file of an example."""
        return cls(
            name, **tomllib.loads((EXAMPLES / name / "example.toml").read_text(encoding="utf-8"))
        )

    @property
    def patch(self) -> Path:
        """The change, if there is one."""
        return EXAMPLES / self.name / "change.patch"

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed here."""
        return [it for it in self.requirements if find_spec(re.split(r"\W", it)[0]) is None]


def run(project: Path, *command: str) -> str:
    """Run a command in a project, and return what it printed."""
    begin = time.perf_counter()
    own = {
        f"GIT_{who}_{what}": "examples"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    done = subprocess.run(
        command,
        cwd=project,
        env=os.environ | own | {"PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        printed = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise ReplayError(f"`{' '.join(command)}` ended with {done.returncode}:\n{printed}")
    if (seconds := time.perf_counter() - begin) > 5:
        print(f"  {seconds:.0f} s: {' '.join(command[1:4])}", file=sys.stderr)
    return done.stdout


def commit(project: Path, tag: str) -> None:
    """Commit all files, and tag the commit."""
    run(project, "git", "add", "--all")
    run(project, "git", "commit", "--quiet", "--no-verify", "--allow-empty", "--message", tag)
    run(project, "git", "tag", tag)


def edit(example: Example, folder: Path, *options: str) -> Path:
    """Render the project into a folder and change it; return the project."""
    project = folder / "proj"
    folder.mkdir(parents=True, exist_ok=True)
    components = ",".join(example.components) or "none"
    fastproj = [sys.executable, "-m", "fastproj", "new", "proj", "--yes", "--no-git", "--gpus", "0"]
    run(folder, *fastproj, "--model", example.model, "--components", components)
    run(project, "git", "init", "--quiet")
    commit(project, "rendered")
    for name in example.replaces:
        (project / name).unlink(missing_ok=True)
    commit(project, "before-the-patch")
    for name in example.copies:
        shutil.copy(EXAMPLES / example.name / name, project)
    if example.patch.exists():
        run(project, "git", "apply", *options, str(example.patch))
    return project


def save(example: Example, project: Path) -> None:
    """Write the changes since the rendering, without the files that are replaced or copied, as the patch."""
    run(project, "git", "add", "--all")
    others = [f":!{name}" for name in (*example.copies, "*.rej")]
    example.patch.write_text(
        run(project, "git", "diff", "--cached", "-U1", "before-the-patch", "--", ".", *others)
    )


def lines(project: Path) -> dict[str, int]:
    """Count the files that differ from the rendering, other than deleted ones, and their lines."""
    run(project, "git", "add", "--all")
    found = run(
        project, "git", "diff", "--cached", "--numstat", "--diff-filter=d", "rendered"
    ).splitlines()
    counts = [line.split("\t") for line in found]
    return {
        "files": len(counts),
        "+": sum(int(it[0]) for it in counts),
        "-": sum(int(it[1]) for it in counts),
    }


def replay(example: Example, folder: Path) -> dict[str, object]:
    """Replay an example; return its row of the table."""
    begin, python = time.perf_counter(), sys.executable
    project = edit(example, folder)
    row: dict[str, object] = dict(lines(project))
    run(project, python, "-m", "ruff", "check")
    run(project, python, "-m", "ruff", "format", "--check")
    if example.missing:
        return row | {"found": f"not trained: it needs {', '.join(example.missing)}"}
    if example.prepare:
        run(project, python, str(EXAMPLES / example.name / example.prepare))
    training = (
        ["-c", CELLS, example.train]
        if example.train
        else ["-m", "proj.train", "--config=configs/default.yaml"]
    )
    run(project, python, *training, *([] if example.train else ["--run.name=first"]))
    row["found"] = evaluate(example, project)
    run(project, python, "-m", "mypy")
    tests = run(project, python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    return row | {"tests": tests.split("\n")[-2], "seconds": round(time.perf_counter() - begin)}


def evaluate(example: Example, project: Path) -> str:
    """Evaluate the run; return the metric, or raise an error if it is not as expected."""
    results = json.loads(
        run(project, sys.executable, "-m", "proj.evaluate", "runs/first").splitlines()[-1]
    )
    name, compare, bound = example.expect.split()
    if not {">=": operator.ge, "<=": operator.le}[compare](results[name], float(bound)):
        raise ReplayError(f"{name} is {results[name]}, and must be {compare} {bound}")
    return f"{name} {results[name]:.4g}"


def main() -> int:
    """Read the command line, and do what it says; return the exit status."""
    known = sorted(file.parent.name for file in EXAMPLES.glob("*/example.toml"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"examples, all by default: {', '.join(known)}"
    )
    parser.add_argument(
        "--edit", type=Path, metavar="FOLDER", help="only render FOLDER/proj, and change it"
    )
    parser.add_argument(
        "--save", type=Path, metavar="FOLDER", help="write the changes of FOLDER/proj as the patch"
    )
    args = parser.parse_args()
    if (unknown := {*args.names} - {*known}) or ((args.edit or args.save) and len(args.names) != 1):
        parser.error(
            f"no example {', '.join(sorted(unknown))}"
            if unknown
            else "give the name of one example"
        )
    if args.edit or args.save:
        example = Example.read(args.names[0])
        try:
            save(example, args.save / "proj") if args.save else edit(example, args.edit, "--reject")
        except ReplayError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    failed = 0
    print("| example | files | + | - | found | tests | seconds |\n|---|---|---|---|---|---|---|")
    for name in args.names or known:
        try:
            with tempfile.TemporaryDirectory() as folder:
                row = replay(Example.read(name), Path(folder))
            print(f"| {' | '.join(map(str, (name, *row.values())))} |", flush=True)
        except ReplayError as error:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
