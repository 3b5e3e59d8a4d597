"""The checks fail as they should, with runs that are made up; `tests/template/test_gpu_smoke.py` starts this."""

import operator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from . import bundle, several
from .check import ENGINE, Lab
from .checks import compiled, fp8, frameworks, graphs, ranks, speed
from .checks.subjects import SUBJECTS
from .projects import STEP_GRAPH, Trained


def trained(*losses: float) -> Trained:
    """Return a run with these losses, of which the last is the validation's, too."""
    rows: list[dict[str, Any]] = [{"split": "train", "loss": loss} for loss in losses]
    return Trained(Path(), [*rows, {"split": "val", "loss": losses[-1]}])


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Lab, mock.MagicMock]:
    """Return a machine that seems to have a GPU, and its only project, which trains nothing."""
    project = mock.MagicMock()
    project.has_option.return_value = False
    monkeypatch.setattr(Lab, "project", lambda *arguments: project)
    monkeypatch.setattr(Lab, "needs_capability", lambda *arguments: None)
    monkeypatch.setattr(Lab, "has_project", lambda *arguments: True)
    return Lab(torch.device("cuda", 0), tmp_path, tmp_path), project


@pytest.mark.parametrize(
    ("layers", "loss", "message"),
    [(4, 1.01, ""), (0, 1.01, "no layer"), (4, 1.0, "nothing was computed"), (4, 1.2, "a loss of 1.2 ")],
)
def test_fp8_must_convert_layers_and_end_near_bf16(pretend: Any, layers: int, loss: float, message: str) -> None:
    lab, project = pretend
    project.hook.return_value.layers, project.hook.return_value.recorded = layers, False
    project.train.side_effect = lambda *options, **others: trained(loss if "--speed.precision=fp8" in options else 1.0)
    with pytest.raises(AssertionError, match=message) if message else nullcontext():
        fp8.near_bf16(lab, "eager")
    assert lab.figures["loss_fp8"] == loss


@pytest.mark.parametrize(
    ("again", "captured", "replays", "message"),
    [
        (1.0, 1.0, 40, ""),
        (1.0, 1.0, 20, "20 graphs were replayed"),
        (1.0, 1.01, 40, "more than 0.001"),
        (1.004, 1.01, 40, ""),
    ],
)
def test_captured_steps_may_differ_as_much_as_eager_ones(
    pretend: Any, monkeypatch: pytest.MonkeyPatch, again: float, captured: float, replays: int, message: str
) -> None:
    lab, project = pretend
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: None)

    def train(*options: str) -> Trained:
        if STEP_GRAPH not in options:
            return trained(1.0 if project.train.call_count == 1 else again)
        for _ in range(replays):
            torch.cuda.CUDAGraph.replay(mock.Mock())
        return trained(captured)

    project.train.side_effect, project.resume.return_value = train, trained(captured)
    with pytest.raises(AssertionError, match=message) if message else nullcontext():
        graphs.equals_eager(lab, ENGINE)
    assert lab.figures["difference_again"] == pytest.approx(again - 1)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([0, *[1] * 7, *[3] * 17], ""),
        ([0] * 25, "compiled again in training"),
        ([0, *[1] * 6, 2, *[3] * 17], "compiled again in training"),
        ([0, *[1] * 7, *[3] * 8, *[4] * 9], "after the first validation"),
        ([0, *[1] * 7, *[3] * 16, 4], "after the first validation"),
    ],
)
def test_only_the_first_step_and_the_first_validation_may_compile(counts: list[int], message: str) -> None:
    with pytest.raises(AssertionError, match=message) if message else nullcontext():
        compiled.check_counts(counts)


def test_tf32_must_have_an_effect(pretend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lab, project = pretend
    monkeypatch.setattr(frameworks, "formats", lambda *arguments: ["tf32"])
    project.train.return_value = trained(1.0)
    with pytest.raises(AssertionError, match="losses in tf32 are within 0 of those in fp32"):
        frameworks.equals_native(lab, "lightning", "resnet")
    assert lab.figures == {"difference_tf32": 0, "effect_tf32": 0}


@pytest.mark.parametrize(
    ("wrapper", "failure", "message"),
    [
        ("DistributedDataParallel", "", ""),
        ("ResNet", "", "ddp: the model is in ResNet"),
        ("DistributedDataParallel", "planted", "sync_batchnorm: planted"),
    ],
)
def test_a_run_that_fails_leaves_the_figures_of_others(
    pretend: Any, monkeypatch: pytest.MonkeyPatch, wrapper: str, failure: str, message: str
) -> None:
    lab, project = pretend
    project.train.return_value = trained(1.0)
    seen = {"ddp": several.Seen(wrapper, [], 0, False, 0)}
    monkeypatch.setattr(several, "train", lambda *arguments: several.Ended({"ddp": trained(1.0)}, seen, failure))
    with pytest.raises((AssertionError, RuntimeError), match=message) if message else nullcontext():
        ranks._compare(lab, {"ddp": ("resnet", []), "sync_batchnorm": ("resnet", [])}, "nccl", ["cuda:0"])
    assert lab.figures == {"difference_ddp": 0}


def test_one_rank_that_passes_for_several_compares_as_two() -> None:
    one = several.Several(1)
    for compare in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        assert [compare(one, n) for n in range(4)] == [compare(2, n) for n in range(4)], compare.__name__
        assert [compare(n, one) for n in range(4)] == [compare(n, 2) for n in range(4)], compare.__name__
    assert list(range(one)) == [0]


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Return a machine without a GPU, with a project that trains."""
    folder = tmp_path_factory.mktemp("lab")
    bundle.render(folder / "projects", [("pytorch", ENGINE)])
    (folder / "runs").mkdir()
    return Lab(torch.device("cpu"), folder / "projects", folder / "runs")


def test_ranks_report_the_runs_before_the_one_that_fails(on_cpu: Lab) -> None:
    options = ["--train.steps=2", "--train.eval_every=2", "--log.every=1"]
    runs = {"ddp": (ENGINE, options), "refused": (ENGINE, [*options, "--train.micro_batch=1000000"])}
    found = several.train(on_cpu, runs, "gloo", ["cpu"] * 2)
    assert list(found.runs) == list(found.seen) == ["ddp"]
    assert len(found.runs["ddp"].losses) == 2
    assert found.seen["ddp"].wrapper == "DistributedDataParallel"
    assert "1000000" in found.failure


def test_measured_runs_write_no_checkpoint(on_cpu: Lab) -> None:
    lab = on_cpu
    subject = next(subject for subject in SUBJECTS if subject.model == ENGINE)
    assert speed.measure(lab, subject, "eager")["samples_per_second"] > 0
    (folder,) = (folder for folder in lab.folder.glob("*/") if folder.name.startswith(lab.project(ENGINE).name))
    assert (folder / "metrics.jsonl").exists()
    assert not list(folder.glob("checkpoints/step-*"))
