"""Measure the techniques with `fastproj bench`, and write the page docs/techniques/measured.md.

.venv/bin/python benchmarks/techniques.py               # all models, about 15 minutes each on two
cores .venv/bin/python benchmarks/techniques.py resnet
.venv/bin/python benchmarks/techniques.py --page        # only the page, from
benchmarks/techniques.json
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = Path(__file__).with_name("techniques.json"), ROOT / "docs/techniques/measured.md"
MODELS = {
    "resnet": "A small ResNet on 8 x 8 digits",
    "gpt": "A GPT of 0.8 million parameters on text",
    "mlp": "A residual MLP on a small table",
}
COMPONENTS = "activation-checkpointing,ema,lora,mfu,nonfinite,oom,regional-compile"
HEAD = """# Measured effects

`benchmarks/techniques.py` wrote this page from what `fastproj bench` measured. The same command measures your project:

```
fastproj bench
```

"Times" is the speed with the technique, divided by the speed without: the median of interleaved rounds, with their
range in parentheses. Where the range contains 1, no effect is shown. "Memory" is the largest memory of the process in
MB. Each trial trains the project's recipe for a few seconds after its first steps, without validations. The machine was
shared with other work.

There is no GPU figure yet.
"""


def measure(model: str, rounds: int) -> dict[str, Any]:
    """Render the project of a model, and measure its techniques."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fastproj"]
        new = [
            "new",
            "p",
            "--model",
            model,
            "--gpus",
            "0",
            "--components",
            COMPONENTS,
            "--yes",
            "--no-git",
        ]
        subprocess.run([*command, *new, "--output", folder], check=True, stdout=subprocess.DEVNULL)
        bench = ["bench", "--rounds", str(rounds), "--python", sys.executable, "--output", folder]
        subprocess.run([*command, *bench], check=True, cwd=Path(folder, "p"))
        found: dict[str, Any] = json.loads(Path(folder, "bench.json").read_text())
        return found


def page(results: dict[str, Any]) -> str:
    """Return the page."""
    text = HEAD
    for model, found in results.items():
        text += f"\n## {model}\n\n{MODELS[model]}; {found['machine']}; one process, one thread.\n\n"
        text += "| technique | what | times | memory without, with |\n|---|---|---|---|\n"
        for name, it in found["techniques"].items():
            text += f"| `{name}` | {it['about']} | {_ratio(it)} | {_memory(it)} |\n"
    return text


def _ratio(found: dict[str, Any]) -> str:
    if found["problem"] or not found["ratios"]:
        return f"not measured: {found['problem']}"
    ratios = found["ratios"]
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _memory(found: dict[str, Any]) -> str:
    peaks = [found["peak_mb"][side] for side in ("without", "with")]
    return ", ".join(f"{median(it):,.0f}" for it in peaks) if all(peaks) else ""


def main() -> None:
    """Measure what was named, and write the results and the page."""
    options = argparse.ArgumentParser(description="Measure the techniques with `fastproj bench`.")
    options.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"{', '.join(MODELS)}; all by default"
    )
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--page", action="store_true", help="write the page only")
    given = options.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for model in [] if given.page else given.models or MODELS:
        results = {name: results[name] for name in MODELS if name in results} | {
            model: measure(model, given.rounds)
        }
        RESULTS.write_text(
            json.dumps({name: results[name] for name in MODELS if name in results}, indent=1) + "\n"
        )
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
