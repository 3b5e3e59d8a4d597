"""Run copier without work that a new folder does not need. The result is that of `copier copy`, byte for byte.

copier runs `git config` once per rendered file, to update the index of a project in which git ignores file modes;
compiles the same path components hundreds of times; and runs nine git commands to clone a bundle.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any


def run_copy(source: str, target: Path, checkout: Path | None, **options: Any) -> Any:
    """Render a template into a folder that git does not track, with copier's `options`, and return its worker.

    `checkout` is a clone with the wanted version checked out; without it, copier clones the template. With a copier
    that is built differently, this is copier's own `run_copy`.
    """
    import copier

    try:
        from copier._main import Worker
        from copier._settings import SettingsModel
    except ImportError:
        return copier.run_copy(source, target, settings=copier.Settings(), **options)

    class FastWorker(Worker):
        @cached_property
        def template(self) -> Any:
            template = super().template
            if checkout is not None:  # both are cached properties, so copier does not compute them
                vars(template).update(local_abspath=checkout.resolve(), vcs="git")
            return template

        @cached_property
        def jinja_env(self) -> Any:
            environment = super().jinja_env
            environment.from_string = _cached(environment)  # type: ignore[method-assign]
            return environment

        def _sync_git_index_executable_bit(self, *arguments: Any) -> None:
            """Do nothing: no index has entries for the files of a new folder."""

    # The user's settings would make the printed command render something else on another machine.
    with FastWorker(src_path=source, dst_path=target, settings=SettingsModel(), **options) as worker:
        worker.run_copy()
    return worker


def _cached(environment: Any) -> Callable[..., Any]:
    compile_string, compiled = environment.from_string, {}

    def from_string(source: str, *arguments: Any, **options: Any) -> Any:
        if arguments or options:
            return compile_string(source, *arguments, **options)
        environment.preprocess(source)  # resets the state of extensions, as compiling would
        if source not in compiled:
            compiled[source] = compile_string(source)
        return compiled[source]

    return from_string
