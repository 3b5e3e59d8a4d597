"""Write docs/gpu.md from benchmarks/gpu.json, the results of `gpu_smoke.py`; without results there is no page.

python benchmarks/gpu_page.py [FILE]
"""

import json
import sys
from pathlib import Path
from typing import Any

from gpu_questions import CEILING, NAMES, QUESTIONS, ROWS
from gpu_smoke import name_of

PAGE = Path(__file__).parents[1] / "docs/gpu.md"
RESULTS = Path(__file__).with_name("gpu.json")
HEAD = """# GPU results

`make gpu-smoke` writes this page. It asks whether each precision and component trains on the GPU and agrees with a
reference run. Then it measures training runs, without validation and checkpoints: loader, forward and backward pass,
clipping, AdamW, schedule and metrics. The data are random images and tokens in host memory, and text for the LSTM.
"""
COLUMNS = """
Samples and tokens per second are medians of blocks of 10 steps. The spread is that of the blocks, from the slowest to
the fastest. MFU: FLOP/s of matrix products, convolutions and attention, as a share of the peak of dense bf16 (TF32:
half of it). Memory is the largest that torch has allocated.

| model | how | samples/s | tokens/s | spread | MFU | memory, GB |
|---|---|---|---|---|---|---|
"""


def page(results: dict[str, Any]) -> str:
    """Return the page of a file of results."""
    return HEAD + _questions(results["machine"], results["results"]) + _rows(results["results"])


def _questions(machine: dict[str, Any], answers: dict[str, Any]) -> str:
    asked = [question.name for question in QUESTIONS if question.name in answers]
    with_status = {
        status: [name for name in asked if answers[name]["status"] == status]
        for status in ("ok", "failed", "skipped")
    }
    text = "\n## Does it train, and does it agree?\n\n"
    text += f"{machine['device']}, torch {machine['torch']}. Of {len(asked)} questions, {len(with_status['ok'])} hold, "
    text += f"{len(with_status['failed'])} failed, {len(with_status['skipped'])} were skipped.\n"
    failed = "".join(f"\n- {name}: {_reason(answers[name])}" for name in with_status["failed"])
    return text + failed + "\n" * bool(failed)


def _rows(answers: dict[str, Any]) -> str:
    text = "\n## Speed and memory\n"
    if (ceiling := answers.get(name_of(CEILING), {})).get("status") == "ok":
        text += f"\nThis GPU reaches {ceiling['tflops']:,.0f} TFLOP/s in a large product in bf16, and copies "
        text += f"{ceiling['copy_tb']:.2f} TB/s.\n"
    used = {
        (answer["driver"], answer["cudnn"]) for answer in answers.values() if "driver" in answer
    }
    text += "".join(f"\nDriver {driver}, cuDNN {cudnn}.\n" for driver, cudnn in sorted(used))
    measured = [row for row in ROWS if row != CEILING and name_of(row) in answers]
    measured.sort(key=lambda row: list(NAMES).index(row.model))
    lines = [
        f"| {NAMES[row.model]} | {row.name} | {_cells(answers[name_of(row)])} |\n"
        for row in measured
    ]
    return text + COLUMNS + "".join(lines)


def _cells(answer: dict[str, Any]) -> str:
    if answer["status"] != "ok":
        return f"{answer['status']}: {_reason(answer)} | | | |"
    tokens = f"{answer['tokens_per_second']:,.0f}" if "tokens_per_second" in answer else ""
    mfu = f"{answer['mfu']:.1%}" if "mfu" in answer else ""
    cells = [f"{answer['samples_per_second']:,.0f}", tokens, f"{answer['spread']:.1%}", mfu]
    return " | ".join([*cells, f"{answer['memory_gb']:.1f}"])


def _reason(answer: dict[str, Any]) -> str:
    last: str = answer["why"].splitlines()[-1]
    return last


def main() -> None:
    """Write the page, if there are results."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    if not file.exists():
        sys.exit(f"error: there is no {file}: run make gpu-smoke on a GPU")
    PAGE.write_text(page(json.loads(file.read_text())))
    print(f"wrote {PAGE.name}: name it in the nav of mkdocs.yml")


if __name__ == "__main__":
    main()
