"""Train the network of a rendered `proj` with several loops in turn, from the same weights.

    python loops.py LOOP,LOOP,... MODEL STEPS --config configs/default.yaml

The loops run in one process, on one core. Each has a network of its own and makes STEPS steps when
it is its turn; another loop begins each round. Prints JSON: the microseconds of CPU time per step
of each block of `log.every` steps, and for each loop the loss of the validation after the last
step.

- bare: forward, backward and update, on batches and with rates that are prepared beforehand
- measured: the bare step with clipping, and with the sum of each metric, which is read per block
- tutorial: as in PyTorch's tutorials, a DataLoader of single samples, clipping, a scheduler, and
  the sum of the losses
- nanogpt: the shape of nanoGPT's loop, with rows of one array of tokens, the rate computed in each
  step, and clipping
- timm: the shape of timm's train.py, with its clipping and its averages; needs timm and torchvision
- core: the project's own `train`
"""

import importlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import fmean
from threading import Semaphore, Thread
from typing import Any
from unittest import mock

import torch
from load_images import without_operators
from peer_setup import Setup, module
from torch import Tensor, nn


def bare(setup: Setup) -> Iterator[None]:
    """Do what no loop can leave out."""
    optimizer = setup.optimizer
    rates = setup.rates()
    for step, batch in enumerate(setup.batches()):
        setup.seed(step)
        setup.loss(batch).backward()
        for group in optimizer.param_groups:
            group["lr"], group["betas"] = rates[step]
        optimizer.step()
        optimizer.zero_grad()
        yield


def measured(setup: Setup) -> Iterator[None]:
    """Do what no loop can leave out, clip, and sum the metrics."""
    optimizer = setup.optimizer
    rates = setup.rates()
    parameters = list(setup.net.parameters())
    sums: dict[str, Tensor] = {}
    for step, batch in enumerate(setup.batches()):
        setup.seed(step)
        loss, metrics = setup.loss_and_metrics(batch)
        loss.backward()
        for name, (value, _) in metrics.items():
            value = value.detach()
            sums[name] = sums[name] + value if name in sums else value
        for group in optimizer.param_groups:
            group["lr"], group["betas"] = rates[step]
        nn.utils.clip_grad_norm_(parameters, setup.cfg.optim.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % setup.cfg.log.every == 0:
            totals = [total.double().flatten() for total in sums.values()]
            torch.cat(totals).tolist()
            sums.clear()
        yield


def tutorial(setup: Setup) -> Iterator[None]:
    """Train as PyTorch's tutorials do."""
    schedule = setup.torch_schedule()
    running = 0.0
    for step, loaded in enumerate(setup.samples()):
        setup.seed(step)
        setup.optimizer.zero_grad()
        loss = setup.loss(setup.prepared(tuple(loaded)))
        loss.backward()
        setup.clip()
        setup.optimizer.step()
        schedule.step()
        running += loss.item()
        yield


def nanogpt(setup: Setup) -> Iterator[None]:
    """Train as nanoGPT does: no loader, the next batch while the present one is computed."""
    tokens = setup.train_set.tensors[0]

    def next_batch(indices: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.stack([tokens[index].long() for index in indices])
        return rows[:, :-1], rows[:, 1:]

    batch = next_batch(setup.order[0])
    for step in range(len(setup.order)):
        setup.schedule.set(setup.optimizer, step)
        loss = setup.loss(batch)
        following = min(step + 1, len(setup.order) - 1)
        batch = next_batch(setup.order[following])
        loss.backward()
        setup.clip()
        setup.optimizer.step()
        setup.optimizer.zero_grad(set_to_none=True)
        if step % setup.cfg.log.every == 0:
            loss.item()
        yield


def timm(setup: Setup) -> Iterator[None]:
    """Train as timm does."""
    with without_operators():
        utils = importlib.import_module("timm.utils")

    schedule = setup.torch_schedule()
    parameters = list(setup.net.parameters())
    losses = utils.AverageMeter()
    for step, loaded in enumerate(setup.samples()):
        setup.seed(step)
        loss = setup.loss(setup.prepared(tuple(loaded)))
        loss.backward()
        utils.dispatch_clip_grad(parameters, setup.cfg.optim.max_grad_norm, mode="norm")
        setup.optimizer.step()
        setup.optimizer.zero_grad()
        losses.update(loss.item(), len(loaded[0]))
        schedule.step()
        yield


def core(setup: Setup) -> Iterator[None]:
    """Train with the project's `train`, which runs in a thread and waits there after each turn."""
    train = module("train")
    component = module("component")
    go = Semaphore(0)
    done = Semaphore(0)

    class Pause(component.Component):  # type: ignore[misc, name-defined]
        name = "pause"

        def on_step_end(self, run: Any) -> None:
            if run.step % setup.turn == 0:
                done.release()
                go.acquire()

    def work() -> None:
        try:
            with mock.patch.object(train, "build_components", return_value=Pause()):
                setup.results = train.train(setup.cfg)
        finally:
            done.release()

    thread = Thread(target=work)
    thread.start()
    for _ in range(setup.plan.total_steps // setup.turn):
        done.acquire()
        yield from [None] * setup.turn  # the steps of the turn, which are made
        go.release()
    thread.join()


LOOPS: dict[str, Callable[[Setup], Iterator[None]]] = {
    "bare": bare,
    "measured": measured,
    "tutorial": tutorial,
    "nanogpt": nanogpt,
    "timm": timm,
    "core": core,
}


def in_turn(
    loops: dict[str, Iterator[None]],
    turns: int,
    turn: int,
) -> dict[str, list[float]]:
    """Return the microseconds of CPU time per step of each turn of each loop."""
    times: dict[str, list[float]] = defaultdict(list)
    names = list(loops)
    for _ in range(turns):
        for name in names:
            begin = time.process_time()
            for _ in range(turn):
                next(loops[name])
            seconds = time.process_time() - begin
            times[name].append(seconds / turn * 1e6)
        names.append(names.pop(0))
    for steps in loops.values():
        assert not list(steps)
    return times


def blocks(times: list[float], turns: int) -> list[float]:
    """Return the means of so many turns."""
    means = []
    for begin in range(0, len(times), turns):
        means.append(fmean(times[begin : begin + turns]))
    return means


def main() -> None:
    """Train with the loops, validate, and print."""
    _, names, model, turn, *options = sys.argv
    steps = int(turn)
    # the thread of `core` would meet cold caches on another core
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    setups = {name: Setup(model, options, steps) for name in names.split(",")}
    loops = {name: LOOPS[name](setup) for name, setup in setups.items()}
    first = next(iter(setups.values()))
    turns = in_turn(loops, first.plan.total_steps // steps, steps)
    times = {}
    losses = {}
    for name, setup in setups.items():
        times[name] = blocks(turns[name], setup.cfg.log.every // steps)
        losses[name] = setup.results["loss"] if setup.results else setup.validate()
    print(json.dumps({"times": times, "losses": losses}))


if __name__ == "__main__":
    main()
