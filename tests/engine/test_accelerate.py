"""Projects with Accelerate: losses of plain PyTorch, its launcher, trackers and FSDP2, and options that must act."""

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from engine import Package, checkpoints, overwriting, rows
from matrix import EVERY, MODELS
from program import PROGRAMS, Fastproj, Project, run_in
from warm import run_python

SHORT = ["--train.steps=12", "--train.eval_every=4", "--train.micro_batch=4", "--model.dropout=0.3"]
FSDP = {
    "distributed_type": "FSDP",
    "num_machines": 1,
    "num_processes": 2,
    "mixed_precision": "no",
    "fsdp_config": {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "Block",
        "fsdp_reshard_after_forward": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": False,
    },
}
"""What `accelerate config` writes for FSDP2 on two GPUs."""


@pytest.fixture(scope="module")
def mlp(fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = tmp_path_factory.mktemp("accelerate")
    answers = [
        "--framework=accelerate",
        "--model=mlp",
        "--components=none",
        "--gpus=0",
        "--yes",
        "--no-git",
    ]
    assert fastproj("new", "accelerate-mlp", *answers, "--output", str(folder)).returncode == 0
    sys.path.insert(0, str(folder / "accelerate-mlp/src"))
    return Package(folder / "accelerate-mlp")


@pytest.fixture(scope="module")
def tiny(mlp: Package, tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The small problems of `tests/support/tiny/`."""
    found = mlp.tiny(tmp_path_factory.mktemp("tiny-accelerate"))
    sys.path.insert(0, str(found.root / "src"))
    return found


def train_here(p: Package, folder: Path, *options: str) -> dict[str, float]:
    """Train in this process, with a new state of Accelerate; the run is `folder/a`."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    found: dict[str, float] = p.train.train(
        p.config.parse(p.accelerator.Config, p.arguments(folder, *options))
    )
    return found


def test_rows_are_right_if_the_next_step_overwrites_the_outputs_of_the_model(
    tiny: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--train.steps=12", "--train.eval_every=6", "--train.micro_batch=4", "--log.every=3"]
    train_here(tiny, tmp_path / "kept", *options)
    monkeypatch.setattr(tiny.train, "build", overwriting(tiny.model.build))
    train_here(tiny, tmp_path / "overwritten", *options)
    assert rows(tmp_path / "overwritten") == rows(tmp_path / "kept")


def test_cuda_graphs_of_torch_compile_are_refused_where_gradients_are_kept(
    tiny: Package, tmp_path: Path
) -> None:
    compiled = ["--speed.compile=model", "--speed.compile_mode=reduce-overhead"]
    with pytest.raises(
        tiny.errors.UserError, match="its CUDA graphs overwrite gradients that are kept"
    ):
        train_here(tiny, tmp_path, *compiled, "--train.accumulate=2")


def launch(p: Package, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "accelerate.commands.launch", "--main_process_port=0", *arguments]
    return run_in(p.root, sys.executable, *command, **changes)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(checkpoints(folder)[-1] / "model.safetensors")


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in rows(folder, "train")]


LOSSES = [("mlp", 1, 1), ("mlp", 2, 2), ("resnet", 1, 1)]
LOSSES = (
    [(model, ranks, k) for model in MODELS for ranks, k in ((1, 1), (1, 2), (1, 4), (2, 1))]
    if EVERY
    else LOSSES
)


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
    ]
    options += [
        f"--train.steps={steps}",
        f"--train.eval_every={steps}",
        "--log.every=1",
        "--loader.workers=0",
    ]
    options += ["--train.micro_batch=8", f"--train.accumulate={accumulate}"]
    for framework in ("pytorch", "accelerate"):
        command = ["-m", "proj.train", *options, f"--run.dir={tmp_path / framework}"]
        result = run_python(project(framework, model), *command, ranks=ranks)
        assert result.returncode == 0, result.stderr
    expected, found = (losses(tmp_path / framework) for framework in ("pytorch", "accelerate"))
    assert len(found) == steps
    assert found == pytest.approx(expected, rel=1e-4 if ranks == 1 else 1e-3)


@pytest.mark.parametrize(
    ("hardware", "kind", "machines", "processes", "precision"),
    [
        ("cpu", "NO", 1, 1, "no"),
        ("gpu", "NO", 1, 1, "fp16"),
        ("gpus", "MULTI_GPU", 1, 4, "bf16"),
        ("nodes", "MULTI_GPU", 2, 16, "bf16"),
    ],
)
def test_answers_reach_the_config_file_of_accelerate(
    project: Project, hardware: str, kind: str, machines: int, processes: int, precision: str
) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    folder = project("accelerate", "mlp", hardware)
    found: Any = load_config_from_file(str(folder / "configs/accelerate.yaml"))
    assert (found.distributed_type.value, found.num_machines, found.num_processes) == (
        kind,
        machines,
        processes,
    )
    assert found.mixed_precision == precision
    assert not (project("pytorch", "mlp", hardware) / "configs/accelerate.yaml").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hardware", "flags"), [("gpus", []), *([("cpu", ["--multi_gpu"])] if EVERY else [])]
)
def test_accelerate_launches_two_processes_with_the_rendered_file(
    mlp: Package, project: Project, tmp_path: Path, hardware: str, flags: list[str]
) -> None:
    file = project("accelerate", "mlp", hardware) / "configs/accelerate.yaml"
    started = [f"--config_file={file}", *flags, "--num_processes=2", "-m", f"{mlp.name}.train"]
    options = mlp.arguments(tmp_path, *SHORT, "--speed.precision=auto")
    done = launch(mlp, *started, *options)
    assert done.returncode == 0, done.stderr
    assert "on 2 x cpu, " in done.stdout
    assert hardware == "cpu" or "on 2 x cpu, bf16" in done.stdout, (
        "precision `auto` takes that of Accelerate"
    )
    assert len(losses(tmp_path)) == 12


@pytest.mark.slow
def test_launcher_for_one_process_keeps_one_line_of_an_error(mlp: Package, tmp_path: Path) -> None:
    file = f"--config_file={mlp.root}/configs/accelerate.yaml"
    done = launch(
        mlp, file, "--quiet", "-m", f"{mlp.name}.train", *mlp.arguments(tmp_path, "--optim.typo=1")
    )
    assert done.returncode == 1
    assert "optim.typo" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.test_all
def test_fsdp2_trains_and_resumes_as_ddp(project: Project, tmp_path: Path) -> None:
    """With shared weights, which Accelerate's loading without RAM would separate; validated first after the resume."""
    (tmp_path / "fsdp.yaml").write_text(yaml.safe_dump(FSDP))
    folder = project("accelerate", "gpt")
    options = [
        "--config=configs/default.yaml",
        "--run.device=cpu",
        "--speed.precision=fp32",
        "--data.val_fraction=0.002",
    ]
    options += [
        "--train.micro_batch=2",
        "--train.eval_every=2",
        "--log.every=1",
        "--run.name=a",
        "--train.steps=6",
    ]
    launcher = [
        "-m",
        "accelerate.commands.launch",
        "--main_process_port=0",
        f"--config_file={tmp_path}/fsdp.yaml",
    ]

    def sharded(name: str) -> None:
        command = [
            *launcher,
            str(PROGRAMS / "fsdp_on_cpu.py"),
            "proj",
            *options,
            f"--run.dir={tmp_path / name}",
        ]
        done = run_in(folder, sys.executable, *command)
        assert done.returncode == 0, done.stderr

    sharded("sharded")
    assert (checkpoints(tmp_path / "sharded")[-1] / "pytorch_model_fsdp_0/.metadata").exists()
    shutil.copytree(tmp_path / "sharded", tmp_path / "resumed")
    shutil.rmtree(checkpoints(tmp_path / "resumed")[-1])
    sharded("resumed")
    assert rows(tmp_path / "resumed") == rows(tmp_path / "sharded")
    result = run_python(
        folder, "-m", "proj.train", *options, f"--run.dir={tmp_path / 'ddp'}", ranks=2
    )
    assert result.returncode == 0, result.stderr
    assert losses(tmp_path / "sharded") == pytest.approx(losses(tmp_path / "ddp"), rel=1e-3)
    result = run_python(folder, "-m", "proj.evaluate", str(tmp_path / "sharded/a"), "--device=cpu")
    assert json.loads(result.stdout)["loss"] == pytest.approx(
        rows(tmp_path / "sharded", "val")[-1]["loss"], rel=1e-4
    )
    # Accelerate itself would train without FSDP on CPUs.
    done = run_in(
        folder,
        sys.executable,
        *launcher,
        "-m",
        "proj.train",
        *options,
        f"--run.dir={tmp_path / 'refused'}",
    )
    assert "error: Accelerate has FSDP on GPUs only: start without it" in done.stderr
    assert done.returncode == 1


def test_tracker_gets_each_row(tiny: Package, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_here(tiny, tmp_path, *SHORT, "--accelerate.tracker=tensorboard")
    events = EventAccumulator(str(tmp_path / "a" / tiny.name))
    events.Reload()
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(
        losses(tmp_path)
    )
    assert [event.step for event in events.Scalars("val/loss")] == [4, 8, 12]


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        (
            ["--accelerate.tracker=typo"],
            {},
            "accelerate.tracker is typo: the installed trackers are ",
        ),
        (
            ["--speed.precision=fp16"],
            {},
            "speed.precision is fp16: Accelerate has fp16 on GPUs only: use bf16",
        ),
        (["--speed.precision=tf32"], {}, "speed.precision is tf32: the cpu has no TF32"),
        (
            ["--speed.precision=auto"],
            {"ACCELERATE_MIXED_PRECISION": "fp8"},
            "choose no, bf16 or fp16",
        ),
        ([], {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}, "use speed.compile instead"),
        (
            ["--train.global_batch=7"],
            {},
            "train.global_batch is 7: it must be a multiple of micro_batch x ranks = 4",
        ),
        (["--train.monitor=typo"], {}, "train.monitor is typo: the validation metrics are "),
        (["--data.kind=unreadable"], {}, "cannot read images/17.png: delete it, or replace it"),
    ],
)
def test_what_cannot_act_is_refused(
    tiny: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    changes: dict[str, str],
    message: str,
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(tiny.errors.UserError, match=message) as caught:
        train_here(tiny, tmp_path, *SHORT, *options)
    assert "\n" not in str(caught.value)


def test_error_of_the_program_is_one_line(tiny: Package, tmp_path: Path) -> None:
    done = tiny.finish(tmp_path, *SHORT, "--data.kind=unreadable", expect=1)
    assert "cannot read images/17.png: delete it, or replace it" in done.stderr


@pytest.fixture(scope="module")
def plain(tiny: Package, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run without further options."""
    folder = tmp_path_factory.mktemp("plain")
    train_here(tiny, folder, *SHORT)
    return losses(folder)


@pytest.mark.parametrize(
    "option",
    [
        "--optim.weight_decay=0.5",
        "--optim.beta2=0.9",
        "--optim.clip=0.01",
        "--optim.clip_value=0.001",
        "--optim.lr=0.01",
        "--optim.amsgrad=true",
        "--train.accumulate=2",
        "--speed.precision=bf16",
        "--run.seed=1",
    ],
)
def test_option_acts(tiny: Package, tmp_path: Path, plain: list[float], option: str) -> None:
    train_here(tiny, tmp_path, *SHORT, option)
    assert losses(tmp_path)[-1] != plain[-1]


@pytest.mark.parametrize(
    "option",
    [
        "--optim.set_to_none=false",
        "--optim.fused=false",
        "--loader.workers=2",
        "--loader.pin_memory=false",
        "--data.kind=samples",
        "--data.kind=dicts",
        "--data.kind=nested",
        "--data.kind=collated",
        "--data.kind=tensors",
    ],
)
def test_option_does_not_change_the_losses(
    tiny: Package, tmp_path: Path, plain: list[float], option: str
) -> None:
    train_here(tiny, tmp_path, *SHORT, option)
    assert losses(tmp_path) == pytest.approx(plain, rel=1e-5)


@pytest.mark.test_all
def test_compiled_model_has_the_same_losses(tiny: Package, tmp_path: Path) -> None:
    tiny.finish(tmp_path / "plain", *SHORT, "--model.dropout=0")
    done = tiny.start(
        tmp_path / "compiled", *SHORT, "--model.dropout=0", "--speed.compile=model"
    ).finish()
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "plain") == pytest.approx(losses(tmp_path / "compiled"), rel=1e-4)


def test_resumed_run_has_the_hyperparameters_of_the_config(tiny: Package, tmp_path: Path) -> None:
    same = ["--train.eval_every=4", "--train.micro_batch=4"]
    train_here(tiny, tmp_path, *same, "--train.steps=4")
    shutil.copytree(tmp_path / "a", tmp_path / "b/a")
    train_here(tiny, tmp_path, *same, "--train.steps=8")
    train_here(tiny, tmp_path / "b", *same, "--train.steps=8", "--optim.weight_decay=0.9")
    assert losses(tmp_path)[:5] == losses(tmp_path / "b")[:5]
    assert losses(tmp_path)[-1] != losses(tmp_path / "b")[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1)])
def test_other_number_of_ranks_continues_with_the_same_samples(
    tiny: Package, tmp_path: Path, first: int, then: int
) -> None:
    """It stops at a step at which the micro-batches of one rank are not a multiple of the other number."""
    same = [
        "--train.global_batch=8",
        "--train.micro_batch=4",
        "--train.eval_every=3",
        "--optim.eps=1e-4",
    ]
    tiny.finish(tmp_path / "whole", *same, "--train.steps=8", ranks=first)
    tiny.finish(tmp_path, *same, "--train.steps=8", ranks=first)
    for late in checkpoints(tmp_path)[-1:]:  # steps 6 and 8 are there, and 3 is not
        shutil.rmtree(late)
    tiny.finish(tmp_path, *same, "--train.steps=8", ranks=then)
    assert losses(tmp_path) == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


def test_time_limit_and_number_of_checkpoints_act(tiny: Package, tmp_path: Path) -> None:
    tiny.finish(tmp_path, *SHORT, "--run.hours=1e-9", expect=75)
    assert len(losses(tmp_path)) == 1
    tiny.finish(tmp_path, *SHORT, "--run.keep=1")
    assert [it.name for it in checkpoints(tmp_path)][-1] == "step-00000012"
    assert len(checkpoints(tmp_path)) <= 2, "the newest one, and the best one at the time"


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.file,))


@pytest.mark.parametrize("name", ["state.pt", "optimizer.bin", "random_states_0.pkl"])
def test_hostile_checkpoint_executes_nothing(tiny: Package, tmp_path: Path, name: str) -> None:
    train_here(tiny, tmp_path, *SHORT)
    newest, executed = checkpoints(tmp_path)[-1], tmp_path / "executed"
    torch.save({"state": Payload(executed)}, newest / name)
    pickle.loads(pickle.dumps(Payload(executed)))  # noqa: S301
    executed.unlink()
    sums = json.loads((newest / "manifest.json").read_text())["sha256"]
    sums[name] = tiny.checkpoint._sha256(newest / name)
    (newest / "manifest.json").write_text(json.dumps({"sha256": sums}))
    tiny.start(tmp_path, *SHORT, "--train.steps=13").finish()
    assert not executed.exists()
