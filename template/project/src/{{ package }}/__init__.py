"""A training project that is yours: start at train.py; or, in a notebook, at `from <package> import Config, train`."""

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Result, train
    from .config import Config
    from .hooks import Hook

    __all__ = ["Config", "Hook", "Result", "train"]

LAZY = {"Config": "config", "Result": "api", "Hook": "hooks"}
"""The module of each name, which is imported when it is used: `import torch` takes a second."""


class _Train(ModuleType):
    """The module train.py, which can be called as well."""

    def __call__(self, cfg: "Config | None" = None, hooks: "Iterable[Hook]" = ()) -> "Result":
        """Train as `api.train` does."""
        from .api import train

        return train(cfg, hooks)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "train" and type(value) is ModuleType:  # it has just been imported
            value.__class__ = _Train
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module, util

    module = LAZY[name]
    if name == "Config" and util.find_spec(f"{__name__}.trainer_config"):  # which has one section more
        module, name = "trainer_config", "LightningConfig"
    return getattr(import_module(f".{module}", __name__), name)


sys.modules[__name__].__class__ = _Package
