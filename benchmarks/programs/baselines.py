"""Time a bare training step, or the loop of PyTorch's tutorials, with the network and data of the rendered `proj`.

python baselines.py bare|tutorial --config configs/default.yaml

Prints the microseconds per step of each block of `log.every` steps. "bare" is forward, backward, update and resetting
the gradients on one prepared batch, and nothing else. "tutorial" also loads shuffled batches with a DataLoader,
prepares them, clips the gradients, steps a 1cycle schedule and accumulates the metrics.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch


def main() -> None:
    """Build the network from the config and run one of the loops."""
    kind, options = sys.argv[1], sys.argv[2:]
    modules = (importlib.import_module(f"proj.{name}") for name in ("config", "components", "data", "model"))
    config, components, data, model = modules
    cfg = config.parse(components.Config, options)
    torch.manual_seed(cfg.run.seed)
    samples, _, spec = data.load(cfg.data)
    net = model.build(cfg.model, spec)
    prepare = data.Prepare(spec, cfg.data)
    optimizer = torch.optim.AdamW(net.parameters(), lr=cfg.optim.lr, weight_decay=cfg.optim.weight_decay, fused=True)
    make: dict[str, Callable[..., Iterator[None]]] = {"bare": bare, "tutorial": tutorial}
    steps = make[kind](cfg, samples, prepare, net, optimizer)
    times = []
    for _ in range(cfg.train.steps // cfg.log.every):
        start = time.perf_counter()
        for _ in range(cfg.log.every):
            next(steps)
        times.append((time.perf_counter() - start) / cfg.log.every * 1e6)
    print(json.dumps(times))


def bare(cfg: Any, samples: Any, prepare: Any, net: Any, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Train on one prepared batch."""
    batch = prepare(samples.__getitems__(list(range(cfg.train.micro_batch))), True, torch.default_generator)
    while True:
        loss, _ = net(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def tutorial(cfg: Any, samples: Any, prepare: Any, net: Any, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Train as in PyTorch's tutorials: one sample at a time from a dataset, collated by a DataLoader."""
    tensors = samples.__getitems__(list(range(len(samples))))
    dataset = torch.utils.data.TensorDataset(*tensors)
    loader = torch.utils.data.DataLoader(dataset, cfg.train.micro_batch, shuffle=True, drop_last=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, cfg.optim.lr, total_steps=cfg.train.steps + 1)
    running = 0.0
    while True:
        for loaded in loader:
            optimizer.zero_grad()
            loss, _ = net(*prepare(tuple(loaded), True, torch.default_generator))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), cfg.optim.clip)
            optimizer.step()
            schedule.step()
            running += loss.item()
            yield


if __name__ == "__main__":
    main()
