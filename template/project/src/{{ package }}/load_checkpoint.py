"""Loads a checkpoint into the parts of a run that is resumed."""

from pathlib import Path
from typing import Any

from . import checkpoint, optim, techniques
from .faults import interval
from .parts import Parts
from .progress import Progress
from .resume import same_structure


def load_checkpoint(parts: Parts, progress: Progress, path: Path) -> dict[str, Any]:
    """Load a checkpoint into the parts; return what is for the run, and the `results` of its last validation."""
    with same_structure(path):
        state = techniques.read_state(path, parts.model, parts.optimizer, parts.cfg.dist)
        checkpoint.load_weights(parts.model, state["model"], path)
        optim.restore(parts.optimizer, state["optimizer"])
        if state["scaler"] and parts.scaler.is_enabled():
            parts.scaler.load_state_dict(state["scaler"])
        for hook in parts.hooks:
            hook.load_state_dict(state)
        progress.load_state_dict(state)
        manifest = checkpoint.read_manifest(path)
        if progress.step != manifest["step"]:
            raise ValueError(f"its step is {progress.step}, and {manifest['step']} in the manifest")
        return {"results": manifest["metrics"], **{name: state[name] for name in interval.NAMES if name in state}}
