"""What the pages compare and no option changes, for `tools/bench_run.py` of a rendered project."""

import dataclasses
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

PACKAGE = (sys.modules["__main__"].__package__ or "").partition(".")[0]


def gpt2() -> None:
    """Give the data GPT-2's vocabulary, of which the text has the first 256 tokens."""
    _change_spec(lambda spec: {"vocabulary": 50257})


def raw() -> None:
    """Leave pixels as they are, from 0 to 255, by statistics that change nothing."""
    _change_spec(lambda spec: {"mean": (0.0,) * spec.channels, "std": (1 / 255,) * spec.channels})


def torch_muon() -> None:
    """Use torch's Muon, which takes one matrix after the other."""
    importlib.import_module(f"{PACKAGE}.techniques.optimizers").Muon = torch.optim.Muon  # type: ignore[attr-defined]


def _change_spec(change: Callable[[Any], dict[str, Any]]) -> None:
    """Describe the loaded data in another way."""
    data: Any = importlib.import_module(f"{PACKAGE}.data")
    load = data.load

    def changed(cfg: Any) -> Any:
        found = load(cfg)
        return dataclasses.replace(found, spec=dataclasses.replace(found.spec, **change(found.spec)))

    data.load = changed
