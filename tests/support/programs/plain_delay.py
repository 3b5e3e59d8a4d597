"""Print by how many ms the planted delay lengthens a step of a plain loop: a pause also costs what follows it."""

import statistics
import time
from dataclasses import replace
from typing import Any

import torch
from proj import data, model
from proj.config import parse


def main() -> None:
    cfg = parse("proj.train", "", ["--config=configs/default.yaml"])
    samples: Any = data.load(cfg.data)
    prepare = data.Prepare(samples.spec, cfg.data)
    loaded = samples.train.__getitems__(list(range(cfg.train.micro_batch)))
    batch: Any = prepare(loaded, True, torch.Generator())
    medians: dict[bool, list[float]] = {False: [], True: []}
    for slow in (False, True) * 5:
        changed: Any = replace(cfg.model, slow=slow)
        net = model.build(changed, samples.spec)
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        times = []
        for _ in range(100):
            began = time.perf_counter()
            net(*batch)[0].backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - began)
        medians[slow].append(statistics.median(times[20:]))
    print(1000 * (statistics.median(medians[True]) - statistics.median(medians[False])))


if __name__ == "__main__":
    main()
