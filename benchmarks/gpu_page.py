"""Write docs/gpu.md from benchmarks/gpu.json, the results of `gpu_smoke.py`.

python benchmarks/gpu_page.py [FILE]
"""

import json
import sys
from pathlib import Path
from typing import Any

from gpu_questions import NAMES, QUESTIONS, ROWS, Row

PAGE = Path(__file__).parents[1] / "docs/gpu.md"
RESULTS = Path(__file__).with_name("gpu.json")
NONE: dict[str, Any] = {"machine": None, "results": {}}
HEAD = """# GPU results

`make gpu-smoke` fills this page in at most nine minutes on one GPU. A second call continues the first. It asks whether
each precision and component trains on the GPU and agrees with a reference run. Then it measures whole training runs:
loader, forward and backward pass, clipping, AdamW, schedule and metrics. The data are random images and tokens in host
memory, and text for the LSTM.

To run it on a machine without a network, prepare a folder for its version of Python, and copy it with the repository:

```
python benchmarks/gpu_smoke.py --prepare 3.12   # writes build/gpu-smoke
```
"""
ANCHORS = """
## Records to compare with

These are results of others, from the sources named. The share of the peak is computed from what the source states: the
FLOPs of the run, its time, and 312 TFLOP/s of an A100 in bf16 or fp16.

| record | hardware | time | share of the peak |
|---|---|---|---|
| [airbench94_muon][airbench]: CIFAR-10, 94% | one A100 | 2.59 s, 0.29 PFLOP | 36% |
| [airbench96_faster][airbench]: CIFAR-10, 96% | one A100 | 27.3 s, 3.1 PFLOP | 36% |
| [ResNet-18, plain training][airbench]: CIFAR-10, 96% | one A100 | 7 min, 32.3 PFLOP | 25% |
| [modded-nanogpt][modded]: loss of 3.28 on FineWeb | 8 x H100 | under 90 s | not stated |
| [llm.c][modded], where modded-nanogpt began: the same loss | 8 x H100 | 45 min | not stated |
| [MLPerf Training 3.0][mlperf]: ResNet-50, 75.9% | 8 x H100 | 13.5 min | not stated |

[airbench]: https://github.com/KellerJordan/cifar10-airbench
[modded]: https://github.com/KellerJordan/modded-nanogpt
[mlperf]: https://developer.nvidia.com/deep-learning-performance-training-inference/training
"""


def read(file: Path = RESULTS) -> dict[str, Any]:
    """Return the results, if there are any."""
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else NONE
    return found


def page(found: dict[str, Any]) -> str:
    """Return the page."""
    return HEAD + _questions(found) + _rows(found) + ANCHORS


def _questions(found: dict[str, Any]) -> str:
    machine, results = found["machine"], found["results"]
    answers = {it.name: results.get(it.name, {"status": "open"}) for it in QUESTIONS}
    counts = {status: [name for name, it in answers.items() if it["status"] == status] for status in ("ok", "failed")}
    skipped = [name for name, it in answers.items() if it["status"] == "skipped"]
    text = "\n## Does it train, and does it agree?\n\n"
    if machine is None:
        return text + f"{len(QUESTIONS)} questions; not measured yet.\n"
    text += f"{machine['device']}, torch {machine['torch']}. Of {len(QUESTIONS)} questions, {len(counts['ok'])} hold, "
    text += f"{len(counts['failed'])} failed, {len(skipped)} were skipped.\n"
    return (
        text
        + "".join(f"\n- {name}: {_reason(answers[name])}" for name in counts["failed"])
        + "\n" * bool(counts["failed"])
    )


def _rows(found: dict[str, Any]) -> str:
    text = "\n## Speed and memory\n\n"
    text += (
        "MFU: FLOP/s of matrix products, convolutions and attention, as a share of the peak of dense bf16 (TF32: half\n"
    )
    text += "of it). Memory is the largest that torch has allocated.\n\n"
    text += "| model | how | samples/s | MFU | memory, GB |\n|---|---|---|---|---|\n"
    order = sorted(ROWS, key=lambda row: list(NAMES).index(row.model))
    return text + "".join(f"| {NAMES[row.model]} | {row.name} | {_cells(row, found)} |\n" for row in order)


def _cells(row: Row, found: dict[str, Any]) -> str:
    it = found["results"].get(f"{row.model}: {row.name}", {"status": "open"})
    if it["status"] == "ok":
        mfu = f"{it['mfu']:.1%}" if "mfu" in it else ""
        return f"{it['samples_per_second']:,.0f} | {mfu} | {it['memory_gb']:.1f}"
    return ("not measured yet" if it["status"] == "open" else f"{it['status']}: {_reason(it)}") + " | | "[:-1]


def _reason(it: dict[str, Any]) -> str:
    last: str = it["why"].splitlines()[-1]
    return last


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(read(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)))


if __name__ == "__main__":
    main()
