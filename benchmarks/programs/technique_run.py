"""Train a rendered project after a change that no option makes, and print peaks of memory: the GPU's, or the process's.

python technique_run.py PACKAGE CHANGES --config configs/default.yaml ...

The changes, joined by `+`, are `bias`: a bias before each BatchNorm, `autograd`: validation records gradients, `raw`:
inputs from 0 to 255, `gpt2`: GPT-2's vocabulary, of which the text has the first 256 tokens, and `torch_muon`: torch's
Muon, which takes one matrix after the other.
"""

import dataclasses
import importlib
import json
import resource
import sys
from collections.abc import Callable
from typing import Any

import torch

PEAKS = {"peak_mb": 0.0, "validation_mb": 0.0}


def main() -> None:
    """Change the project, train it, and print the peaks as the last line."""
    package, changes, *options = sys.argv[1:]
    train, config, distributed, run, data = (
        importlib.import_module(f"{package}.{name}") for name in ("train", "config", "distributed", "run", "data")
    )
    wanted = changes.split("+")
    if "bias" in wanted:
        add_bias()
    if "raw" in wanted:
        use_raw_inputs(data)
    if "gpt2" in wanted:
        change_spec(data, lambda spec: {"vocabulary": 50257})
    if "torch_muon" in wanted:
        importlib.import_module(f"{package}.techniques.optimizers").Muon = torch.optim.Muon  # type: ignore[attr-defined]
    watch_validation(run, with_gradients="autograd" in wanted)
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
    change_spec(data, lambda spec: {"mean": (0.0,) * spec.channels, "std": (1 / 255,) * spec.channels})


def change_spec(data: Any, change: Callable[[Any], dict[str, Any]]) -> None:
    """Describe the loaded data in another way."""
    load = data.load

    def changed(cfg: Any) -> Any:
        found = load(cfg)
        return dataclasses.replace(found, spec=dataclasses.replace(found.spec, **change(found.spec)))

    data.load = changed


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
