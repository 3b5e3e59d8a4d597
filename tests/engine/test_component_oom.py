"""oom on two ranks: all start again, and the global batch stays the same."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from engine import MakePackage, Package, rows, saved
from program import LIMIT_S
from torch import nn
from warm import start_python

OOM = [
    "--oom.enabled=true",
    "--train.steps=6",
    "--train.eval_every=2",
    "--train.batch_size=8",
    "--model.dropout=0",
]
OOM += ["--train.gradient_accumulation_steps=2", "--optim.eps=1e-4"]
PROGRAM = """
import os, sys
import torch
from {0} import model, train
ranks, limit, first = sys.argv.pop(1), int(sys.argv.pop(1)), int(sys.argv.pop(1))
forward, calls = model.Net.forward, [0]
def limited(self, inputs, targets):
    calls[0] += self.training
    if self.training and os.environ["RANK"] in ranks and calls[0] > first and len(inputs) > limit:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return forward(self, inputs, targets)
model.Net.forward = limited
train.main()
"""


def train(
    p: Package, folder: Path, ranks: str, limit: int, first: int, *options: str
) -> tuple[list[int], str]:
    """Train on two ranks, some of which run out of memory after some calls.

    Return the exit statuses and stderr.
    """
    program = folder / "program.py"
    folder.mkdir(exist_ok=True)
    program.write_text(PROGRAM.format(p.name))
    arguments = [
        str(program),
        ranks,
        str(limit),
        str(first),
        *p.arguments(
            folder,
            *OOM,
            *options,
        ),
    ]
    run = start_python(p.root, *arguments, ranks=2)
    failed = [process for place, process in enumerate(run.processes) if str(place) in ranks]
    for process in failed:
        process.join(LIMIT_S)
    if any(process.exitcode for process in failed):
        run.kill()  # as torchrun does
    done: subprocess.CompletedProcess[str] = run.finish()
    return [process.exitcode or 0 for process in run.processes], done.stderr


@pytest.mark.parametrize("ranks", ["1", "01"])
def test_rank_that_runs_out_of_memory_records_the_size_and_all_start_again(
    tiny: MakePackage, tmp_path: Path, ranks: str
) -> None:
    p = tiny("oom")
    statuses, stderr = train(p, tmp_path / "halved", ranks, 4, 6)  # two forward passes per step
    assert all(statuses[int(rank)] == 1 for rank in ranks)
    assert (
        f"out of memory on rank {ranks[0]} at step 3: "
        "resume with --run.name a, in forward passes of 4" in stderr
    )
    assert (tmp_path / "halved/a/oom.json").read_text() == "4"
    assert saved(tmp_path / "halved")["step"] == 2
    statuses, stderr = train(p, tmp_path / "halved", ranks, 4, 0)
    assert statuses == [0, 0], stderr
    train(p, tmp_path / "whole", "", 0, 0)
    assert saved(tmp_path / "halved")["components"]["oom"] == {"size": 4}
    for mine, other in zip(
        rows(tmp_path / "halved"),
        rows(tmp_path / "whole"),
        strict=True,
    ):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert mine.get("grad_norm", 0) == pytest.approx(other.get("grad_norm", 0), rel=1e-5)


def test_smallest_size_is_the_end_on_two_ranks(tiny: MakePackage, tmp_path: Path) -> None:
    statuses, stderr = train(
        tiny("oom"),
        tmp_path,
        "1",
        3,
        0,
        "--oom.smallest=5",
    )
    assert statuses[1] == 1
    assert "error: out of memory with 8 samples: use a smaller model\n" in stderr
    assert not (tmp_path / "a/oom.json").exists()


def test_checkpoint_and_file_give_the_smaller_size(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("oom")
    p.train_here(tmp_path, *OOM, "--train.steps=2")
    for written, size in (("4", 4), ("8", 4), ("2", 2)):
        (tmp_path / "a/oom.json").write_text(written)
        p.train_here(
            tmp_path,
            *OOM,
            "--run.allow_changes=true",
            f"--train.steps={saved(tmp_path)['step'] + 1}",
        )
        assert saved(tmp_path)["components"]["oom"] == {"size": size}


def test_batch_that_has_not_one_row_per_sample_is_refused(tiny: MakePackage) -> None:
    """Such as all boxes of the images: slices of them would be boxes of other images."""
    p = tiny("oom")
    oom = p.components.oom
    component = oom.Oom(oom.OomConfig(), None)
    component.size = 2
    calls = mock.Mock(return_value={})
    step = p.component.Step(calls, lambda: None)
    world = p.distributed.World(0, 1, torch.device("cpu"))
    plan = SimpleNamespace(batch_size=4)
    run = SimpleNamespace(world=world, plan=plan, cfg=p.options(), step=0)
    compute = component.wrap_step(run, step).compute_gradients
    compute((torch.arange(4), torch.tensor(7)), True, True)
    numbers = [call.args[0][1].item() for call in calls.mock_calls]
    assert numbers == [7, 7], "a number is that of all samples"
    with pytest.raises(p.errors.UserError, match="a tensor of 5 rows in a batch of 4 samples: pad"):
        compute((torch.arange(4), torch.zeros(5)), True, True)


def test_cuda_graphs_of_torch_compile_are_refused(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("oom")
    compiled = ("--speed.compile=model", "--speed.compile_mode=reduce-overhead")
    refused = pytest.raises(
        p.errors.UserError, match="overwrite gradients .*, or oom.enabled=false"
    )
    with mock.patch.object(nn.Module, "compile"), refused:
        p.train_here(tmp_path, "--oom.enabled=true", *compiled)


def test_loss_that_compares_samples_is_refused(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = tiny("oom")
    monkeypatch.setattr(p.model.Net, "batch_coupled", True, raising=False)
    with pytest.raises(p.errors.UserError, match="would change the loss of Net"):
        p.train_here(tmp_path, "--oom.enabled=true")
