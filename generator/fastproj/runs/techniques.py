"""The techniques that `fastproj bench` measures: the options without each of them, and with it."""

from dataclasses import dataclass

from .options import Options, for_framework
from .stages import Setting


@dataclass(frozen=True)
class Technique:
    """A technique, with the options that switch it off and on."""

    about: str
    without: Options
    with_it: Options
    gpu: bool = False
    """Whether it acts on GPUs only."""


FP32 = {"speed.precision": "fp32"}
TECHNIQUES = {
    "bf16": Technique("bf16 autocast instead of fp32", FP32, {"speed.precision": "bf16"}),
    "fp16": Technique("fp16 autocast instead of fp32", FP32, {"speed.precision": "fp16"}, gpu=True),
    "tf32": Technique("TF32 instead of fp32", FP32, {"speed.precision": "tf32"}, gpu=True),
    "compile": Technique("torch.compile", {"speed.compile": "off"}, {"speed.compile": "model"}),
    "channels-last": Technique(
        "NHWC", {"speed.channels_last": False}, {"speed.channels_last": True}
    ),
    "fused": Technique("AdamW in one kernel", {"optim.fused": False}, {"optim.fused": True}),
    "set-to-none": Technique(
        "gradients set to None, not to zero",
        {"optim.set_to_none": False},
        {"optim.set_to_none": True},
    ),
    "clipping": Technique("clip the gradient norm", {"optim.clip": None}, {"optim.clip": 1.0}),
    "workers": Technique("one loader process", {"loader.workers": 0}, {"loader.workers": 1}),
    "pinned-memory": Technique(
        "asynchronous copies", {"loader.pin_memory": False}, {"loader.pin_memory": True}, gpu=True
    ),
    "cudnn-autotuner": Technique(
        "cuDNN benchmarks its algorithms",
        {"speed.cudnn_benchmark": False},
        {"speed.cudnn_benchmark": True},
        gpu=True,
    ),
    "log-every": Technique(
        "a row of metrics every 50 steps, not every step", {"log.every": 1}, {"log.every": 50}
    ),
}
SWITCHES = {
    "activation-checkpointing": "recompute activations",
    "debug": "checks for NaN",
    "ema": "moving average of the weights",
    "fp8": "matrix products in fp8",
    "fsdp": "FSDP2 instead of DDP",
    "lora": "low-rank adapters",
    "mfu": "count FLOPs",
    "nonfinite": "skip steps with NaN",
    "oom": "ready for out of memory",
    "regional-compile": "torch.compile of each block",
}
"""Components that are off and on by `enabled`; another one can be benchmarked by its options with `tune`."""


def applicable(setting: Setting) -> dict[str, Technique]:
    """Return the techniques that this project, framework and machine have."""
    found = {
        name: it for name, it in TECHNIQUES.items() if not it.gpu or setting.machine.device != "cpu"
    }
    batch = setting.accumulated
    whole = setting.batch()
    if whole >= 8:
        found["batch"] = Technique(
            f"passes of {whole} instead of {whole // 4}", batch(whole // 4), batch(whole)
        )
    if "cache" in setting.project.components:
        on = {"cache.enabled": True, "cache.where": "memory"}
        found["cache"] = Technique("decoded samples in memory", {"cache.enabled": False}, on)
    for name, about in SWITCHES.items():
        if name in setting.project.components:
            section = name.replace("-", "_")
            found[name] = Technique(
                about, {f"{section}.enabled": False}, {f"{section}.enabled": True}
            )
    if not setting.has("Conv2d"):
        del found["channels-last"]
    return {name: it for name, it in found.items() if _has(setting, it.without | it.with_it)}


def _has(setting: Setting, options: Options) -> bool:
    """Whether the framework has these options: the others than plain PyTorch lack some."""
    if setting.project.framework == "accelerate":
        return options.keys() <= setting.recipe.keys()
    return for_framework(options, setting.project.lightning) is not None
