"""Tune every model on this machine, and print what was chosen and gained.

    python benchmarks/tune.py runs/tuned
    python benchmarks/tune.py runs/tuned mlp resnet --budget 300

The projects stay in the folder, so that a second start goes on where the first one ended.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Render, tune, and print a row per model."""
    models = list(yaml.safe_load((ROOT / "copier.yml").read_text())["models"]["default"])
    parser = argparse.ArgumentParser(description="Tune every model on this machine.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", help=f"models among {', '.join(models)}; all by default")
    parser.add_argument("--budget", default="300")
    args = parser.parse_args()
    if unknown := set(args.models) - set(models):
        sys.exit(f"unknown model {', '.join(sorted(unknown))}: choose from {', '.join(models)}")
    print("| model | chosen | times as fast |\n|---|---|---|")
    for model in args.models or models:
        found = tune(args.folder, model, args.budget)
        chosen = ", ".join(f"`{name}={value}`" for name, value in found.get("values", {}).items())
        compared = found.get("compared")
        ratio = f"{compared['ratio']:.2f}" if compared else "-"
        print(f"| {model} | {chosen or found.get('error', 'no proven gain')} | {ratio} |", flush=True)
        for it in found.get("findings", []):
            print(f"{model}: {it['stage']} {it['what']}: {it['verdict']}: {it['why']}", file=sys.stderr, flush=True)


def tune(folder: Path, model: str, budget: str) -> dict[str, Any]:
    """Return what tune says about a model, or its error."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / model).exists():
        new = [sys.executable, "-m", "fastproj", "new", model, "--model", model, "--gpus", "0"]
        subprocess.run([*new, "--yes", "--no-git", "--output", str(folder)], check=True, stdout=subprocess.DEVNULL)
    environment = os.environ | {"PYTHONPATH": str((folder / model / "src").absolute())}
    command = [sys.executable, "-m", f"{model}.tools.tune", "--json", f"--budget={budget}"]
    done = subprocess.run(command, cwd=folder / model, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {"error": f"status {done.returncode}"}


if __name__ == "__main__":
    main()
