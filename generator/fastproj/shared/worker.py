"""Run copier without the work that rendering into a new folder does not need.

copier starts a git process per file, to update the index of a project in which git ignores file modes; it compiles the
same path components hundreds of times; and it clones a template more carefully than a local bundle requires. The result
is the same as that of `copier copy`, byte for byte. Each override is ignored if copier no longer has what it overrides.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any


def run_copy(source: str, target: Path, checkout: Path | None, **options: Any) -> Any:
    """Render a template into a folder that git does not track, with copier's `options`, and return its worker.

    `checkout` is a clone with the wanted version checked out; without it, copier clones the template.
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
            if checkout is not None:  # these are cached properties, which are not computed again
                vars(template).update(local_abspath=checkout.resolve(), vcs="git")
            return template

        @cached_property
        def jinja_env(self) -> Any:
            environment = super().jinja_env
            environment.from_string = _cached(environment)  # type: ignore[method-assign, assignment]
            return environment

        def _sync_git_index_executable_bit(self, *arguments: Any) -> None:
            """Skip it: the index of a repository around a new folder has no entries for its files."""

    # Without settings of the user, which would make the printed command render something else elsewhere.
    with FastWorker(src_path=source, dst_path=target, settings=SettingsModel(), **options) as worker:
        worker.run_copy()
    return worker


def _cached(environment: Any) -> Callable[[str], Any]:
    compile_string, compiled = environment.from_string, {}

    def from_string(source: str) -> Any:
        environment.preprocess(source)  # resets the state of extensions, as compiling would
        if source not in compiled:
            compiled[source] = compile_string(source)
        return compiled[source]

    return from_string
