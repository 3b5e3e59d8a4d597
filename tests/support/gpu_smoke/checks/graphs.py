"""Captured steps equal eager ones, for each model, with and without dropout, also after a resume."""

from functools import partial

from ..check import ENGINE, Check, Figures, Lab
from ..projects import CAPTURABLE, STEP_GRAPH

STEPS, HALF = 20, 10
OPTIONS = [f"--train.steps={STEPS}", f"--train.eval_every={HALF}", "--checkpoint.keep=9", "--log.every=1"]
OPTIONS += ["--speed.precision=auto", "--optim.lr=1e-3", "--speed.cudnn_benchmark=false", *CAPTURABLE]
CLOSE = 5e-3
"""Largest relative difference of a loss: captured AdamW computes its bias correction on the device."""


def equals_eager(lab: Lab, model: str) -> Figures:
    """The losses of captured steps, and of a run that is resumed halfway, equal those of eager steps."""
    project = lab.project(model)
    figures: Figures = {}
    for name, options in _variants(lab, model).items():
        shared = [*OPTIONS, *options]
        project.check_graphs(*shared, STEP_GRAPH)
        captured = [*shared, *[STEP_GRAPH] * (not lab.dry)]  # on the CPU, only the resume is checked
        eager, graphs = project.train(*shared), project.train(*captured)
        resumed = project.resume(graphs, HALF, *captured)
        figures[f"difference{name}"] = graphs.differs(eager)
        figures[f"difference_resumed{name}"] = resumed.differs(graphs)
    assert max(figures.values()) <= CLOSE, f"losses differ: {figures}"
    return figures


def _variants(lab: Lab, model: str) -> dict[str, list[str]]:
    if not lab.project(model).has_option("model", "dropout"):
        return {"": []}
    return {"": ["--model.dropout=0"], "_dropout": ["--model.dropout=0.2"]}


def overflow(lab: Lab) -> Figures:
    """fp16 skips the steps that overflow, lowers the loss scale, and trains on."""
    project = lab.project(ENGINE)
    rows = project.train_with_overflow(*OPTIONS, "--speed.precision=fp16").rows
    skipped = [row["skipped_steps"] for row in rows if row["split"] == "train"]
    assert 0 < skipped[-1] < STEPS // 2, f"skipped steps: {skipped}"
    return {"skipped": skipped[-1]}


def checks(lab: Lab) -> list[Check]:
    """Return a check for each model, and that of fp16."""
    found = [Check(f"{model}, step graph", "step graph", partial(equals_eager, model=model)) for model in lab.models]
    return [Check("fp16 overflow", "precision", overflow), *found]
