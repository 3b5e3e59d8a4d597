"""Train the network of a rendered `proj` with several loops in turn: the same weights, samples, steps and validation.

    python loops.py LOOP,LOOP,... MODEL STEPS --config configs/default.yaml

The loops run in one process, on one core. Each has a network of its own and makes STEPS steps when
it is its turn; another loop begins each round. Prints JSON: the microseconds of CPU time per step
of each block of `log.every` steps, and for each loop the loss of the validation after the last
step.

bare        forward, backward and update, on batches that are prepared beforehand; the rates of the
schedule as well measured    the bare step with clipping, and with the sum of each metric, which is
read once per block tutorial    as in PyTorch's tutorials: a DataLoader of single samples, clipping,
a scheduler, and the sum of the losses nanogpt     the shape of nanoGPT's loop: rows of one array of
tokens, the rate computed in each step, clipping timm        the shape of timm's train.py, with its
clipping and its averages; needs timm and torchvision core        the project's own `train`
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from threading import Semaphore, Thread
from typing import Any
from unittest import mock

import torch
from load_images import without_operators
from peer_setup import Setup, module
from torch import Tensor, nn


def bare(it: Setup) -> Iterator[None]:
    """Do what no loop can leave out."""
    rates = it.rates()
    for step, batch in enumerate(it.batches()):
        it.seed(step)
        it.loss(batch).backward()
        for group in it.optimizer.param_groups:
            group["lr"], group["betas"] = rates[step]
        it.optimizer.step()
        it.optimizer.zero_grad()
        yield


def measured(it: Setup) -> Iterator[None]:
    """Do what no loop can leave out, clip, and sum the metrics."""
    rates, parameters, sums = it.rates(), list(it.net.parameters()), dict[str, Tensor]()
    for step, batch in enumerate(it.batches()):
        it.seed(step)
        loss, metrics = it.call(batch)
        loss.backward()
        for name, (value, _) in metrics.items():
            sums[name] = sums[name] + value.detach() if name in sums else value.detach()
        for group in it.optimizer.param_groups:
            group["lr"], group["betas"] = rates[step]
        nn.utils.clip_grad_norm_(parameters, it.cfg.optim.clip)
        it.optimizer.step()
        it.optimizer.zero_grad()
        if (step + 1) % it.cfg.log.every == 0:
            torch.cat([value.double().flatten() for value in sums.values()]).tolist()
            sums.clear()
        yield


def tutorial(it: Setup) -> Iterator[None]:
    """Train as PyTorch's tutorials do."""
    schedule, running = it.torch_schedule(), 0.0
    for step, loaded in enumerate(it.samples()):
        it.seed(step)
        it.optimizer.zero_grad()
        loss = it.loss(it.prepared(tuple(loaded)))
        loss.backward()
        nn.utils.clip_grad_norm_(it.net.parameters(), it.cfg.optim.clip)
        it.optimizer.step()
        schedule.step()
        running += loss.item()
        yield


def nanogpt(it: Setup) -> Iterator[None]:
    """Train as nanoGPT does: one process, no loader, the next batch while the present one is computed."""
    tokens = it.train_set.tensors[0]

    def next_batch(indices: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.stack([tokens[index].long() for index in indices])
        return rows[:, :-1], rows[:, 1:]

    batch = next_batch(it.order[0])
    for step in range(len(it.order)):
        it.schedule.set(it.optimizer, step)
        loss = it.loss(batch)
        batch = next_batch(it.order[min(step + 1, len(it.order) - 1)])
        loss.backward()
        nn.utils.clip_grad_norm_(it.net.parameters(), it.cfg.optim.clip)
        it.optimizer.step()
        it.optimizer.zero_grad(set_to_none=True)
        if step % it.cfg.log.every == 0:
            loss.item()
        yield


def timm(it: Setup) -> Iterator[None]:
    """Train as timm does."""
    with without_operators():
        utils = importlib.import_module("timm.utils")

    schedule, parameters, losses = (
        it.torch_schedule(),
        list(it.net.parameters()),
        utils.AverageMeter(),
    )
    for step, loaded in enumerate(it.samples()):
        it.seed(step)
        loss = it.loss(it.prepared(tuple(loaded)))
        loss.backward()
        utils.dispatch_clip_grad(parameters, it.cfg.optim.clip, mode="norm")
        it.optimizer.step()
        it.optimizer.zero_grad()
        losses.update(loss.item(), len(loaded[0]))
        schedule.step()
        yield


def core(it: Setup) -> Iterator[None]:
    """Train with the project's `train`, which runs in a thread and waits there after each turn."""
    train, go, done = module("train"), Semaphore(0), Semaphore(0)

    class Pause(module("component").Component):  # type: ignore[misc]
        name = "pause"

        def on_step_end(self, run: Any) -> None:
            if run.step % it.turn == 0:
                done.release()
                go.acquire()

    def work() -> None:
        try:
            components = module("component").Components([Pause()])
            with mock.patch.object(train, "build_components", return_value=components):
                it.results = train.train(it.cfg)
        finally:
            done.release()

    thread = Thread(target=work)
    thread.start()
    for _ in range(it.plan.total_steps // it.turn):
        done.acquire()
        yield from [None] * it.turn  # the steps of the turn, which are made
        go.release()
    thread.join()


def in_turn(loops: dict[str, Iterator[None]], turns: int, turn: int) -> dict[str, list[float]]:
    """Return the microseconds of CPU time per step of each turn of each loop."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    names = list(loops)
    for _ in range(turns):
        for name in names:
            begin = time.process_time()
            for _ in islice(loops[name], turn):
                pass
            times[name].append((time.process_time() - begin) / turn * 1e6)
        names.append(names.pop(0))
    for steps in loops.values():
        assert not list(steps)
    return times


def blocks(times: list[float], turns: int) -> list[float]:
    """Return the means of so many turns."""
    return [sum(times[begin : begin + turns]) / turns for begin in range(0, len(times), turns)]


def main() -> None:
    """Train with the loops, validate, and print."""
    if hasattr(
        os, "sched_setaffinity"
    ):  # the thread of `core` would meet cold caches on another core
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    setups = {
        name: Setup(sys.argv[2], sys.argv[4:], int(sys.argv[3])) for name in sys.argv[1].split(",")
    }
    kinds: list[Callable[[Setup], Iterator[None]]] = [bare, measured, tutorial, nanogpt, timm, core]
    loops = {
        kind.__name__: kind(setups[kind.__name__]) for kind in kinds if kind.__name__ in setups
    }
    it = next(iter(setups.values()))
    found = in_turn(loops, it.plan.total_steps // it.turn, it.turn)
    times = {name: blocks(turns, it.cfg.log.every // it.turn) for name, turns in found.items()}
    losses = {
        name: it.results["loss"] if it.results else it.validate() for name, it in setups.items()
    }
    print(json.dumps({"times": times, "losses": losses}))


if __name__ == "__main__":
    main()
