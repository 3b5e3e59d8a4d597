"""tune with the real training command: limited memory, slow data, and a problem whose answer is known."""

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matrix import ENGINE_MODEL, EVERY, FRAMEWORKS, TEMPLATE
from program import Project

pytestmark = pytest.mark.skipif(not EVERY, reason="takes minutes: make test-all")
SKELETON = TEMPLATE / "project/src/{{ package }}/tools/skeleton"
LIMIT = 3_000_000 * 1024
"""Bytes of the address space."""
ROW = """
import sys
from proj.tools import trial
print(trial.run(sys.argv[1:], steps=4, warmup=4, every=4, validate=True, limit=200).outcome)
"""


def planted(project: Project, tmp_path: Path, changes: dict[str, dict[str, str]], config: str = "") -> Path:
    """Return a project with other text in some files."""
    folder = tmp_path / "proj"
    shutil.copytree(project(FRAMEWORKS[0], ENGINE_MODEL), folder, ignore=shutil.ignore_patterns("__pycache__"))
    if config:  # the problem is another one
        for name in ("data.py", "model.py"):
            (folder / "src/proj" / name).write_text((SKELETON / name).read_text().replace("from ...", "from ."))
        (folder / "configs/default.yaml").write_text(config)
    for name, replaced in changes.items():
        text = (folder / "src/proj" / name).read_text()
        for old, new in replaced.items():
            assert text.count(old) == 1, f"{name} has not once: {old}"
            text = text.replace(old, new)
        (folder / "src/proj" / name).write_text(text)
    return folder


def start(folder: Path, *command: str, limit: Callable[[], None] | None = None) -> str:
    environment = {"PYTHONPATH": f"{folder}/src", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, preexec_fn=limit
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tune(folder: Path, *options: str, limit: Callable[[], None] | None = None) -> Any:
    return json.loads(start(folder, "-m", "proj.tools.tune", "--json", "--budget=1200", *options, limit=limit))


def test_largest_batch_is_that_of_trying_others_in_the_same_memory(project: Project, tmp_path: Path) -> None:
    line = "found, count = self.logits(numbers, codes), len(targets)\n"
    waste = "        found = found + 0 * (found[:, :1] * torch.ones(500_000)).square()[:, :1]\n"
    folder = planted(project, tmp_path, {"model.py": {line: line + waste}})
    own = ["--train.micro_batch=8", "--loader.workers=0"]

    def limited(share: float) -> Callable[[], None]:
        most = int(share * LIMIT)
        return lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most))

    found = tune(folder, "--only=batch", "--larger-global-batch", *own, limit=limited(1.0))
    why = found["findings"][0]["why"].partition("fits with")
    largest, next_size = int(why[0].split()[-1]), int(why[2].partition(" free, ")[2].split()[0])
    assert next_size == largest + 8
    for size, fits in ((largest, True), (next_size, False), (largest // 16 * 8, True), (2 * largest // 8 * 8, False)):
        options = ["--config=configs/default.yaml", *own, f"--train.micro_batch={size}"]
        outcome = start(folder, "-c", ROW, *options, limit=limited(0.9)).strip()
        assert (outcome == "ok") is fits, f"{size}: {outcome}"


@pytest.mark.parametrize("seconds", [0.03, 0.0])
def test_slow_data_lead_to_workers_and_fast_ones_to_none(project: Project, tmp_path: Path, seconds: float) -> None:
    line = "        chosen = torch.as_tensor(indices)\n"
    slow = f"        __import__('time').sleep({seconds})\n"
    folder = planted(project, tmp_path, {"readers/tabular.py": {line: slow + line}, "data.py": {', "device"]': "]"}})
    found = tune(folder, "--only=loader", "--config=configs/default.yaml", f"--loader.workers={0 if seconds else 1}")
    if found["busy"] and not seconds:
        pytest.skip("on a busy machine one worker may be faster, as more processes get more of it: run it alone")
    assert (found["values"]["loader.workers"] > 0) is (seconds > 0)
    assert found["compared"]["ratio"] >= 1


def test_range_test_suggests_a_stable_learning_rate(project: Project, tmp_path: Path) -> None:
    changes = {
        "data.py": {"8, generator=generator)\n": "8, generator=generator)\n    numbers[:, 0] *= 4\n"},
        "model.py": {
            "        self.hidden = nn.Linear(spec.features, cfg.width)\n": "",
            "nn.Linear(cfg.width, spec.classes)": "nn.Linear(spec.features, 1, bias=False)",
            "self.head(F.relu(self.hidden(numbers)))": "self.head(numbers)",
            "F.cross_entropy(logits, classes)": "F.mse_loss(logits.squeeze(1), numbers.sum(1)) / 2",
        },
    }
    config = "optim: {name: sgd, lr: 1.0e-3, beta1: 0.0, weight_decay: 0.0, clip: null, lr_scaling: none}\n"
    folder = planted(project, tmp_path, changes, config + "train: {epochs: 20, micro_batch: 256}\n")
    found = tune(folder, "--only=lr")
    stable = 2 / 16  # gradient descent converges below 2 over the largest eigenvalue: the variance of the first number
    assert stable / 100 < found["values"]["optim.lr"] < stable
