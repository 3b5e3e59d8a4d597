"""Make the project your own: remove what is about the example, and leave the smallest data.py and model.py that train.

    python -m <package>.tools.own

A data.py or model.py that you have changed stays. Everything is in the last commit; nothing is committed.
"""

import argparse
import shutil
import subprocess
from pathlib import Path

from ..errors import UserError
from ..failure import leave

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parents[1]
OF_MODEL = ("tests/test_network.py",)
OF_DATA = ("tests/test_data.py", "tests/test_readers.py", "tools/view.py")
TOOLS_OF_TASK = ("task.py", "confusion.py", "image_grid.py", "text_generation.py")
OF_TASK = ("tests/test_task.py", *(f"tools/{name}" for name in TOOLS_OF_TASK))
KEPT_READERS = ("__init__.py", "common.py", "shard_files.py", "shards.py", "unreadable.py")
"""Readers that are useful for any files."""
RECIPE = """\
# Recipe: values that are not set here have their defaults in {config}, with units and descriptions.
train:
  epochs: 20
  micro_batch: 32
optim:
  lr: 1.0e-2
"""


def make_own(force: bool = False) -> tuple[list[str], list[str]]:
    """Remove the example's parts; return what was removed, and what was replaced or kept, as lines to print.

    Raises:
        UserError: there are changes that no commit has, or nothing of the example is left.
    """
    if not force:
        _check_committed()
    changed = {name: not force and _changed(PACKAGE / name) for name in ("data.py", "model.py")}
    names = [*(OF_DATA + OF_TASK), *(() if changed["model.py"] else OF_MODEL)]
    if not changed["data.py"]:
        names += [f"readers/{file.name}" for file in sorted(PACKAGE.glob("readers/*.py"))]
    keep = {f"readers/{name}" for name in KEPT_READERS}
    removed = [name for name in names if name not in keep and (PACKAGE / name).exists()]
    if not removed:
        raise UserError("nothing of the example is left: data.py, model.py and configs/default.yaml are yours to edit")
    said = []
    for name, was_changed in changed.items():
        if was_changed:
            said.append(f"kept      src/{PACKAGE.name}/{name}, which you have changed")
            continue
        text = (PACKAGE / "tools/skeleton" / name).read_text(encoding="utf-8")
        (PACKAGE / name).write_text(text.replace("from ...", "from ."), encoding="utf-8")
        said.append(f"replaced  src/{PACKAGE.name}/{name}: write yours there")
    recipe = ROOT / "configs/default.yaml"
    if not any(changed.values()):
        recipe.write_text(RECIPE.format(config=f"src/{PACKAGE.name}/config.py"), encoding="utf-8")
        said.append("replaced  configs/default.yaml: the recipe")
    for name in removed:
        (PACKAGE / name).unlink()
    return removed, said


def _check_committed() -> None:
    """Refuse to remove what git could not bring back."""
    status = _git("status", "--porcelain")
    if status is None or _git("rev-parse", "HEAD") is None:
        raise UserError("no git repository could bring back what is removed: commit the project first, or add --force")
    if status:
        files = ", ".join(line[3:] for line in status.splitlines()[:3])
        raise UserError(f"there are changes that are not committed ({files}): commit them first, or add --force")


def _changed(file: Path) -> bool:
    """Whether a file is another one than in the commit that added it."""
    added = _git("log", "--diff-filter=A", "--format=%H", "--", str(file))
    return not added or bool(_git("diff", "--name-only", added.split()[-1], "--", str(file)))


def _git(*arguments: str) -> str | None:
    """Return what git prints; None if it fails or is missing."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(ROOT), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return None if result.returncode else result.stdout.rstrip()


def main(argv: list[str] | None = None) -> None:
    """Read the command line, remove the example, and say what is left to write."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.own", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--force", action="store_true", help="also without git, and with changes not committed: lose them"
    )
    args = parser.parse_args(argv)
    try:
        removed, said = make_own(args.force)
    except UserError as error:
        leave(error)
    for name in removed:
        print(f"removed   src/{PACKAGE.name}/{name}")
    print(*said, sep="\n")
    print("next      contracts.py says what the two must provide; `make test-fast` checks them, `make train` trains.")
    print("          tools/task.py, with details for evaluate, predict and export, is optional. Take what you do not")
    print("          import from pyproject.toml, and tell README.md what the project is about.")


if __name__ == "__main__":
    main()
