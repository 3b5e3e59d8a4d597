"""Rendered projects, trained in this process: each has a package of its own name."""

import functools
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch

VALIDATED = 4
"""Micro-batches of a validation, at most."""
STEP_GRAPH = "--speed.step_graph=true"
CAPTURABLE = ["--optim.name=adamw"]
"""What captured steps need, and the eager ones that they are compared with have too."""
QUIET = ["--log.progress=false", "--speed.compile=off", "--log.mfu=false"]

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Trained:
    """A run that has ended."""

    folder: Path
    rows: list[dict[str, Any]]
    """Rows of metrics.jsonl."""

    @property
    def losses(self) -> list[float]:
        """The logged training losses."""
        return [row["loss"] for row in self.rows if row["split"] == "train"]

    def differs(self, other: "Trained") -> float:
        """Return the largest relative difference of a loss from another run's."""
        assert len(self.losses) == len(other.losses) > 0
        return max(abs(mine - its) / abs(its) for mine, its in zip(self.losses, other.losses, strict=True))

    @property
    def validation(self) -> dict[str, Any]:
        """The last validation."""
        return [row for row in self.rows if row["split"] == "val"][-1]


class Project:
    """A rendered project."""

    def __init__(self, projects: Path, framework: str, model: str, device: torch.device, runs: Path) -> None:
        self.place = (projects, framework, model)
        self.root = projects / f"{framework}-{model}"
        self.name = self.root.name.replace("-", "_")
        self.device, self.runs = device, runs
        source = str(self.root / "src")
        if source not in sys.path:
            sys.path.append(source)

    def on_cpu(self) -> "Project":
        """Return the same project, to train on the CPU."""
        return Project(*self.place, torch.device("cpu"), self.runs)

    def module(self, name: str) -> Any:
        """Import one of the package's modules."""
        return importlib.import_module(f"{self.name}.{name}")

    def config(self, *options: str) -> Any:
        """Parse options as the training command does, after those of configs/default.yaml."""
        fixed = [f"--config={self.root}/configs/default.yaml", f"--run.device={self.device.type}", *QUIET]
        return self.module("config").read(_parser(self.name), [*fixed, f"--run.dir={self.runs}", *options])

    def check_graphs(self, *options: str) -> None:
        """Refuse, as on a GPU, options that do not go with `speed.step_graph`."""
        gpu = self.module("distributed").World(0, 1, torch.device("cuda", 0))
        self.module("techniques.step_graph").check(self.config(*options), gpu, "bf16")

    def has_option(self, section: str, key: str) -> bool:
        """Whether the config has an option."""
        return hasattr(getattr(self.config(), section), key)

    def hook(self, kind: type[Kind], *arguments: Any) -> Kind:
        """Create an observer of a run; the methods that it lacks are those of the project's own `Hook`."""
        created: Kind = type(kind.__name__, (kind, self.module("hooks").Hook), {})(*arguments)
        return created

    def new_name(self) -> str:
        """Return a name that no run has."""
        return f"{self.name}-{sum(1 for _ in self.runs.iterdir())}"

    def train(self, *options: str, hooks: Sequence[Any] = (), whole_validation: bool = False, **others: Any) -> Trained:
        """Train with these options, and hooks in addition to the project's own.

        Among the others, `world` is that of a rank, `name` the run's, and `data` replaces what the project loads.
        """
        name, world = others.get("name") or self.new_name(), others.get("world")
        cfg = self.config(f"--run.name={name}", *options)
        short = nullcontext() if whole_validation else self.short_validation()
        with short, self.added_hooks(hooks), self.replaced_data(others.get("data")):
            if world is None:
                with self.module("distributed").start(self.device.type) as alone:
                    self.module("train").train(cfg, alone)
            else:
                self.module("train").train(cfg, world)
        return self.read(name)

    def resume(self, run: Trained, step: int, *options: str) -> Trained:
        """Resume a copy of a run from its checkpoint at `step`."""
        name = self.new_name()
        found = {checkpoint.name for checkpoint in (run.folder / "checkpoints").glob("step-*")}
        others = shutil.ignore_patterns(*(found - {f"step-{step:08d}"}))
        shutil.copytree(run.folder, self.runs / name, ignore=others)
        return self.train(*options, "--run.resume=auto", name=name)

    def train_with_overflow(self, *options: str) -> Trained:
        """Train in fp16 from a loss scale that overflows, and falls quickly."""

        def scaler(precision: Any) -> Any:
            counting = self.module("grad_scaler").CountingScaler
            return counting(self.device, init_scale=2.0**40, backoff_factor=2.0**-20)

        with mock.patch.object(self.module("speed").Precision, "scaler", scaler):
            return self.train(*options)

    def read(self, name: str) -> Trained:
        """Return what a run has logged."""
        text = (self.runs / name / "metrics.jsonl").read_text(encoding="utf-8")
        return Trained(self.runs / name, [json.loads(line) for line in text.splitlines()])

    @contextmanager
    def short_validation(self) -> Iterator[None]:
        """Limit validations to a few batches."""
        loaders = self.module("loaders")
        whole = loaders.EvalOrder

        def short(samples: int, micro_batch: int, *place: int) -> Any:
            return whole(min(samples, VALIDATED * micro_batch), micro_batch, *place)

        with mock.patch.object(loaders, "EvalOrder", short):
            yield

    @contextmanager
    def added_hooks(self, hooks: Sequence[Any]) -> Iterator[None]:
        """Add hooks to the runs that begin in this context."""
        techniques = self.module("techniques")
        own: Callable[..., list[Any]] = techniques.hooks

        def both(*args: Any, **named: Any) -> list[Any]:
            return [*own(*args, **named), *hooks]

        with mock.patch.object(techniques, "hooks", both):
            yield

    @contextmanager
    def replaced_data(self, data: Any) -> Iterator[None]:
        """Load `data` instead of what the config says, if it is not None."""
        if data is None:
            yield
            return
        with mock.patch.object(self.module("data"), "load", return_value=data):
            yield


@functools.cache
def _parser(name: str) -> Any:
    return importlib.import_module(f"{name}.config").make_parser("smoke", "")
