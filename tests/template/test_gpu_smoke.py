"""`make gpu-smoke` without a GPU: its dry run, its report, and that a second call continues."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import gpu_page
import gpu_prepare
import gpu_smoke
import pytest
from gpu_questions import COLD, EAGER, FP32, MODELS, QUESTIONS, ROWS, Question, Row, compiles
from matrix import EVERY, ROOT
from program import once

ALL: list[Question | Row] = [*COLD, *QUESTIONS, *ROWS]
EVERYWHERE = [it for it in ALL if not it.needs]
ONE_OF_EACH_KIND = "^(gpt: bf16, compiled|gpt: bf16|a resumed run agrees|gpt: product and copy"
ONE_OF_EACH_KIND += r"|resnet: \+ batch of 256|gpt: bf16: nanoGPT.*)$"
SHORT = (*FP32, "--train.steps=2")
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def folder(shared_folder: Path) -> Path:
    """The rendered projects, once for all workers."""
    found = shared_folder / "smoke"
    with once(found) as first:
        if first:
            gpu_prepare.prepare(found)
    return found


def run(
    folder: Path,
    results: Path,
    *options: str,
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "benchmarks/gpu_smoke.py",
        f"--folder={folder}",
        f"--results={results}",
        "--jobs=2",
    ]
    return subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_dry_run_answers_and_a_second_call_skips(folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "cpu.json"
    only = [] if EVERY else [f"--only={ONE_OF_EACH_KIND}"]
    done = run(folder, results, *only)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(results.read_text())["results"]
    assert {it["status"] for it in found.values()} == {"ok", "skipped"}
    without_timm = [it for it in EVERYWHERE if not gpu_smoke.missing(it, gpu_smoke.find_machine())]
    assert sum(it["status"] == "ok" for it in found.values()) == (len(without_timm) if EVERY else 5)
    assert found["gpt: bf16, compiled"]["why"] == "needs CUDA"
    assert found["gpt: product and copy"]["copy_tb"] > 0
    measured = {name for name, it in found.items() if "samples_per_second" in it}
    assert {f"{model}: bf16" for model in MODELS if EVERY or model == "gpt"} <= measured
    if EVERY:
        assert run(folder, results).stdout.count("\n") == 1


@pytest.fixture
def ask(folder: Path, tmp_path: Path) -> Ask:
    """Answer a question in this process's call."""
    machine = gpu_smoke.find_machine()

    def answer(asked: Question, seconds: float = 300) -> dict[str, Any]:
        smoke = gpu_smoke.Smoke(
            folder,
            tmp_path / "a.json",
            time.monotonic() + seconds,
            machine,
        )
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
    end = mock.Mock(wraps=gpu_smoke.end)
    monkeypatch.setattr(gpu_smoke, "end", end)
    monkeypatch.setitem(gpu_smoke.LIMITS, Question, 0.01)
    assert ask(Question("a", "gpt", FP32))["why"] == "took more than 0 s"
    end.assert_called_once()


def test_end_reaches_children_in_other_sessions() -> None:
    """As torchrun starts its ranks."""
    sleep = "subprocess.Popen(['sleep', '600'], start_new_session=True)"
    program = f"import subprocess; print({sleep}.pid, flush=True); input()"
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            program,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        child = os.pidfd_open(int(process.stdout.readline()))
        assert not select.select([child], [], [], 0)[0], "it runs"
        gpu_smoke.end(process.pid)
        assert process.wait() == -signal.SIGKILL
    assert select.select([child], [], [], 60)[0], "it has ended"
    os.close(child)


def test_compiling_questions_start_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smoke = gpu_smoke.Smoke(tmp_path, tmp_path / "a.json", 0.0, {})
    asked = list[Question | Row]()
    monkeypatch.setattr(smoke, "ask", asked.append)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    gpu_smoke.ask_all(
        smoke,
        [*COLD, *QUESTIONS],
        ROWS,
        jobs=1,
    )
    kinds = [compiles(it) for it in asked[: len(COLD) + len(QUESTIONS)]]
    assert kinds == sorted(kinds, reverse=True)
    assert kinds[: len(COLD)] == [True] * len(COLD)
    assert asked[: len(COLD)] == COLD
    assert asked[len(kinds) :] == ROWS


@pytest.mark.test_all
def test_rows_of_peers_are_taken_over(folder: Path, tmp_path: Path) -> None:
    peers = ["core:gpt", "bare:gpt"]
    command = [
        sys.executable,
        str(folder / "gpu_peers.py"),
        str(folder),
        str(tmp_path / "peers.json"),
        *peers,
    ]
    environment = os.environ | {"BENCHMARKS": "benchmarks"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    smoke = gpu_smoke.Smoke(
        folder,
        tmp_path / "gpu.json",
        0.0,
        gpu_smoke.find_machine(),
    )
    smoke.load()
    assert {name: answer["status"] for name, answer in smoke.results.items()} == {
        "gpt: bf16": "ok",
        "gpt: bf16: the bare step": "ok",
    }
    others = json.loads((tmp_path / "peers.json").read_text())
    (tmp_path / "peers.json").write_text(json.dumps(others | {"machine": {"device": "H100"}}))
    smoke.load()
    assert smoke.results == {}


def test_loading_that_waits_for_the_gpu_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The mode of torch when a batch is loaded, and when a row is read, after some steps."""
    program = f"""
import sys
sys.path[:0] = {[*map(str, (ROOT / "benchmarks", ROOT / "benchmarks/programs"))]}
sys.path.insert(0, {str(folder / "gpt/proj/src")!r})
import gpu_answer, torch
from proj.log import Log
from proj.metrics import Meter
modes = []
torch.cuda.set_sync_debug_mode = modes.append
Log.wait_for, Meter.read = lambda own, batches: None, lambda own: None
with gpu_answer._silent():
    for _ in range(5):
        Log.wait_for(None, iter([]))
    Meter.read(None)
print(*modes)
"""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["default"] * 3 + ["error"] * 2 + ["default"]


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
    page = ROOT / "docs/gpu.md"
    assert page.exists() == gpu_page.RESULTS.exists(), "without results, there is no page"
    assert not page.exists() or page.read_text() == gpu_page.page(
        json.loads(gpu_page.RESULTS.read_text())
    )


def test_page_shows_what_was_measured_and_nothing_else() -> None:
    row = {
        "status": "ok",
        "samples_per_second": 2512.3,
        "mfu": 0.4123,
        "tflops": 408.1,
        "memory_gb": 21.04,
    }
    row |= {"spread": 0.012, "driver": "580.65", "cudnn": 91002}
    failed = {"status": "failed", "why": "a\nValueError: b"}
    results = {"resnet: bf16": row, "gpt: bf16, compiled": failed, "ema": {"status": "ok"}}
    results["gpt: bf16"] = row | {"tokens_per_second": 2572595.0}
    results["gpt: product and copy"] = {"status": "ok", "tflops": 798.2, "copy_tb": 3.01}
    text = gpu_page.page(
        {"machine": {"device": "NVIDIA H100", "torch": "2.11.0", "gpus": 1}, "results": results}
    )
    assert "| bf16 | 2,512 |  | 1.2% | 41.2% | 21.0 |" in text
    assert "| bf16 | 2,512 | 2,572,595 | 1.2% | 41.2% | 21.0 |" in text
    assert "| bf16, compiled | failed: ValueError: b | | | | |" in text
    assert "NVIDIA H100, torch 2.11.0. Of 1 questions, 1 hold" in text
    assert "798 TFLOP/s in a large product in bf16, and copies 3.01 TB/s" in text
    assert "Driver 580.65, cuDNN 91002." in text
    assert text.count("\n| ") == 5
    assert "### ResNet-50, 224 pixels\n" in text
    assert "ViT" not in text
    assert "not measured" not in text
