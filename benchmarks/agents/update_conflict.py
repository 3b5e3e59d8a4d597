"""Update an edited project whose template changed beside the edit."""

import tempfile
from pathlib import Path

from common import RECIPE, Project, commit_release, expect, git, read_rows, replace

MODEL = "mlp"
NEWEST = "v1.1.0"
OWN = "  lr: 2.0e-3  # best of our search in March\n"
LINES = "  lr: 1.0e-3\n  weight_decay: 0.5  # applied to matrices only\n"
NEW_LINES = "  lr: 1.5e-3\n  weight_decay: 0.3  # applied to matrices only; better on tables\n"
FILE = ".github/dependabot.yml"
NEW_LINE = "# Read by GitHub once a week.\n"


def prepare(folder: Path) -> None:
    """Edit and commit the recipe; then release a version of the template."""
    replace(folder / RECIPE, LINES.partition("\n")[0] + "\n", OWN)
    git(folder, "commit", "--all", "--quiet", "--message", "Our learning rate")
    bundle = folder.parent / "template.bundle"
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch) / "template"
        git(folder, "clone", "--quiet", str(bundle), str(clone))
        replace(clone / f"template/models/{MODEL}/default.yaml", LINES, NEW_LINES)
        (file,) = (clone / "template/project").rglob("dependabot.yml*")
        file.write_text(NEW_LINE + file.read_text(encoding="utf-8"), encoding="utf-8")
        commit_release(clone, NEWEST, bundle)


def check(project: Project) -> None:
    """Read the files, the state of git and a run."""
    answers = (project.folder / ".copier-answers.yml").read_text(encoding="utf-8")
    expect(f"_commit: {NEWEST}" in answers, f"the project is not at {NEWEST}")
    recipe = (project.folder / RECIPE).read_text(encoding="utf-8")
    expect(OWN in recipe, "the learning rate or its comment was not kept")
    new = NEW_LINES.splitlines()[1]
    expect(new in recipe, "the recipe has not the template's other change")
    for mark in ("<<<<<<<", ">>>>>>>"):
        expect(mark not in recipe, "the recipe has marks of a conflict")
    changed = (project.folder / FILE).read_text(encoding="utf-8")
    expect(NEW_LINE in changed, f"{FILE} is not the template's")
    state = git(project.original, "status", "--porcelain")
    expect(not state.strip(), f"not committed: {state.strip()[:100]}")
    expect(not (project.original / ".git/CHERRY_PICK_HEAD").exists(), "the update is not finished")
    run = project.train("--train.steps=10", "--train.eval_every=10")
    expect(read_rows(run, "val"), "the run has no validation")
