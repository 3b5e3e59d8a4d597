"""Write docs/gpu.md from benchmarks/gpu.json, the results of `gpu_smoke.py`, if there are any.

python benchmarks/gpu_page.py [FILE]
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from gpu_questions import CEILING, NAMES, QUESTIONS, ROWS
from gpu_smoke import name_of

PAGE = Path(__file__).parents[1] / "docs/gpu.md"
RESULTS = Path(__file__).with_name("gpu.json")
HEAD = """# GPU results

`make gpu-smoke` asks whether each precision and component trains on the GPU and agrees with a
reference run. Then it measures training without validation and checkpoints, on random images and
tokens in host memory, and on text for the LSTM.
"""
COLUMNS = """
Samples and tokens per second are medians of blocks of 10 steps; the spread is from the slowest
block to the fastest, and a row without it is one block. MFU is a share of the peak of dense bf16.
Memory is the most that torch has allocated.
"""
TABLE = """
| how | samples/s | tokens/s | spread | MFU | memory, GB |
|---|---|---|---|---|---|
"""


def page(results: dict[str, Any]) -> str:
    """Return the page of a file of results."""
    answers = results["results"]
    return HEAD + _questions(results["machine"], answers) + _rows(answers)


def _questions(machine: dict[str, Any], answers: dict[str, Any]) -> str:
    counts: Counter[str] = Counter()
    failed = ""
    for question in QUESTIONS:
        answer = answers.get(question.name)
        if answer is None:
            continue
        counts[answer["status"]] += 1
        if answer["status"] == "failed":
            failed += f"\n- {question.name}: {_reason(answer)}"
    text = "\n## Does it train, and does it agree?\n\n"
    text += f"{machine['device']}, torch {machine['torch']}. "
    text += f"Of {counts.total()} questions, {counts['ok']} hold, "
    text += f"{counts['failed']} failed, {counts['skipped']} were skipped.\n"
    if failed:
        text += failed + "\n"
    return text


def _rows(answers: dict[str, Any]) -> str:
    text = "\n## Speed and memory\n"
    ceiling = answers.get(name_of(CEILING))
    if ceiling and ceiling["status"] == "ok":
        product = f"{ceiling['tflops']:,.0f} TFLOP/s in a large product in bf16"
        text += f"\nThis GPU reaches {product}, and copies {ceiling['copy_tb']:.2f} TB/s.\n"

    measured = [answer for answer in answers.values() if "driver" in answer]
    for driver, cudnn in sorted({(answer["driver"], answer["cudnn"]) for answer in measured}):
        text += f"\nDriver {driver}, cuDNN {cudnn}.\n"

    text += COLUMNS
    rows = [row for row in ROWS if row != CEILING and name_of(row) in answers]
    for model, title in NAMES.items():
        lines = [
            f"| {row.name} | {_cells(answers[name_of(row)])} |\n"
            for row in rows
            if row.model == model
        ]
        if lines:
            text += f"\n### {title}\n{TABLE}{''.join(lines)}"
    return text


def _cells(answer: dict[str, Any]) -> str:
    if answer["status"] != "ok":
        return f"{answer['status']}: {_reason(answer)} | | | |"
    cells = [
        f"{answer['samples_per_second']:,.0f}",
        f"{answer['tokens_per_second']:,.0f}" if "tokens_per_second" in answer else "",
        f"{answer['spread']:.1%}" if answer["spread"] else "",
        f"{answer['mfu']:.1%}" if "mfu" in answer else "",
        f"{answer['memory_gb']:.1f}",
    ]
    return " | ".join(cells)


def _reason(answer: dict[str, Any]) -> str:
    last: str = answer["why"].splitlines()[-1]
    return last


def main() -> None:
    """Write the page, if there are results."""
    file = RESULTS
    if len(sys.argv) > 1:
        file = Path(sys.argv[1])
    if not file.exists():
        sys.exit(f"error: there is no {file}: run make gpu-smoke on a GPU")
    PAGE.write_text(page(json.loads(file.read_text())))
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
