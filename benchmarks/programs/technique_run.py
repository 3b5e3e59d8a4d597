"""Train a rendered project after a change that no option makes, and print peaks of memory: the GPU's, or the process's.

python technique_run.py PACKAGE CHANGE --config configs/default.yaml ...

The change is empty for none, `bias`: a bias before each BatchNorm, `autograd`: validation records gradients, `raw`:
inputs from 0 to 255, or `torch_muon`: torch's Muon, which takes one matrix after the other.
"""

import dataclasses
import importlib
import json
import resource
import sys
from typing import Any

import torch

PEAKS = {"peak_mb": 0.0, "validation_mb": 0.0}


def main() -> None:
    """Change the project, train it, and print the peaks as the last line."""
    package, change, *options = sys.argv[1:]
    train, config, distributed, run, data = (
        importlib.import_module(f"{package}.{name}") for name in ("train", "config", "distributed", "run", "data")
    )
    if change == "bias":
        add_bias()
    if change == "raw":
        use_raw_inputs(data)
    if change == "torch_muon":
        importlib.import_module(f"{package}.techniques.optimizers").Muon = torch.optim.Muon  # type: ignore[attr-defined]
    watch_validation(run, with_gradients=change == "autograd")
    cfg = config.parse("benchmark", "", options)
    with distributed.start(cfg.run.device) as world:
        train.train(cfg, world)
    note("peak_mb")
    print(json.dumps(PEAKS))
    distributed.end(world)


def add_bias() -> None:
    """Give every convolution a bias."""
    create = torch.nn.Conv2d.__init__

    def with_bias(self: Any, *arguments: Any, **named: Any) -> None:
        create(self, *arguments, **{**named, "bias": True})

    torch.nn.Conv2d.__init__ = with_bias  # type: ignore[method-assign]


def use_raw_inputs(data: Any) -> None:
    """Leave pixels as they are, from 0 to 255, by statistics that change nothing."""
    load = data.load

    def raw(cfg: Any) -> Any:
        found = load(cfg)
        channels = found.spec.channels
        spec = dataclasses.replace(found.spec, mean=(0.0,) * channels, std=(1 / 255,) * channels)
        return dataclasses.replace(found, spec=spec)

    data.load = raw


def watch_validation(run: Any, with_gradients: bool) -> None:
    """Note the peak during validations, which may record gradients."""
    evaluate = run.evaluate.__wrapped__ if with_gradients else run.evaluate

    def watched(*arguments: Any) -> Any:
        note("peak_mb")
        found = evaluate(*arguments)
        note("validation_mb")
        PEAKS["peak_mb"] = max(PEAKS.values())
        return found

    run.evaluate = watched


def note(name: str) -> None:
    """Note the peak since the last note; of a process, since its start."""
    if torch.cuda.is_available():
        PEAKS[name] = max(PEAKS[name], torch.cuda.max_memory_allocated() / 1e6)
        torch.cuda.reset_peak_memory_stats()
    else:
        PEAKS[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
