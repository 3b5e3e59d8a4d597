"""Several optimizers in turn, as for a GAN or actor-critic: `phases` of a model, see contracts.py."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..config import Config
from ..errors import UserError
from ..hooks import Hook


class Phases(Hook):
    """Lets each optimizer step train the parts of its phase: the others get no gradient, so no optimizer updates them.

    A step's phase follows from its number alone, so a run that is resumed needs no state for it. Moments, weight decay
    and step counts of AdamW belong to each parameter, so one optimizer object does what one per part would.

    Raises:
        UserError: a phase names no part of the model, a parameter is in no phase, or an option conflicts.
    """

    def __init__(self, cfg: Config, model: nn.Module) -> None:
        given: Any = getattr(model, "phases", ())
        if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(it, str) for it in given):
            raise UserError(f"phases of the model is {given!r}: give names of its parts, such as ('critic', 'actor')")
        if not given:
            raise UserError("phases of the model is empty: name its parts in turn, or leave it out")
        _check(cfg)
        self.model: Any = model
        self.names = tuple(given)
        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.weights = list(trained.values())
        self.trains: dict[str, list[bool]] = {}
        for phase in self.names:
            self.trains[phase] = _in_phase(phase, [*trained])
        idle = [name for name, *found in zip(trained, *self.trains.values(), strict=True) if not any(found)]
        if idle:
            raise UserError(f"phases of the model leave out {idle[0]}: name its part in one, or freeze it")

    def before_step(self, step: int) -> None:
        """Begin the phase of a step."""
        phase = self.names[step % len(self.names)]
        self.model.phase = phase
        for weight, trains in zip(self.weights, self.trains[phase], strict=True):
            weight.requires_grad_(trains)

    @contextmanager
    def eval_weights(self) -> Iterator[None]:
        """Validate in no phase."""
        phase = getattr(self.model, "phase", "")
        self.model.phase = ""
        try:
            yield
        finally:
            self.model.phase = phase


def _in_phase(phase: str, names: list[str]) -> list[bool]:
    """Return which parameters a phase such as "actor" or "encoder+actor" trains."""
    parts = [part.strip() for part in phase.split("+")]
    for part in parts:
        if not any(f"{name}.".startswith(f"{part}.") for name in names):
            known = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
            raise UserError(f"phases of the model has {part!r}, in which nothing is trained: its parts are {known}")
    return [any(f"{name}.".startswith(f"{part}.") for part in parts) for name in names]


def _check(cfg: Config) -> None:
    """Refuse what needs one loss, or gradients of all parameters in each step."""
    if cfg.dist.strategy == "fsdp":
        cfg.dist.refuse("strategy", "FSDP2 cannot train the `phases` of a model in turn; use ddp")
    if cfg.dist.static_graph:
        cfg.dist.refuse("static_graph", "the `phases` of a model use other parameters in each step; set it to false")
    if cfg.speed.step_graph:
        cfg.speed.refuse("step_graph", "a captured step cannot train the `phases` of a model in turn; set it to false")
    if not cfg.optim.set_to_none:
        cfg.optim.refuse(
            "set_to_none", "gradients of zero would update the other `phases` of the model; set it to true"
        )
    if cfg.train.spike_factor is not None:
        cfg.train.refuse("spike_factor", "each of the model's `phases` has a loss of its own; use null")
    if cfg.optim.schedule == "range":
        cfg.optim.refuse("schedule", "each of the model's `phases` has a loss of its own; use constant")
