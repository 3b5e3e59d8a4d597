"""Compiled models have the losses of eager ones, are compiled once, and draw the same random numbers."""

from functools import partial

import torch

from ..check import ENGINE, Check, Figures, Lab
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


class Graphs:
    """The number of compiled graphs at the start of each step, and whether any is captured."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.captured = False

    def before_step(self, step: int) -> None:
        from torch._inductor.cudagraph_trees import get_manager

        self.counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        self.captured = get_manager(torch.cuda.current_device(), create_if_none_exists=False) is not None


def equals_eager(lab: Lab, model: str, mode: str) -> Figures:
    """The losses equal those of eager steps; each of the last batches of a validation is compiled once, too."""
    lab.project(model).config(*OPTIONS, *SHALLOW[model], *MODES[mode])
    lab.needs_cuda()  # on a CPU it takes minutes, and the projects' own tests do it
    project, graphs = lab.project(model), lab.project(model).hook(Graphs)
    torch.backends.cudnn.deterministic = True
    options = [*OPTIONS, *SHALLOW[model], FP32, *["--model.dropout=0"] * project.has_option("model", "dropout")]
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = project.train(*options, *MODES[mode], hooks=[graphs], whole_validation=True)
    difference = compiled.differs(project.train(*options))
    assert difference <= CLOSE, f"losses differ by {difference:.2g}"
    first, last = graphs.counts[3:EVERY], graphs.counts[2 * EVERY :]
    assert 0 < first[0] == first[-1], f"compiled again in training; graphs before each step: {graphs.counts}"
    assert last[0] == last[-1], f"compiled again after the second validation: {graphs.counts}"
    skipped = counters["inductor"]["cudagraph_skips"]
    assert not skipped, f"{skipped} CUDA graphs were skipped"
    assert graphs.captured == (mode == "reduce-overhead"), "CUDA graphs are captured in this mode, and in no other"
    return {"difference": difference, "graphs": last[-1]}


def fp8(lab: Lab) -> Figures:
    """fp8 layers train, are validated in inference mode, and end near bf16, eager and compiled."""
    lab.needs_capability((8, 9), "fp8")
    project = lab.project("gpt")
    options = [*OPTIONS, "--optim.name=adamw", "--optim.lr=1e-3"]
    expected = project.train(*options, "--speed.precision=bf16").validation["loss"]
    figures: Figures = {"loss_bf16": expected}
    for name, mode in {"eager": [], "compiled": MODES["blocks"]}.items():
        found = project.train(*options, "--speed.precision=fp8", *mode).validation["loss"]
        assert abs(found - expected) < 0.05 * expected, (
            f"{name}: {found:.4g} after training in fp8, {expected:.4g} in bf16"
        )
        figures[f"loss_{name}"] = found
    return figures


def random_numbers(lab: Lab) -> Figures:
    """Dropout masks are equal in eager and captured steps; in compiled ones too, if inductor calls torch's generator.

    By default inductor has a generator of its own, whose numbers must be equal in a second run.
    """
    project = lab.project(ENGINE)
    options = ["--train.steps=6", "--train.eval_every=6", "--log.every=1", "--model.dropout=0.5", FP32]
    options += CAPTURABLE
    eager = project.train(*options)
    again = project.train(*options)
    figures: Figures = {"difference_again": again.differs(eager)}
    if not lab.dry:
        captured = project.train(*options, STEP_GRAPH)
        figures["difference_captured"] = captured.differs(eager)
        with torch._inductor.config.patch(fallback_random=True):
            figures["difference_compiled"] = project.train(*options, *MODES["model"]).differs(eager)
        torch._dynamo.reset()
        first, second = (project.train(*options, *MODES["model"]) for _ in range(2))
        figures["difference_compiled_again"] = second.differs(first)
    assert max(figures.values()) <= CLOSE, f"losses differ: {figures}"
    return figures


def checks(lab: Lab) -> list[Check]:
    """Return the checks of this module."""
    chosen = [("vit", "model"), ("vit", "blocks"), ("resnet", "reduce-overhead")]
    found = [
        Check(f"{model}, compile {mode}", "compile", partial(equals_eager, model=model, mode=mode), 120)
        for model, mode in chosen
    ]
    random = Check("equal random numbers", "random numbers", random_numbers, 120)
    return [*found, Check("fp8", "precision", fp8, 120), random]
