"""What a check is, and what it is given. torch is imported by those that need it: the planted checks do not."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .projects import Project

Figures = dict[str, Any]
ENGINE = "mlp"
"""The model that trains fastest, for checks in which any will do."""
COLD = 150
"""Limit in seconds of a check that may be the first to import Lightning, Accelerate or torchao, from a cold disk."""


class MissingHardwareError(Exception):
    """A check needs hardware that this machine lacks, and the message names."""


def find_projects(folder: Path) -> list[tuple[str, str]]:
    """Return framework and model of each rendered project, which its folder's name joins with a dash."""
    found = sorted(path.parents[1].name for path in folder.glob("*/configs/default.yaml"))
    return [(name.partition("-")[0], name.partition("-")[2]) for name in found]


@dataclass(frozen=True)
class Lab:
    """The machine, the rendered projects, and a folder for the files of runs."""

    device: "torch.device"
    projects: Path
    folder: Path
    figures: Figures = field(default_factory=dict, compare=False)
    """What a check knows so far: it is reported if the check fails, too."""

    @property
    def dry(self) -> bool:
        """Whether this is a dry run on the CPU, with tiny sizes."""
        return self.device.type == "cpu"

    @property
    def models(self) -> list[str]:
        """Every model."""
        return sorted({model for _, model in find_projects(self.projects)})

    @property
    def frameworks(self) -> list[str]:
        """Every framework but plain PyTorch."""
        return sorted({framework for framework, _ in find_projects(self.projects)} - {"pytorch"})

    def has_project(self, model: str, framework: str = "pytorch") -> bool:
        """Whether this combination was rendered."""
        return (framework, model) in find_projects(self.projects)

    def project(self, model: str, framework: str = "pytorch") -> "Project":
        """Return a rendered project, which can train on this machine's device."""
        from .projects import Project

        return Project(self.projects, framework, model, self.device, self.folder)

    def needs_cuda(self) -> None:
        """Skip a check that the CPU cannot run."""
        if self.dry:
            raise MissingHardwareError("needs CUDA")

    def needs_capability(self, least: tuple[int, int], purpose: str) -> None:
        """Skip a check on GPUs that are too old for it."""
        import torch

        self.needs_cuda()
        if torch.version.hip or torch.cuda.get_device_capability(self.device) < least:
            raise MissingHardwareError(f"needs an NVIDIA GPU of capability {least[0]}.{least[1]} for {purpose}")


@dataclass(frozen=True)
class Check:
    """One fact, checked on the machine at hand."""

    name: str
    group: str
    run: Callable[[Lab], Figures]
    """Returns figures, in addition to those in the lab; any exception is a failure, but for `MissingHardwareError`."""
    limit: float = 60
    """Seconds after which it has failed."""
