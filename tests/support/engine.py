"""Rendered packages, imported here, or trained in processes of their own."""

import importlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from warm import Started, start_python

FIXED = [
    "--config=configs/default.yaml",
    "--run.device=cpu",
    "--speed.precision=fp32",
    "--loader.num_workers=0",
]
FIXED += ["--train.epochs=1", "--train.batch_size=16", "--log.every=1", "--run.name=a"]
"""Options of all runs; later ones override them."""
TIMES = {"seconds", "samples_per_second", "data_wait", "tflops", "mfu"}
"""What of a row of metrics differs between two equal runs."""
TINY = Path(__file__).with_name("tiny")
"""A model and data with which the engine is tested."""


class Package:
    """A rendered package; its modules are attributes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = root.name.replace("-", "_")

    @staticmethod
    def class_of(component: str) -> str:
        """Return the name of a component's class."""
        return component.replace("-", " ").title().replace(" ", "")

    def __getattr__(self, module: str) -> ModuleType:
        return importlib.import_module(f"{self.name}.{module}")

    def arguments(
        self,
        folder: Path,
        *options: str,
    ) -> list[str]:
        """Return the arguments of a training command; the run is `folder/a`."""
        return [
            FIXED[0].replace("configs", f"{self.root}/configs"),
            *FIXED[1:],
            f"--run.dir={folder}",
            *options,
        ]

    def options(self, *options: str) -> Any:
        """Return the config of a training command with these options."""
        parse = importlib.import_module(f"{self.name}.config").parse
        return parse(self.components.Config, self.arguments(Path("runs"), *options))

    def train_here(
        self,
        folder: Path,
        *options: str,
    ) -> dict[str, float]:
        """Train in this process; the run is `folder/a`."""
        found: dict[str, float] = self.train.train(self.options(f"--run.dir={folder}", *options))
        return found

    def start(
        self,
        folder: Path,
        *options: str,
        ranks: int = 1,
        **changes: str,
    ) -> Started:
        """Start a training program; the run is `folder/a`."""
        arguments = ["-m", f"{self.name}.train", *FIXED, f"--run.dir={folder}", *options]
        return start_python(
            self.root,
            *arguments,
            ranks=ranks,
            nodes=1,
            **changes,
        )

    def finish(
        self, folder: Path, *options: str, ranks: int = 1, expect: int = 0, **changes: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a training program to its end, and check its exit status."""
        done = self.start(folder, *options, ranks=ranks, **changes).finish()
        assert done.returncode == expect, done.stdout + done.stderr
        # torchrun would end the other ranks before they say the same
        lines = set(done.stderr.splitlines())
        assert expect != 1 or len(lines) == 1, f"not one line: {done.stderr}"
        return done

    def tiny(self, folder: Path) -> "Package":
        """Return a copy under another name, with the model and the data of `tiny/`."""
        root = folder / f"tiny-{self.root.name}"
        shutil.copytree(self.root, root, ignore=shutil.ignore_patterns("__pycache__"))
        copy = Package(root)
        (root / "src" / self.name).rename(root / "src" / copy.name)
        for module in ("data.py", "model.py"):
            shutil.copy(TINY / module, root / "src" / copy.name)
        shutil.copy(TINY / "default.yaml", root / "configs")
        return copy


def overwriting(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return a `build` whose networks write outputs to the same memory, as a CUDA graph does."""

    def build_overwriting(*sections: Any) -> nn.Module:
        memory: dict[int, torch.Tensor] = {}

        def overwrite(
            _net: nn.Module,
            _inputs: Any,
            outputs: Any,
        ) -> Any:
            leaves, structure = tree_flatten(outputs)
            for place, leaf in enumerate(leaves):
                if not isinstance(leaf, torch.Tensor):
                    continue
                own = memory.setdefault(place, torch.empty_like(leaf))
                own.copy_(leaf.detach())
                if leaf.is_inference():
                    leaves[place] = own
                else:
                    leaf.data = own  # it keeps its place in the autograd graph
            return tree_unflatten(leaves, structure)

        net = build(*sections)
        net.register_forward_hook(overwrite)
        return net

    return build_overwriting


MakePackage = Callable[..., Any]
"""Renders a project, by the name of its model and those of its components."""


def checkpoints(folder: Path, name: str = "a") -> list[Path]:
    """Return the checkpoints of a run, the oldest first."""
    return sorted((folder / name / "checkpoints").glob("step-*"))


def saved(folder: Path, name: str = "a") -> dict[str, Any]:
    """Return the state in a run's newest checkpoint."""
    return dict(
        torch.load(
            checkpoints(folder, name)[-1] / "state.pt", map_location="cpu", weights_only=True
        )
    )


def summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a run."""
    found: dict[str, Any] = json.loads((folder / "a/summary.json").read_text())
    return found


def rows(folder: Path, split: str = "", name: str = "a") -> list[dict[str, Any]]:
    """Return the rows of a run, without what depends on time."""
    found = [
        json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()
    ]
    kept = [row for row in found if split in ("", row["split"])]
    for row in kept:
        for key in [key for key in row if key in TIMES or key.startswith("ms_")]:
            del row[key]
    return kept


def trained_elsewhere(folder: Path) -> str:
    """Record another number of threads for a run; return what its resume says of it."""
    file = folder / "a/config.json"
    record = json.loads(file.read_text())
    threads = record["versions"]["threads"]
    record["versions"]["threads"] = "99"
    file.write_text(json.dumps(record))
    return f"threads {threads}, before 99: results differ by rounding\n"


def times(folder: Path) -> list[float]:
    """Return the seconds of the rows of the run `folder/a`."""
    lines = (folder / "a/metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines]


def images_of(p: Package, pixels: int) -> Any:
    """Return the `Spec` of color images of one class."""
    return p.data.Spec(3, pixels, ("a",), (0.5,) * 3, (0.25,) * 3)


def equal(first: Any, second: Any) -> bool:
    """Whether two states are equal to the bit."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(
            equal(first[key], second[key]) for key in first
        )
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(
            map(
                equal,
                first,
                second,
            )
        )
    return bool(first == second)
