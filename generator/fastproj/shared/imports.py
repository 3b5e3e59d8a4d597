"""Import copier without the libraries of its prompts, a third of the time, when nothing will be asked."""

import gc
import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

_OF_PROMPTS = ["questionary", "questionary.prompts", "questionary.prompts.common", "prompt_toolkit"]
_OF_PROMPTS += ["prompt_toolkit.lexers", "pygments", "pygments.lexers", "pygments.lexers.data"]


def import_copier(ask: bool) -> None:
    """Import copier; the libraries of its prompts only if it shall ask. `copy` reports why the import fails."""
    missing = [] if ask else [name for name in _OF_PROMPTS if name not in sys.modules]
    sys.modules.update({name: _Later(name) for name in missing})
    gc.disable()  # an import leaves no garbage
    try:
        with suppress(Exception):
            import_module("copier")
    finally:
        for name in missing:
            del sys.modules[name]
        gc.freeze()
        gc.enable()


class _Later(ModuleType):
    """Stands for a module whose functions import it when they are called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # it has no file, for example
        if name == "Choice":
            return _choice
        return lambda *arguments, **options: getattr(import_module(self.__name__), name)(*arguments, **options)


def _choice(title: str, value: Any = None, disabled: str = "") -> SimpleNamespace:
    """Return what copier uses of questionary's class to check an answer."""
    return SimpleNamespace(value=title if value is None else value, disabled=disabled)
