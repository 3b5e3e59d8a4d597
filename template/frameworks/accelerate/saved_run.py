"""The run in the states that Accelerate saves: its step, schedule, sample order, best validation and EMA."""

import pickle  # only for its error
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from . import techniques
from .errors import UserError
from .framework import RunState
from .resume import check_same
from .run import Run


class SavedRun(RunState):
    """The run in `save_state` and `load_state`. A state can be loaded on another number of ranks."""

    def __init__(self, run: Run, accelerator: Accelerator) -> None:
        super().__init__(run)
        self.accelerator = accelerator
        accelerator.register_for_checkpointing(self)
        accelerator.register_save_state_pre_hook(self.before_save)
        accelerator.register_load_state_pre_hook(self.before_load)

    def before_save(self, models: list[nn.Module], weights: list[dict[str, Tensor]], folder: str) -> None:
        """Make the buffers of all ranks equal, of which rank 0's are saved."""
        self._check("save_state")
        techniques.sync_buffers(self.run.parts.model, self.run.parts.world)

    def before_load(self, models: list[nn.Module], folder: str) -> None:
        """Refuse a state of another run before anything is loaded."""
        self._check("load_state")
        try:
            state = torch.load(Path(folder) / "custom_checkpoint_0.pkl", map_location="cpu", weights_only=True)
            fixed, step = state["fixed"], state["step"]
        except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
            raise UserError(f"{folder} has no state of a run: give a folder that save_state has written") from error
        check_same(folder, fixed, self.run.parts.identity)
        self.run.log.console.facts({"resumed": f"at step {step}, from {folder}"})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state's step, with the optimizer's hyperparameters of the config."""
        super().load_state_dict(state)
        self.restore_settings()
        self.accelerator.step = 0  # micro-batches; another number of ranks may accumulate others

    def _check(self, call: str) -> None:
        cfg = self.run.parts.cfg
        if cfg.dist.strategy == "fsdp":
            cfg.dist.refuse("strategy", f"{call} cannot hold sharded weights; checkpoints of the run can")
        if self.run.micro_step:
            raise UserError(
                f"accelerator.{call} is called within a step: call it after run.end_step, or before the loop"
            )
