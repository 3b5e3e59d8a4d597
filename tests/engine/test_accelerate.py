"""Projects with Accelerate: losses of plain PyTorch, its launcher and trackers, resuming."""

import json
import math
import pickle
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from counted import BATCH, UNEVEN, check, check_row, expected, gradients, options
from engine import Package, checkpoints, rows, summary, times, trained_elsewhere
from matrix import EVERY, MODELS
from program import PROGRAMS, Fastproj, Project, render_once, run_in
from warm import one_of_two_ranks, run_python

SHORT = ["--train.steps=12", "--train.eval_every=4", "--train.batch_size=4", "--model.dropout=0.3"]


@pytest.fixture(scope="module")
def mlp(fastproj: Fastproj, shared_folder: Path) -> Package:
    answers = ["--framework=accelerate", "--model=mlp", "--gpus=0"]
    return Package(render_once(fastproj, shared_folder / "engine", "accelerate-mlp", *answers))


@pytest.fixture(scope="module")
def tiny(mlp: Package, tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The small problems of `tests/support/tiny/`."""
    copy = mlp.tiny(tmp_path_factory.mktemp("tiny-accelerate"))
    sys.path.insert(0, str(copy.root / "src"))
    return copy


def train_here(
    p: Package,
    folder: Path,
    *options: str,
) -> dict[str, float]:
    """Train in this process; the run is `folder/a`."""
    cfg = p.config.parse(p.config.Config, p.arguments(folder, *options))
    results: dict[str, float] = p.train.train(cfg)
    return results


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in rows(folder, "train")]


LOSSES = [
    ("mlp", 1, 1),
    ("mlp", 2, 2),
    ("resnet", 1, 1),
]
if EVERY:
    LOSSES = [(model, 1, 1) for model in MODELS]
    LOSSES += [(model, 1, 4) for model in MODELS]
    LOSSES += [(model, 2, 1) for model in MODELS]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "ranks", "accumulate"), LOSSES)
def test_losses_are_those_of_plain_pytorch(
    project: Project, tmp_path: Path, model: str, ranks: int, accumulate: int
) -> None:
    steps = 200 if EVERY else {"mlp": 40}.get(model, 4)
    options = [
        "--config=configs/default.yaml",
        "--run.device=cpu",
        "--speed.precision=fp32",
        "--run.name=a",
        f"--train.steps={steps}",
        f"--train.eval_every={steps}",
        "--log.every=1",
        "--loader.num_workers=0",
        "--train.batch_size=8",
        f"--train.gradient_accumulation_steps={accumulate}",
    ]
    for framework in ("pytorch", "accelerate"):
        folder = project(framework, model)
        place = f"--run.dir={tmp_path / framework}"
        run_python(
            folder,
            "-m",
            "proj.train",
            *options,
            place,
            ranks=ranks,
        )
    ours = losses(tmp_path / "accelerate")
    assert len(ours) == steps
    assert ours == pytest.approx(losses(tmp_path / "pytorch"), rel=1e-4 if ranks == 1 else 1e-3)


DDP_FIRST = """
import sys, weakref
from torch import distributed
from torch.nn.parallel import DistributedDataParallel as DDP
from {0} import train
models, initialize, destroy = [], DDP.__init__, distributed.destroy_process_group
def remember(ddp, *given, **named):
    initialize(ddp, *given, **named)
    models.append(weakref.ref(ddp))
def check(*given):
    assert models and not models[0]()
    destroy(*given)
if int(sys.argv.pop(1)) > 1:
    DDP.__init__, distributed.destroy_process_group = remember, check
train.main()
"""
"""Trains, and requires that DDP is gone before its process group.

Else a rank could hang at its end: DDP then joins a thread of gloo while it holds the GIL.
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["counted", "counted_on_host"])
@pytest.mark.parametrize(
    ("ranks", "parts"),
    [
        (1, 1),
        (1, 4),
        (2, 1),
        (2, 4),
    ],
)
def test_gradient_of_a_step_is_that_of_the_mean_over_all_that_counts(
    tiny: Package, tmp_path: Path, kind: str, ranks: int, parts: int
) -> None:
    step = [
        *(f"--data.{name}={value}" for name, value in options(UNEVEN).items()),
        f"--model.kind={kind}",
        "--model.dropout=0",
        "--train.steps=1",
        f"--train.batch_size={BATCH // ranks // parts}",
        f"--train.gradient_accumulation_steps={parts}",
        "--optim.max_grad_norm=null",
    ]
    program = tmp_path / "program.py"
    program.write_text(DDP_FIRST.format(tiny.name))
    arguments = tiny.arguments(tmp_path, *step)
    run_python(
        tiny.root,
        str(program),
        f"{ranks}",
        *arguments,
        ranks=ranks,
    )
    wanted = expected(tiny, UNEVEN)
    optimizer = torch.load(checkpoints(tmp_path)[-1] / "optimizer.bin", weights_only=True)
    check(gradients(optimizer), wanted)
    check_row(rows(tmp_path, "train")[0], wanted)
    assert math.isnan(rows(tmp_path, "val")[0]["loss"]), "nothing counts"
    message = "a has no best weights: no validation recorded a finite loss"
    with pytest.raises(tiny.errors.UserError, match=message):
        tiny.evaluate.load_run(tmp_path / "a", torch.device("cpu"))


@pytest.mark.parametrize(
    ("hardware", "kind", "processes", "precision"),
    [
        ("cpu", "NO", 1, "no"),
        ("gpu", "NO", 1, "fp16"),
        ("nodes", "MULTI_GPU", 16, "bf16"),
    ],
)
def test_answers_reach_the_config_files_with_and_without_a_launcher(
    project: Project, hardware: str, kind: str, processes: int, precision: str
) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    file = project("accelerate", "mlp", hardware) / "configs/accelerate.yaml"
    recipe = (
        file.parent / "default.yaml"
    ).read_text()  # which one process reads, without a launcher
    assert ("precision:" in recipe) == (precision != "no")
    assert precision == "no" or f"  precision: {precision} " in recipe
    answers: Any = load_config_from_file(str(file))
    assert answers.distributed_type.value == kind
    assert answers.num_processes == processes
    assert answers.mixed_precision == precision


@pytest.mark.slow
@pytest.mark.test_all
def test_accelerate_launches_two_processes_with_the_precision_of_its_file(
    mlp: Package, project: Project, tmp_path: Path
) -> None:
    file = project("accelerate", "mlp", "gpus") / "configs/accelerate.yaml"
    options = mlp.arguments(tmp_path, *SHORT, "--speed.precision=auto")
    program = ["--num_processes=2", "-m", f"{mlp.name}.train", *options]
    command = ["-m", "accelerate.commands.launch", "--main_process_port=0"]
    done = run_in(
        mlp.root,
        sys.executable,
        *command,
        f"--config_file={file}",
        *program,
    )
    assert "on 2 x cpu, mixed precision bf16" in done.stdout
    assert len(losses(tmp_path)) == 12


def test_tracker_gets_each_row(tiny: Package, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_here(
        tiny,
        tmp_path,
        *SHORT,
        "--accelerate.tracker=tensorboard",
    )
    events = EventAccumulator(str(tmp_path / "a" / tiny.name))
    events.Reload()
    logged = [event.value for event in events.Scalars("train/loss")]
    assert logged == pytest.approx(losses(tmp_path))
    assert [event.step for event in events.Scalars("val/loss")] == [4, 8, 12]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--accelerate.tracker=typo", "Unsupported logging capability: typo"),
        ("--speed.precision=fp16", "speed.precision is fp16: only GPUs have it"),
        (
            "--train.batch_size=54",
            "the global batch of 54 .*: lower train.batch_size",
        ),
        ("--data.kind=unreadable", "cannot read images/17.png: delete it, or replace it"),
        ("--optim.typo=1", "optim.typo"),
        ("--optim.lr=fast", "optim.lr is fast: it must be a number"),
        (
            "--train.monitor=typo --train.monitor_mode=max",
            "train.monitor is typo: the validation metrics are",
        ),
    ],
)
def test_error_of_the_user_is_one_line(
    tiny: Package, tmp_path: Path, option: str, message: str
) -> None:
    with pytest.raises(tiny.errors.UserError, match=message) as caught:
        train_here(
            tiny,
            tmp_path,
            *SHORT,
            *option.split(),
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["samples", "dicts", "collated"])
def test_kinds_of_datasets_have_the_same_losses(
    tiny: Package,
    tmp_path: Path,
    kind: str,
) -> None:
    train_here(tiny, tmp_path / "batches", *SHORT)
    train_here(
        tiny,
        tmp_path,
        *SHORT,
        f"--data.kind={kind}",
        "--loader.num_workers=1",
    )
    assert losses(tmp_path) == pytest.approx(losses(tmp_path / "batches"), rel=1e-5)


def test_wait_for_a_worker_has_a_limit(tiny: Package, tmp_path: Path) -> None:
    options = tiny.arguments(tmp_path, "--loader.num_workers=1", "--loader.timeout=99")
    cfg = tiny.config.parse(tiny.config.Config, options)
    assert tiny.loader.val_loader(range(4), cfg, 1).timeout == 99


def test_batch_that_does_not_come_ends_the_run_with_one_line(tiny: Package, tmp_path: Path) -> None:
    options = tiny.arguments(tmp_path, "--data.kind=samples", "--loader.timeout=1", *SHORT)
    program = [str(PROGRAMS / "stall_after.py"), "30", str(tmp_path), tiny.name]
    done = run_python(tiny.root, *program, *options, status=1)
    assert done.stderr.startswith("error: no batch was loaded within 1 seconds: look for a file")
    assert len(done.stderr.splitlines()) == 1


def test_rank_that_never_joins_is_missed(
    tiny: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_of_two_ranks(monkeypatch, tiny.errors)
    with pytest.raises(tiny.errors.UserError, match="not all of 2 ranks have joined"):
        train_here(tiny, tmp_path)


def test_ranks_with_other_metrics_are_refused(tiny: Package) -> None:
    """They would wait for each other."""
    accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=2,
        reduce=lambda own, kind="sum": own / 2 if kind == "mean" else own,
    )
    means = tiny.evaluate.Means(accelerator)
    means.add({"loss": (1.0, 2)})
    with pytest.raises(tiny.errors.UserError, match="the metrics of this rank are loss, and other"):
        means.read()


def test_a_thread_watches_the_signals_of_a_run(tiny: Package) -> None:
    """So a second one ends it at once, also while the main thread waits in a collective."""
    with tiny.train.stop_requests(None, None):
        assert signal.set_wakeup_fd(-1) > 0


def test_environment_does_not_change_the_accumulation_of_the_config(
    tiny: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    cfg = tiny.config.parse(tiny.config.Config, ["--run.device=cpu"])
    tiny.accelerator.join("cpu")
    assert tiny.accelerator.create(cfg).gradient_accumulation_steps == 1


def test_metric_that_is_nan_in_one_class_is_nan(tiny: Package) -> None:
    """It is no class without a count."""
    cpu = torch.device("cpu")
    accelerator = SimpleNamespace(device=cpu, num_processes=1, reduce=lambda own: own)
    means = tiny.evaluate.Means(accelerator)
    sums = torch.tensor([1.0, 3.0, 0.0])
    means.add({"iou": (sums, torch.tensor([2, 4, 0])), "loss": (math.nan, 2)})
    row = means.read()
    assert row["iou"] == (1 / 2 + 3 / 4) / 2, "two classes have a count"
    assert math.isnan(row["loss"])
    means.add({"iou": (sums * math.nan, torch.tensor([2, 4, 0]))})
    assert math.isnan(means.read()["iou"])


def test_largest_seed_trains(
    tiny: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(tiny, tmp_path, *SHORT, "--run.seed=2147483647", "--speed.precision=auto")
    assert len(losses(tmp_path)) == 12
    assert "on 1 x cpu, mixed precision no" in capsys.readouterr().out, "without a launcher"


def test_time_limit_and_number_of_checkpoints_act(tiny: Package, tmp_path: Path) -> None:
    tiny.finish(
        tmp_path,
        *SHORT,
        "--run.hours=1e-9",
        expect=75,
    )
    assert len(losses(tmp_path)) == 1
    assert (summary(tmp_path)["exit"], summary(tmp_path)["steps"]) == ("stopped", 1)
    tiny.finish(tmp_path, *SHORT, "--run.keep=1")
    assert summary(tmp_path)["exit"] == "finished"
    assert summary(tmp_path)["best"]["loss"] == min(row["loss"] for row in rows(tmp_path, "val"))
    assert [folder.name for folder in checkpoints(tmp_path)] == ["step-00000012"]


def test_best_of_one_metric_is_not_compared_with_another(
    tiny: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tiny.train,
        "evaluate",
        lambda *_: {"loss": 9.0, "score": 0.5},
    )
    train_here(tiny, tmp_path, *SHORT)
    train_here(tiny, tmp_path, *SHORT, "--train.monitor=score", "--train.monitor_mode=max")
    best = json.loads((tmp_path / "a/best/validation.json").read_text())
    assert best == {"step": 12, "monitor": "score", "value": 0.5}
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["best"]["score"] == 0.5


def test_evaluation_is_one_line_of_json(tiny: Package, tmp_path: Path) -> None:
    tiny.finish(tmp_path, *SHORT)
    command = ["-m", f"{tiny.name}.evaluate", str(tmp_path / "a"), "--device=cpu", "--json"]
    done = run_python(tiny.root, *command)
    best = min(row["loss"] for row in rows(tmp_path, "val"))
    assert json.loads(done.stdout)["loss"] == pytest.approx(best)
    assert f"with the best loss: {best:.4g}" in done.stderr


def test_run_is_resumed_with_what_it_was_trained_with(
    tiny: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.finish(tmp_path, *SHORT)
    line = f"{tmp_path}/a is finished, after 12 steps: use another run.name\n"
    assert tiny.finish(tmp_path, *SHORT).stdout == line
    for option, message in {
        "--optim.lr=0.1": "optim.lr=0.001, and not 0.1",
        "--train.batch_size=2": "train.global_batch_size=",
        "--train.steps=99": "train.steps=12, and not 99",
    }.items():
        with pytest.raises(tiny.errors.UserError, match=message):
            train_here(tiny, tmp_path, *SHORT, option)
    message = trained_elsewhere(tmp_path)
    train_here(tiny, tmp_path, *SHORT, "--train.steps=14", "--run.allow_changes=true")
    assert message in capsys.readouterr().out
    record = json.loads((tmp_path / "a/config.json").read_text())
    assert record["history"][0]["config"]["train"]["steps"] == 12
    assert record["starts"] == [0, 12]
    assert times(tmp_path) == sorted(times(tmp_path)), "they go on when a run is resumed"
    train_here(tiny, tmp_path, *SHORT, "--train.steps=5", "--run.allow_changes=true")


def test_other_spec_is_one_line(
    tiny: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_here(tiny, tmp_path, *SHORT)
    load = tiny.data.load

    def load_other(cfg: Any) -> Any:
        train_set, val_set, _ = load(cfg)
        return train_set, val_set, tiny.data.Spec(inputs=5)

    monkeypatch.setattr(tiny.data, "load", load_other)
    with pytest.raises(tiny.errors.UserError, match="Spec.inputs of data.py is 5, and the run was"):
        tiny.evaluate.load_run(tmp_path / "a", torch.device("cpu"))
    longer = ["--train.steps=14", "--run.allow_changes=true"]
    with pytest.raises(tiny.errors.UserError, match="Spec.inputs of data.py is 5, and the run was"):
        train_here(tiny, tmp_path, *SHORT, *longer)


def test_runs_without_a_name_have_folders_of_their_own(
    tiny: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda _: "2026-11-27-10-00-00")
    for _ in range(2):
        train_here(tiny, tmp_path, *SHORT, "--run.name=null")
    names = ["2026-11-27-10-00-00", "2026-11-27-10-00-00-2"]
    assert sorted(folder.name for folder in tmp_path.iterdir()) == names


def test_foreign_progress_is_one_line(tiny: Package, tmp_path: Path) -> None:
    """Accelerate gives it to `Progress` as it is: the run would begin anew, with other weights."""
    train_here(tiny, tmp_path, *SHORT)
    torch.save({"epoch": 2}, checkpoints(tmp_path)[-1] / "custom_checkpoint_0.pkl")
    foreign = r"is damaged or of another model \(custom_checkpoint_0.pkl has no step\): remove it"
    with pytest.raises(tiny.errors.UserError, match=foreign):
        train_here(tiny, tmp_path, *SHORT, "--train.steps=13", "--run.allow_changes=true")


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.file,))


@pytest.mark.parametrize(
    "name", ["optimizer.bin", "random_states_0.pkl", "custom_checkpoint_0.pkl"]
)
def test_hostile_checkpoint_executes_nothing(
    tiny: Package,
    tmp_path: Path,
    name: str,
) -> None:
    tiny.finish(tmp_path, *SHORT)
    executed = tmp_path / "executed"
    torch.save({"state": Payload(executed)}, checkpoints(tmp_path)[-1] / name)
    pickle.loads(pickle.dumps(Payload(executed)))  # noqa: S301
    executed.unlink()
    tiny.start(tmp_path, *SHORT, "--train.steps=13", "--run.allow_changes=true").finish()
    assert not executed.exists()
