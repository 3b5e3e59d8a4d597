"""Captured steps equal eager ones, for each model, with and without dropout, also after a resume."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import torch

from ..check import ENGINE, Check, Figures, Lab
from ..projects import CAPTURABLE, STEP_GRAPH

STEPS, HALF = 20, 10
OPTIONS = [f"--train.steps={STEPS}", f"--train.eval_every={HALF}", "--checkpoint.keep=9", "--log.every=1"]
OPTIONS += ["--speed.precision=auto", "--optim.lr=1e-3", "--speed.cudnn_benchmark=false", *CAPTURABLE]
CLOSE = 1e-3
"""Largest relative difference of a loss. On a CPU in bf16, the operations of captured AdamW in place of the fused ones
change losses by up to 3e-4, and a momentum that stays as captured by 6e-3 or more."""
NOISE = 5
"""Factor: losses may differ by so many times what they do between two eager runs, as attention and the gradients of
some convolutions sum in any order."""


def equals_eager(lab: Lab, model: str) -> Figures:
    """The losses of captured steps, and of a run that is resumed halfway, equal those of eager steps."""
    torch.backends.cudnn.deterministic = True
    project, found, again = lab.project(model), dict[str, float](), dict[str, float]()
    for name, options in _variants(lab, model).items():
        shared = [*OPTIONS, *options]
        project.check_graphs(*shared, STEP_GRAPH)
        captured = [*shared, *[STEP_GRAPH] * (not lab.dry)]  # on the CPU, only the resume is checked
        eager, graphs = project.train(*shared), project.train(*shared)
        again[f"difference{name}_again"] = graphs.differs(eager)
        lab.figures.update(again)
        if not lab.dry:
            with counted_replays() as replays:
                graphs = project.train(*captured)
            assert len(replays) >= 2 * STEPS, f"{len(replays)} graphs were replayed in {STEPS} steps, of two each"
        found[f"difference{name}"] = graphs.differs(eager)
        lab.figures.update(found)
    found["difference_resumed"] = project.resume(graphs, HALF, *captured).differs(graphs)
    accepted = max(CLOSE, NOISE * max(again.values()))
    assert max(found.values()) <= accepted, f"losses differ by more than {accepted:.2g}"
    return {**found}


@contextmanager
def counted_replays() -> Iterator[list[None]]:
    """Within the context, the list gets an item for each graph that is replayed."""
    replay, replays = torch.cuda.CUDAGraph.replay, list[None]()

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        replays.append(None)
        replay(graph)

    with mock.patch.object(torch.cuda.CUDAGraph, "replay", counted):
        yield replays


def _variants(lab: Lab, model: str) -> dict[str, list[str]]:
    if not lab.project(model).has_option("model", "dropout"):
        return {"": []}
    return {"": ["--model.dropout=0"], "_dropout": ["--model.dropout=0.2"]}


def overflow(lab: Lab) -> Figures:
    """fp16 skips the steps that overflow, lowers the loss scale, and trains on: the loss falls."""
    project = lab.project(ENGINE)
    run = project.train_with_overflow(*OPTIONS, "--speed.precision=fp16")
    skipped = [row["skipped_steps"] for row in run.rows if row["split"] == "train"]
    assert 0 < skipped[-1] < STEPS // 2, f"skipped steps: {skipped}"
    first, last = (statistics.mean(part) for part in (run.losses[:HALF], run.losses[HALF:]))
    assert last < first, f"mean loss of the first {HALF} steps {first:.4g}, of the last {last:.4g}"
    return {"skipped": skipped[-1], "first_loss": first, "last_loss": last}


def checks(lab: Lab) -> list[Check]:
    """Return a check for each model, and that of fp16."""
    found = [Check(f"{model}, step graph", "step graph", partial(equals_eager, model=model)) for model in lab.models]
    return [Check("fp16 overflow", "precision", overflow), *found]
