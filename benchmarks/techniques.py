"""Measure the techniques with `fastproj bench`, and write benchmarks/techniques.json.

python benchmarks/techniques.py               # all models, about 15 minutes each on two cores
python benchmarks/techniques.py resnet
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from projects import render_project

RESULTS = Path(__file__).with_name("techniques.json")
MODELS = ("resnet", "gpt", "mlp")
COMPONENTS = "activation-checkpointing,ema,lora,mfu,nonfinite,oom,regional-compile"


def measure(model: str, rounds: int) -> dict[str, Any]:
    """Render the project of a model, and measure its techniques."""
    with tempfile.TemporaryDirectory() as folder:
        project = render_project(Path(folder), "p", model, "--components", COMPONENTS)
        bench = [sys.executable, "-m", "fastproj", "bench", "--json", "--rounds", str(rounds)]
        bench += ["--python", sys.executable]
        results: dict[str, Any] = json.loads(subprocess.check_output(bench, cwd=project))
        return results


def main() -> None:
    """Measure what was named, and write the results."""
    known = ", ".join(MODELS)
    parser = argparse.ArgumentParser(description="Measure the techniques with `fastproj bench`.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{known}; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    results = json.loads(RESULTS.read_text())
    for model in args.models or MODELS:
        results[model] = measure(model, args.rounds)
        in_order = {name: results[name] for name in MODELS if name in results}
        RESULTS.write_text(json.dumps(in_order, indent=1) + "\n")


if __name__ == "__main__":
    main()
