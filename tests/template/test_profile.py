"""`tools/profile.py` of a rendered project diagnoses bottlenecks that were planted in its model or its data."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from matrix import ENGINE_MODEL, EVERY, FRAMEWORKS
from program import Project, run_in

NET = """

class Planted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 1)
        {layers}

    def forward(self, numbers: Tensor, codes: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        x = self.first(numbers[:, :1])
        {compute}
        loss = x.float().square().mean()
        return loss, {{"loss": (loss.detach(), 1), "accuracy": (loss.detach(), 1)}}


def build(cfg: ModelConfig, spec: Spec) -> nn.Module:
    return Planted()
"""
SLOW_DATA = """

import time

_getitems = {rows}.__getitems__


def _slow(self: {rows}, indices: list[int]) -> object:
    time.sleep(0.05)
    return _getitems(self, indices)


{rows}.__getitems__ = _slow
"""
ELEMENTWISE = "for _ in range(20):\n            y = y * 1.0001 + 0.1\n        x = x + y.mean()"
CASES: dict[str, tuple[str, str, list[str], str, str]] = {
    "many tiny layers": (
        "self.layers = nn.Sequential(*(nn.Linear(1, 1) for _ in range(300)))",
        "x = self.layers(x)",
        [],
        "launch-bound",
        "--speed.compile model",
    ),
    "large matrix products": (
        "self.weight = nn.Parameter(torch.eye(1024))",
        "x = x + (self.weight @ self.weight @ self.weight @ self.weight).mean()",
        ["--optim.name=sgd"],
        "compute-bound",
        "--speed.",
    ),
    "large elementwise operations": (
        "self.weight = nn.Parameter(torch.ones(1_000_000))",
        "y = self.weight\n        " + ELEMENTWISE,
        ["--optim.name=sgd"],
        "memory-bound",
        "--speed.compile model",
    ),
    "a large gradient": (
        "self.weight = nn.Parameter(torch.ones(10_000_000))",
        "x = x + self.weight.mean()",
        ["--optim.name=sgd", "--optim.clip=null", "--run.processes=2"],
        "communication-bound",
        "--dist.bf16_gradients true",
    ),
    "a slow rank": (
        "import os, time\n        self.pause = lambda: time.sleep(0.05 * int(os.environ['RANK']))",
        "self.pause()",
        ["--run.processes=2"],
        "communication-bound",
        "giving it as much work",
    ),
    "slow data": ("", "", [], "input-bound", "--loader.workers 1"),
}


@pytest.mark.skipif(not EVERY, reason="takes minutes: set EVERY_TEST=1")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", CASES)
def test_planted_bottleneck_is_diagnosed(project: Project, tmp_path: Path, framework: str, case: str) -> None:
    folder = shutil.copytree(project(framework, ENGINE_MODEL), tmp_path / "project")
    layers, compute, options, bound, advice = CASES[case]
    name = "data.py" if case == "slow data" else "model.py"
    file = folder / "src/proj" / name
    planted = SLOW_DATA.format(rows="Rows") if name == "data.py" else NET.format(layers=layers, compute=compute)
    file.write_text(file.read_text() + planted)
    command = ["-m", "proj.tools.profile", "--config=configs/default.yaml", "--run.device=cpu", "--json"]
    result = run_in(folder, sys.executable, *command, "--speed.precision=fp32", "--loader.workers=0", *options)
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout)["diagnosis"]
    print(f"{framework}, {case}: {found['bound']}: {found['why']}; try {found['advice']}")
    assert (found["bound"], advice in found["advice"]) == (bound, True), found
