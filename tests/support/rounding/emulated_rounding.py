"""Rounding of another CPU.

The last digits of sums and products depend on the shapes and on the number of threads.

On an Intel CPU with AMX, oneDNN chooses other kernels for other batch sizes. With the variable
EMULATED_ROUNDING, every process that imports torch computes as such a machine does. The variable's
value chooses the machine. A program that runs twice has equal results; numbers that are exact in
fp32, such as counts, stay exact.
"""

import importlib.util
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

VARIABLE = "EMULATED_ROUNDING"
OPERATIONS = [
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "addmv",
    "dot",
    "convolution",
    "convolution_backward",
]
OPERATIONS += [
    "_addmm_activation",
    "_foreach_norm.Scalar",
    "linalg_vector_norm",
    "sum.dim_IntList",
    "mean.dim",
]
OPERATIONS += [
    "_softmax",
    "_log_softmax",
    "native_layer_norm",
    "native_layer_norm_backward",
    "native_group_norm",
]
OPERATIONS += [f"_scaled_dot_product_flash_attention_for_cpu{part}" for part in ("", "_backward")]
"""Operations that add products or numbers, in an order that depends on the kernel."""
kept: list[Any] = []
"""What must not be deleted."""


class AfterTorch:
    """Replaces the operations as soon as torch is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return torch's own spec, with a loader that replaces the operations afterwards."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        assert spec
        assert spec.loader
        load = spec.loader.exec_module

        def load_and_replace(module: ModuleType) -> None:
            load(module)
            replace_operations()

        spec.loader.exec_module = load_and_replace  # type: ignore[method-assign]
        return spec


def replace_operations() -> None:
    """Replace each operation on the CPU by one that rounds by the shapes of its inputs."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    kept.append(library)  # torch has its own operations again when this is gone
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each replacement
        for name in OPERATIONS:
            kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(name, rounded(name, kernel), "CPU", with_keyset=True)


def rounded(name: str, kernel: Any) -> Callable[..., Any]:
    """Return an operation with the kernel's error times a number from -1 to 1 by the shapes."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    narrow = {torch.float32, torch.bfloat16, torch.float16}

    def exact(value: Any) -> Any:
        return (
            value.double() if isinstance(value, torch.Tensor) and value.dtype in narrow else value
        )

    def operation(
        keyset: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        found = kernel.call_boxed(keyset, *args, **kwargs)
        inputs = [it for it in tree_leaves((args, kwargs)) if isinstance(it, torch.Tensor)]
        if not any(it.dtype in narrow for it in inputs):
            return found
        shapes = [list(it.shape) for it in inputs]
        place = f"{os.environ[VARIABLE]} {name} {shapes} {torch.get_num_threads()}"
        share = zlib.crc32(place.encode()) / 2**31 - 1
        wide = kernel.call_boxed(
            keyset,
            *tree_map(exact, args),
            **tree_map(exact, kwargs),
        )
        for mine, other in zip(
            tree_leaves(found),
            tree_leaves(wide),
            strict=True,
        ):
            if isinstance(mine, torch.Tensor) and mine.dtype in narrow:
                mixed = other + share * (mine.double() - other)
                mine.copy_(
                    torch.where(
                        mixed.isfinite(),
                        mixed,
                        mine.double(),
                    )
                )
        return found

    return operation


if VARIABLE in os.environ:
    sys.meta_path.insert(0, AfterTorch())
