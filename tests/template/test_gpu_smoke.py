"""`make gpu-smoke` without a GPU: its dry run, what it reports, and that a second call continues the first."""

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_page
import gpu_prepare
import gpu_smoke
import pytest
from gpu_questions import EAGER, FP32, MODELS, QUESTIONS, ROWS, Question, Row
from matrix import EVERY, ROOT

ALL: list[Question | Row] = [*QUESTIONS, *ROWS]
EVERYWHERE = [it for it in ALL if not it.needs]
ONE_OF_EACH_KIND = "^(gpt: bf16, compiled|(gpt|lstm|vit|resnet): bf16|a resumed run agrees|fsdp|optimizers name=muon)$"
SHORT = (*FP32, "--train.steps=2")
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def folder(shared_folder: Path) -> Path:
    """The rendered projects, once for all workers."""
    found = shared_folder / "smoke"
    with open(f"{found}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            gpu_prepare.prepare(found)
    return found


def run(folder: Path, results: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/gpu_smoke.py", f"--folder={folder}", f"--results={results}", "--jobs=2"]
    return subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_dry_run_answers_and_a_second_call_skips(folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "cpu.json"
    only = [] if EVERY else [f"--only={ONE_OF_EACH_KIND}"]
    done = run(folder, results, *only)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(results.read_text())["results"]
    assert {it["status"] for it in found.values()} == {"ok", "skipped"}
    assert sum(it["status"] == "ok" for it in found.values()) == (len(EVERYWHERE) if EVERY else 7)
    assert found["gpt: bf16, compiled"]["why"] == "needs CUDA"
    assert {f"{model}: bf16" for model in MODELS} <= {name for name, it in found.items() if "samples_per_second" in it}
    if EVERY:
        assert run(folder, results).stdout.count("\n") == 1


@pytest.fixture
def ask(folder: Path, tmp_path: Path) -> Ask:
    """Answer a question in this process's call."""
    machine = gpu_smoke.find_machine()

    def answer(asked: Question, seconds: float = 300) -> dict[str, Any]:
        smoke = gpu_smoke.Smoke(folder, tmp_path / "a.json", time.monotonic() + seconds, machine)
        smoke.ask(asked)
        found: dict[str, Any] = smoke.results.get(asked.name, {})
        return found

    return answer


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Question("a", "gpt", (*SHORT, "--optim.lr=0.03"), SHORT, 1e-5), "differ from"),
        (Question("b", "gpt", (*SHORT, "--optim.lr=1e-9")), "did not fall"),
        (Question("c", "gpt", SHORT, prints="out of memory"), "did not print"),
        (Question("d", "gpt", (*EAGER, "--no.option=1")), "no.option"),
    ],
)
def test_failure_is_reported_with_its_reason(ask: Ask, asked: Question, why: str) -> None:
    found = ask(asked)
    assert found["status"] == "failed"
    assert why in found["why"]


def test_question_that_takes_too_long_fails(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_smoke.LIMITS, Question, 0.2)
    assert ask(Question("a", "gpt", FP32))["why"] == "took more than 0 s"


def test_without_time_nothing_is_started(ask: Ask) -> None:
    assert ask(Question("a", "gpt", FP32), seconds=1) == {}


def test_names_are_unique() -> None:
    names = [gpu_smoke.name_of(it) for it in ALL]
    assert len(set(names)) == len(names)


def test_results_of_another_machine_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text('{"machine": {"device": "H100"}, "results": {}}')
    done = run(folder, tmp_path / "gpu.json")
    assert done.returncode == 1
    assert "is of another machine" in done.stderr


def test_page_is_that_of_the_results() -> None:
    text = (ROOT / "docs/gpu.md").read_text()
    assert text == gpu_page.page(gpu_page.read())
    assert len(text.splitlines()) <= 70


def test_page_shows_results_of_a_gpu() -> None:
    row = {"status": "ok", "samples_per_second": 2512.3, "mfu": 0.4123, "tflops": 408.1, "memory_gb": 21.04}
    failed = {"status": "failed", "why": "a\nValueError: b"}
    results = {"resnet: bf16": row | {"data_wait": 0.01}, "gpt: bf16, compiled": failed, "ema": {"status": "ok"}}
    text = gpu_page.page({"machine": {"device": "NVIDIA H100", "torch": "2.11.0", "gpus": 1}, "results": results})
    assert "| ResNet-50, 224 pixels | bf16 | 2,512 | 41.2% | 21.0 |" in text
    assert "| GPT-2 124M, context 1024 | bf16, compiled | failed: ValueError: b | | |" in text
    assert "NVIDIA H100" in text
