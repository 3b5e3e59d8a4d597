"""Judge new images of the diffusion model, whether they are digits or copies, for docs/models/diffusion.md.

python benchmarks/new_images.py            # renders a project and trains its recipe, which takes minutes
python benchmarks/new_images.py FOLDER     # of a rendered project named proj, with such a run in runs/0
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PAGE = Path(__file__).parents[1] / "docs" / "models" / "diffusion.md"
NEAREST = 10
"""Training images that must be of one digit."""


def main() -> None:
    """Train if there is no project yet, then judge."""
    options = argparse.ArgumentParser(description="Judge new images of the diffusion model.")
    options.add_argument("project", type=Path, nargs="?", help="folder with a run; by default, the recipe is trained")
    project: Path | None = options.parse_args().project
    with tempfile.TemporaryDirectory() as folder:
        if project is None:
            project = Path(folder, "proj")
            new = [sys.executable, "-m", "fastproj", "new", "proj", "--model", "diffusion", "--gpus", "0"]
            subprocess.run([*new, "--yes", "--no-git", "--output", folder], check=True, stdout=subprocess.DEVNULL)
            train = [sys.executable, "-m", "proj.train", "--config=configs/default.yaml", "--run.name=0"]
            env = {**os.environ, "PYTHONPATH": str(project / "src")}
            subprocess.run(train, check=True, cwd=project, env=env)
        sys.path.insert(0, str(project / "src"))
        write(judge(project / "runs/0"))


def judge(run: Path) -> dict[str, tuple[float, float, float]]:
    """By kind of images: the fraction whose nearest training images are of one digit, and the distance to the first.

    The latter is a root mean squared difference of pixels from 0 to 1: its mean, and its minimum.
    """
    opened, task = import_module("proj.tools.trained_model"), import_module("proj.tools.task")
    data = import_module("proj.data")
    found = data.load(data.DataConfig())
    (seen, digits), (images, _) = (_pixels(split) for split in (found.train, found.val))
    trained = opened.open_trained(run, torch.device("cpu"))
    with torch.inference_mode():
        new = task.sample(trained, len(images), 0).flatten(1).double()
    mean, variances = seen.mean(0), torch.linalg.eigh(seen.T.cov(correction=0))
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = (mean + noise * variances[0].clamp(min=0).sqrt() @ variances[1].T).clamp(0, 1)
    kinds = {"validation": images, "new": new, "of a Gaussian with the training images' mean and covariance": drawn}
    return {kind: _judged(seen, digits, some) for kind, some in kinds.items()}


def _pixels(split: Any) -> tuple[Tensor, Tensor]:
    images, digits = split.__getitems__(list(range(len(split))))
    return images.flatten(1).double() / 255, digits


def _judged(seen: Tensor, digits: Tensor, images: Tensor) -> tuple[float, float, float]:
    nearest = torch.cdist(images, seen).topk(NEAREST, largest=False)
    agree = (digits[nearest.indices] == digits[nearest.indices[:, :1]]).all(1)
    distances = nearest.values[:, 0] / seen.shape[1] ** 0.5
    return agree.double().mean().item(), distances.mean().item(), distances.min().item()


def write(rows: dict[str, tuple[float, float, float]]) -> None:
    """Replace the rows of the page's table."""
    body = "".join(
        f"| {kind} | {agree:.0%} | {mean:.2f} | {least:.2f} |\n" for kind, (agree, mean, least) in rows.items()
    )
    head = r"(\| images \| of one digit \|.*\n\|[-|]+\|\n)(\|.*\n)*"
    text, count = re.subn(head, lambda found: found[1] + body, PAGE.read_text())
    if count != 1:
        sys.exit(f"{PAGE} has no table | images | of one digit |")
    PAGE.write_text(text)
    print(body, end="")


if __name__ == "__main__":
    main()
