"""Measure techniques twice with `fastproj bench`, and write those on which both measurements agree.

python benchmarks/techniques.py resnet bf16 fused        # all techniques of a model by default

benchmarks/techniques.json has the ratios of the speeds of all pairs, with both intervals.
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
COMPONENTS = "activation-checkpointing,ema,lora,mfu,nonfinite,oom,regional-compile"


def measure(model: str, names: list[str]) -> dict[str, Any]:
    """Render the project of a model, and measure its techniques."""
    with tempfile.TemporaryDirectory() as folder:
        project = render_project(Path(folder), "p", model, "--components", COMPONENTS)
        bench = [sys.executable, "-m", "fastproj", "bench", *names, "--json"]
        bench += ["--python", sys.executable]
        results: dict[str, Any] = json.loads(subprocess.check_output(bench, cwd=project))
        return results


def agreed(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return the techniques that are faster, or slower, in both measurements."""
    techniques = {}
    for name, entry in first["techniques"].items():
        other = second["techniques"][name]
        intervals = [entry["interval"], other["interval"]]
        if None in intervals:
            continue
        if max(low for low, _ in intervals) > 1 or min(high for _, high in intervals) < 1:
            ratios = entry["ratios"] + other["ratios"]
            options = {side: entry[side] for side in ("without", "with")}
            techniques[name] = options | {"ratios": ratios, "intervals": intervals}
    return {"machine": first["machine"], "techniques": techniques}


def main() -> None:
    """Measure what was named, and write the results."""
    parser = argparse.ArgumentParser(description="Measure techniques twice with `fastproj bench`.")
    parser.add_argument("model")
    parser.add_argument("names", nargs="*", metavar="TECHNIQUE", help="all by default")
    args = parser.parse_args()
    results = json.loads(RESULTS.read_text())
    results[args.model] = agreed(measure(args.model, args.names), measure(args.model, args.names))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
