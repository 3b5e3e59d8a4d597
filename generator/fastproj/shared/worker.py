"""Run copier without work that a new folder does not need. The result is that of `copier copy`, byte for byte.

copier runs `git config` once per rendered file, to update the index of a project in which git ignores file modes;
compiles each path component, and builds a new context to render it; and runs nine git commands to clone a bundle.
"""

from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .prompts import Prompts  # imports the libraries of prompts


def run_copy(source: str, target: Path, checkout: Path | None, prompts: "Prompts | None" = None, **options: Any) -> Any:
    """Render a template into a folder that git does not track, with copier's `options`, and return its worker.

    `checkout` has the wanted version checked out; without it, copier clones the template. `prompts` ask the questions,
    from now on in this process; without them, copier does. With a copier that is built differently, this is copier's
    own `run_copy`.
    """
    import copier

    try:
        from copier._main import Worker
        from copier._settings import SettingsModel
    except ImportError:
        return copier.run_copy(source, target, settings=copier.Settings(), **options)

    if prompts is not None and not _replace_prompts(prompts):
        prompts = None

    class FastWorker(Worker):
        def _ask(self) -> None:
            super()._ask()
            if prompts is not None:
                prompts.confirm(self, super()._ask)

        @cached_property
        def template(self) -> Any:
            template = super().template
            if checkout is not None:  # these are cached properties, so copier does not compute them
                vars(template).update(local_abspath=checkout.resolve(), vcs="git", commit=template.ref)
            return template

        @cached_property
        def jinja_env(self) -> Any:
            return _compiling_once(super().jinja_env)

        @property
        def answers_relpath(self) -> Path:
            path = str(self.answers_file or self.template.answers_relpath)
            return Path(path) if _is_plain(self.jinja_env, path) else super().answers_relpath

        def _render_string(self, string: str, extra_context: Any = None) -> str:
            if not _is_plain(self.jinja_env, string):
                return super()._render_string(string, extra_context)
            self.jinja_env.preprocess(string)  # as in a compilation, this resets the state of extensions
            return string

        def _sync_git_index_executable_bit(self, *arguments: Any) -> None:
            """Do nothing: no index has entries for the files of a new folder."""

    # The user's settings would make the printed command render something else on another machine.
    with FastWorker(src_path=source, dst_path=target, settings=SettingsModel(), **options) as worker:
        worker.run_copy()
    return worker


def _replace_prompts(prompts: "Prompts") -> bool:
    """Let copier ask through `prompts`; returns False if it is built differently, and asks by itself."""
    from copier import _main

    try:
        from copier._types import MISSING
        from copier._user_data import Question
    except ImportError:
        return False
    if not {"Question", "unsafe_prompt"} <= vars(_main).keys():
        return False

    class AskedQuestion(Question):
        def get_default(self) -> Any:
            try:
                return super().get_default()
            except ValueError:  # it does not fit the answers before, so the question is asked
                return MISSING

        def get_questionary_structure(self) -> dict[str, Any]:
            return {**super().get_questionary_structure(), "asked": self}

    vars(_main).update(Question=AskedQuestion, unsafe_prompt=prompts.ask)
    return True


def _is_plain(environment: Any, string: Any) -> bool:
    """Return whether a string has no Jinja syntax, so that it renders to itself."""
    if not isinstance(string, str) or environment.line_statement_prefix or environment.line_comment_prefix:
        return False
    starts = (environment.block_start_string, environment.variable_start_string, environment.comment_start_string)
    return not any(start in string for start in (*starts, "\n", "\r"))


def _compiling_once(environment: Any) -> Any:
    """Let a Jinja environment compile each string only once, and return it."""
    compiled = cache(environment.from_string)

    def from_string(source: Any) -> Any:
        environment.preprocess(source)  # as in a compilation, this resets the state of extensions
        return compiled(source)

    environment.from_string = from_string
    return environment
