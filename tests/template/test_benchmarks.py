"""Each row of a technique's page has a comparison that fills it, with options that exist."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrix import ENGINE_MODEL, FRAMEWORKS, ROOT
from program import PROGRAMS, Project, run_in
from warm import run_python


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The comparisons by device."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import comparisons_cpu
    import comparisons_gpu

    return {"cpu": comparisons_cpu.COMPARISONS, "cuda": comparisons_gpu.COMPARISONS}


def test_pages_and_charts_show_what_was_measured(comparisons: dict[str, list[Any]]) -> None:
    import pages

    for file, text in pages.files().items():
        assert file.read_text() == text, f"{file.name}: run python benchmarks/pages.py"
    texts = {page.stem: page.read_text() for page in (ROOT / "docs/techniques").glob("*.md")}
    for row in (row for rows in comparisons.values() for row in rows):
        assert f"| {row.what} |" in texts[row.page] or f"\n- {row.what}\n" in texts[row.page]


def test_measurement_replaces_an_earlier_one(
    comparisons: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pages

    written: dict[Path, str] = {}
    monkeypatch.setattr(Path, "write_text", lambda file, text: written.update({file: text}))
    row = pages.measured()["compile"][0]
    pages.keep("compile", pages.Measured(row.what, "a GPU", "torch 3", [1.0], [4.0, 2.0, 3.0]))
    kept = json.loads(written[pages.TECHNIQUES])
    assert [it["with_it"] for it in kept["compile"] if it["what"] == row.what] == [[4.0, 2.0, 3.0]]
    assert kept["debugging"] == json.loads(pages.TECHNIQUES.read_text())["debugging"]


@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_options_of_comparisons_exist(comparisons: dict[str, list[Any]], project: Project, model: str) -> None:
    rows = [row for rows in comparisons.values() for row in rows if row.model == model]
    every = [options for row in rows for options in (row.without, row.with_it)]
    assert len(every) > 20
    result = run_python(project(FRAMEWORKS[0], model), str(PROGRAMS / "parse_options.py"), json.dumps(every))
    assert result.returncode == 0, result.stderr[-2000:]


def test_defaults_of_lightning_are_enabled(project: Project, tmp_path: Path) -> None:
    options = ["--config=configs/default.yaml", "--config=configs/smoke.yaml", "--run.device=cpu", "--train.steps=2"]
    options += ["--log.every=1", "--train.eval_every=2", f"--run.dir={tmp_path}", "--run.name=a"]
    program = [str(ROOT / "benchmarks/programs/framework_run.py"), "log,csv,bar,checkpoints"]
    result = run_python(project("lightning", ENGINE_MODEL), *program, *options)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "Epoch 0" in result.stdout
    assert "logged_loss" in next(tmp_path.rglob("metrics.csv")).read_text()
    assert list(tmp_path.rglob("*.ckpt"))


def test_models_of_comparisons_are_those_tested_here(comparisons: dict[str, list[Any]]) -> None:
    assert {row.model for rows in comparisons.values() for row in rows} == {"gpt", "resnet"}


def test_device_without_a_gpu_and_unknown_page_are_refused() -> None:
    for options, message in ((["--device=cuda"], "finds no CUDA device"), (["nothing"], "unknown page nothing")):
        command = [sys.executable, "benchmarks/bench.py", *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert message in done.stderr


def test_gpt2_is_measured_with_its_vocabulary(
    comparisons: dict[str, list[Any]], project: Project, tmp_path: Path
) -> None:
    large = [row for row in comparisons["cuda"] if "--model.size=124M" in row.without]
    assert len(large) > 10
    assert all("page_changes.gpt2" in change.split("+") for row in large for change in row.changes)
    small = ["--model.depth=1", "--model.width=8", "--model.heads=1", "--data.context=8", "--data.val_fraction=1e-5"]
    small += ["--train.micro_batch=1", "--train.steps=1"]
    where = [f"--run.dir={tmp_path}", "--run.name=a", "--run.device=cpu"]
    folder = project(FRAMEWORKS[0], "gpt")
    found = {"BENCH_CHANGES": "page_changes.gpt2", "PYTHONPATH": f"{folder / 'src'}:{ROOT / 'benchmarks/programs'}"}
    result = run_in(folder, sys.executable, "-m", "proj.tools.bench_run", *small, *where, **found)
    assert result.returncode == 0, result.stderr[-2000:]
    manifest = json.loads((tmp_path / "a/checkpoints/step-00000001/manifest.json").read_text())
    assert manifest["fixed"]["data"]["vocabulary"] == 50257


@pytest.mark.parametrize("model", ["gpt", "vae", "diffusion", "bert"])
def test_baselines_of_the_data_are_those_in_the_docs(project: Project, model: str) -> None:
    """Those that take a moment; of text within 0.15 bits or 0.05, as each version of Python is another text."""
    result = run_python(project(FRAMEWORKS[0], model), str(PROGRAMS / "print_baselines.py"), model)
    assert result.returncode == 0, result.stderr[-2000:]
    page = (ROOT / f"docs/models/{model}.md").read_text()
    rows = dict(re.findall(r"^\| (.*) \| ([\d.]+) \|$", page, re.MULTILINE))
    found = json.loads(result.stdout)
    assert len(found) == {"diffusion": 3, "bert": 2}.get(model, 4)
    for name, value in found.items():
        assert float(rows[name]) == pytest.approx(value, abs={"gpt": 0.15, "bert": 0.05}.get(model, 0.02))


def test_histogram_and_compressors_of_known_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import data_baselines

    random = [bytes(value) for value in np.random.default_rng(0).integers(0, 256, (2, 50_000), dtype=np.uint8)]
    assert data_baselines.compressors(random)["xz -9e"] == pytest.approx(8, abs=0.02)
    (repeated,) = data_baselines.after_training([random[0]], [random[0]]).values()
    assert repeated < 0.2, "the training text is known"
    alone, pairs = data_baselines.histograms([b"ab" * 50_000], [b"ab" * 100]).values()
    assert alone == pytest.approx(1, abs=0.01)
    assert pairs == pytest.approx(0, abs=0.01)
