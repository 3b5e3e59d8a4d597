"""A mode that fails where the host would synchronize with a device."""

from typing import Any

from torch.overrides import TorchFunctionMode

SYNCHRONIZING = {
    "item",
    "cpu",
    "numpy",
    "tolist",
    "__repr__",
    "__bool__",
    "__float__",
    "__int__",
    "__format__",
    "__index__",
}
SYNCHRONIZING |= {
    "__array__",
    "__contains__",
    "__iter__",
    "equal",
    "allclose",
    "nonzero",
    "masked_select",
    "unique",
    "is_nonzero",
}


class NoSynchronization(TorchFunctionMode):
    """Fails on every call that would synchronize the host with a device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        given = (*args[1:], *(kwargs or {}).values())
        asynchronous = (kwargs or {}).get("non_blocking", False)
        to_host = (
            name == "to" and any(isinstance(value, str) and value == "cpu" for value in given) and not asynchronous
        )
        if name in SYNCHRONIZING or to_host:
            raise AssertionError(f"the steady state calls Tensor.{name}")
        return func(*args, **(kwargs or {}))
