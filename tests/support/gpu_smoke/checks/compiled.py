"""Compiled models have the losses of eager ones, are compiled once, and draw the same random numbers."""

from functools import partial

import torch

from ..check import ENGINE, Check, Figures, Lab
from ..compiling import Graphs
from ..projects import CAPTURABLE, STEP_GRAPH

EVERY = 8
OPTIONS = [
    f"--train.steps={3 * EVERY}",
    f"--train.eval_every={EVERY}",
    "--log.every=1",
    "--speed.cudnn_benchmark=false",
    "--optim.lr=1e-3",
]
FP32 = "--speed.precision=fp32"
CLOSE = 1e-3
"""Largest relative difference of a loss in fp32: kernels add in another order, which on a CPU changes it by 5e-5."""
SHALLOW = {"vit": ["--model.depth=2"], "resnet": ["--model.depths=[1,1]"]}
"""Fewer layers of the same kind, which take less time to compile."""
MODES = {
    "model": ["--speed.compile=model"],
    "blocks": ["--speed.compile=blocks"],
    "reduce-overhead": ["--speed.compile=model", "--speed.compile_mode=reduce-overhead"],
}


def equals_eager(lab: Lab, model: str, mode: str) -> Figures:
    """The losses equal those of eager steps. The first step and the first validation are compiled, and nothing later.

    The last batch of a validation is smaller than the others.
    """
    lab.project(model).config(*OPTIONS, *SHALLOW[model], *MODES[mode])
    lab.needs_cuda()  # on a CPU it takes minutes, and the projects' own tests do it
    project, graphs = lab.project(model), lab.project(model).hook(Graphs)
    torch.backends.cudnn.deterministic = True
    options = [*OPTIONS, *SHALLOW[model], FP32, *["--model.dropout=0"] * project.has_option("model", "dropout")]
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = project.train(*options, *MODES[mode], hooks=[graphs], whole_validation=True)
    lab.figures["difference"] = difference = compiled.differs(project.train(*options))
    assert difference <= CLOSE, f"losses differ by {difference:.2g}"
    lab.figures["graphs"] = graphs.counts[-1]
    check_counts(graphs.counts)
    skipped = counters["inductor"]["cudagraph_skips"]
    assert not skipped, f"{skipped} CUDA graphs were skipped"
    assert graphs.captured == (mode == "reduce-overhead"), "CUDA graphs are captured in this mode, and in no other"
    return {}


def check_counts(counts: list[int]) -> None:
    """Check the number of graphs at the start of each step, and at the end: after a validation."""
    first, later = counts[3:EVERY], counts[EVERY:]
    assert 0 < first[0] == first[-1], f"compiled again in training; graphs before each step: {counts}"
    assert later[0] == later[-1], f"compiled again after the first validation: {counts}"


def random_numbers(lab: Lab) -> Figures:
    """Dropout masks are equal in eager and captured steps; in compiled ones too, if inductor calls torch's generator.

    By default inductor has a generator of its own, whose numbers must be equal in a second run.
    """
    project = lab.project(ENGINE)
    options = ["--train.steps=6", "--train.eval_every=6", "--log.every=1", "--model.dropout=0.5", FP32]
    options += CAPTURABLE
    eager = project.train(*options)
    again = project.train(*options)
    figures = lab.figures
    figures["difference_again"] = again.differs(eager)
    if not lab.dry:
        captured = project.train(*options, STEP_GRAPH)
        figures["difference_captured"] = captured.differs(eager)
        with torch._inductor.config.patch(fallback_random=True):
            figures["difference_compiled"] = project.train(*options, *MODES["model"]).differs(eager)
        torch._dynamo.reset()
        first, second = (project.train(*options, *MODES["model"]) for _ in range(2))
        figures["difference_compiled_again"] = second.differs(first)
    assert max(figures.values()) <= CLOSE, "losses differ"
    return {}


def checks(lab: Lab) -> list[Check]:
    """Return the checks of this module."""
    chosen = [("vit", "model"), ("vit", "blocks"), ("resnet", "reduce-overhead")]
    found = [
        Check(f"{model}, compile {mode}", "compile", partial(equals_eager, model=model, mode=mode), 120)
        for model, mode in chosen
    ]
    return [*found, Check("equal random numbers", "random numbers", random_numbers, 120)]
