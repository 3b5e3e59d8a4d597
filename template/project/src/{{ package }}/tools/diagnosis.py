"""What limits the speed of a run, from the shares of its phases and the times of its operators."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WAITS = 0.2
"""Share of the time from which on a run is bound by its input, or by communication."""
SLOWER = 0.2
"""How much longer than the mean the slowest rank takes for its own part, from which on the others wait for it."""
IDLE = 0.3
"""Share of the steps in which a GPU has no kernel, from which on their launches are the bottleneck."""
SHORT, OVERHEAD = 20.0, 0.5
"""On a CPU: operators of fewer microseconds count as overhead, and the share of it that is the bottleneck."""
PRODUCTS = 0.5
"""Share of matrix products and convolutions in the operators' time, from which on a run is bound by computation."""
INTENSITY = 10
"""Operations per byte of input, below which a matrix product is bound by memory as well."""
PRODUCT = re.compile(r"mm|matmul|linear|conv|attention|einsum|gemm")


@dataclass(frozen=True)
class Diagnosis:
    """What bounds a run, why, and what to try next: an option, or advice where there is none."""

    bound: str
    why: str
    advice: str

    def __str__(self) -> str:
        return f"{self.bound}: {self.why}; try {self.advice}"


def of_phases(row: Mapping[str, float], config: Mapping[str, Any], ranks: int, cores: int) -> Diagnosis | None:
    """Return what a run waits for, by the medians of its training rows; None if it computes."""
    rest = 1 - sum(row.get(name, 0.0) for name in ("prepare", "forward", "backward", "communication", "optimizer"))
    waits = min(row.get("data_wait", 0.0), rest)  # on a GPU, loading may go on while it computes
    if waits >= WAITS:
        why = f"{waits:.0%} of the time is spent waiting for data"
        return Diagnosis("input-bound", why, _faster_loading(config, ranks, cores))
    slower, communicates = row.get("slowest_rank_share", 0.0), row.get("communication", 0.0)
    if slower >= SLOWER:
        who = f"rank {row['slowest_rank']:.0f} takes {slower:.0%} longer than the mean for its own part"
        advice = "giving it as much work, and as fast a machine, as the others"
        return Diagnosis("communication-bound", f"the ranks wait for each other, as {who}", advice)
    if communicates >= WAITS:
        why = f"{communicates:.0%} of the time is spent waiting for the gradients of other ranks"
        return Diagnosis("communication-bound", why, _less_communication(config))
    return None


def of_operators(record: Mapping[str, Any], row: Mapping[str, float], config: Mapping[str, Any]) -> Diagnosis:
    """Return what bounds the computation, from what `techniques/profiler.py` has recorded."""
    operators: Sequence[Mapping[str, Any]] = record["operators"]
    waits = row.get("data_wait", 0.0) + row.get("communication", 0.0)
    steps = record["us"] * (1 - min(waits, 0.9))
    exposed = record.get("exposed_us", 0.0) / record["us"]
    if exposed >= WAITS:
        why = f"a GPU does nothing but communicate in {exposed:.0%} of the time"
        return Diagnosis("communication-bound", why, _less_communication(config))
    if "busy_us" in record:
        idle = 1 - record["busy_us"] / record["us"]
        launches, why = idle >= IDLE, f"the GPU has nothing to do in {idle:.0%} of the time"
    else:
        longer = sum(it["us"] for it in operators if it["us"] >= SHORT * it["calls"])
        overhead = max(0.0, 1 - longer / steps)
        launches, why = overhead >= OVERHEAD, f"operators of less than {SHORT:.0f} us, and Python, take {overhead:.0%}"
    if record["no_compile"]:
        config = {**config, "speed": {**config["speed"], "compile": record["no_compile"]}}  # as if it were on already
    if launches:
        return Diagnosis("launch-bound", why, _fewer_launches(config, "busy_us" in record))
    total = sum(it["us"] for it in operators) or 1.0
    products = sum(it["us"] for it in operators if _computes(it)) / total
    if products >= PRODUCTS:
        why = f"matrix products and convolutions take {products:.0%} of the operators' time"
        return Diagnosis("compute-bound", why, _faster_computation(config))
    why = f"operators that compute little per byte take {1 - products:.0%} of the operators' time"
    return Diagnosis("memory-bound", why, _less_memory_traffic(config))


def _computes(operator: Mapping[str, Any]) -> bool:
    """Whether an operator is a matrix product or a convolution, of which each number is used often enough."""
    if not PRODUCT.search(operator["name"]):
        return False
    known = operator["flops"] and operator["numbers"]
    return not known or operator["flops"] / (4 * operator["numbers"] * operator["calls"]) >= INTENSITY


def _faster_loading(config: Mapping[str, Any], ranks: int, cores: int) -> str:
    from ..config import MOST_WORKERS  # here, as importing torch takes a second

    workers, most = config["loader"]["workers"], max(1, min(MOST_WORKERS, cores // ranks - 1))
    uncached = config["data"].get("cache") not in (None, "device")
    then = "--data.cache device" if uncached else "a faster `__getitems__` in data.py: less decoding, or shards"
    if workers == "auto":
        return f"--loader.workers {most}, unless the first lines of a run say that auto is as many; then {then}"
    return f"--loader.workers {most}" if workers < most else then


def _less_communication(config: Mapping[str, Any]) -> str:
    if config["dist"]["strategy"] == "ddp" and not config["dist"]["bf16_gradients"]:
        return "--dist.bf16_gradients true"
    return f"--train.accumulate {2 * config['train']['accumulate']}, for fewer updates with more samples each"


def _fewer_launches(config: Mapping[str, Any], on_device: bool) -> str:
    speed = config["speed"]
    if speed["compile"] == "off" and not speed["step_graph"]:
        return "--speed.compile model"
    in_a_framework = Path(__file__).parents[1].joinpath("framework.py").exists()  # which have no step_graph
    if on_device and not (speed["step_graph"] or in_a_framework or config["run"]["processes"]):
        return "--speed.step_graph true"
    return f"--train.micro_batch {2 * config['train']['micro_batch']}"


def _faster_computation(config: Mapping[str, Any]) -> str:
    if config["speed"]["precision"] == "fp32":
        return "--speed.precision auto, the fastest that the device supports"
    if config["speed"]["compile"] == "off":
        return "--speed.compile model"
    return "more devices, or a smaller model: the device does what it can"


def _less_memory_traffic(config: Mapping[str, Any]) -> str:
    if config["speed"]["compile"] == "off":
        return "--speed.compile model, which fuses them"
    if config["speed"]["precision"] == "fp32":
        return "--speed.precision auto, the fastest that the device supports"
    return "fewer elementwise operations in model.py"
