"""Measure the techniques with `fastproj bench`, and write the page docs/techniques/measured.md.

python benchmarks/techniques.py               # all models, about 15 minutes each on two cores
python benchmarks/techniques.py resnet
python benchmarks/techniques.py --page        # only the page, from benchmarks/techniques.json
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from projects import ROOT, render_project

RESULTS = Path(__file__).with_name("techniques.json")
PAGE = ROOT / "docs/techniques/measured.md"
MODELS = {
    "resnet": "A small ResNet on 8 x 8 digits",
    "gpt": "A GPT of 0.8 million parameters on text",
    "mlp": "A residual MLP on a small table",
}
COMPONENTS = "activation-checkpointing,ema,lora,mfu,nonfinite,oom,regional-compile"
HEAD = """# Measured effects

`benchmarks/techniques.py` wrote this page from what `fastproj bench` measured. The same command
measures your project:

```
fastproj bench
```

"Times" is the speed with the technique, divided by the speed without: the median of interleaved
rounds, with their range in parentheses. Where the range contains 1, no effect is shown. "Memory" is
the largest memory of the process in MB. Each trial trains the project's recipe for a few seconds
after its first steps, without validations. The machine was shared with other work.

There is no GPU figure yet.
"""


def measure(model: str, rounds: int) -> dict[str, Any]:
    """Render the project of a model, and measure its techniques."""
    with tempfile.TemporaryDirectory() as folder:
        project = render_project(Path(folder), "p", model, "--components", COMPONENTS)
        bench = [sys.executable, "-m", "fastproj", "bench", "--rounds", str(rounds)]
        bench += ["--python", sys.executable, "--output", folder]
        subprocess.run(bench, check=True, cwd=project)
        results: dict[str, Any] = json.loads(Path(folder, "bench.json").read_text())
        return results


def page(results: dict[str, Any]) -> str:
    """Return the page."""
    text = HEAD
    for model, result in results.items():
        machine = result["machine"]
        text += f"\n## {model}\n\n{MODELS[model]}; {machine}; one process, one thread.\n\n"
        text += "| technique | what | times | memory without, with |\n|---|---|---|---|\n"
        for name, trial in result["techniques"].items():
            text += f"| `{name}` | {trial['about']} | {_ratio(trial)} | {_memory(trial)} |\n"
    return text


def _ratio(trial: dict[str, Any]) -> str:
    ratios = trial["ratios"]
    if trial["problem"] or not ratios:
        return f"not measured: {trial['problem']}"
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _memory(trial: dict[str, Any]) -> str:
    without = trial["peak_mb"]["without"]
    used = trial["peak_mb"]["with"]
    if not without or not used:
        return ""
    return f"{median(without):,.0f}, {median(used):,.0f}"


def main() -> None:
    """Measure what was named, and write the results and the page."""
    known = ", ".join(MODELS)
    parser = argparse.ArgumentParser(description="Measure the techniques with `fastproj bench`.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{known}; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", action="store_true", help="write the page only")
    args = parser.parse_args()
    results = json.loads(RESULTS.read_text())
    if not args.page:
        for model in args.models or MODELS:
            results[model] = measure(model, args.rounds)
            in_order = {name: results[name] for name in MODELS if name in results}
            RESULTS.write_text(json.dumps(in_order, indent=1) + "\n")
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
