"""Render a template with copier, and turn its errors into one line each."""

import os
import re
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Thread

from ..errors import FastprojError, UsageError
from .answers import ANSWERS_FILE, Answers, option
from .clone import Template
from .inspection import check_links, check_rendered
from .yaml_file import RESTORE, read_answers, without_own_entries


@cache
def preload() -> Thread:
    """Start importing copier, which takes 0.4 s, while git runs."""
    loader = Thread(target=_import_copier, daemon=True)
    loader.start()
    return loader


def _import_copier() -> None:
    with suppress(Exception):  # `_render`, which needs it, reports why
        import_module("copier")


@dataclass(frozen=True)
class Rendering:
    """What was rendered."""

    answers: Answers
    """The recorded answers, without copier's own entries."""
    own: list[str]
    """Files that belong to the user (`_skip_if_exists`)."""


def copy(
    template: Template,
    version: str,
    stage: Path,
    answers: Answers,
    defaults: Answers,
) -> Rendering:
    """Render a version of a template into `stage`, and inspect the result.

    An answers file in `stage` provides the answers that are not in `answers`; `defaults` replace
    the template's.

    Raises:
        FastprojError: the template is broken or hostile; an answer is missing or not allowed.
        OSError: a file cannot be written.
    """
    folder = template.at(version)
    check_links(folder, template.location)
    preload().join()
    with _without_environment(folder):
        own = _render(folder, stage, template.location, answers, defaults)
    check_rendered(stage, template.location)
    file = stage / ANSWERS_FILE
    _record(file, folder.name, template.location, version)
    recorded = read_answers(file)
    if (recorded.get("_src_path"), recorded.get("_commit")) != (template.location, version):
        raise FastprojError(
            f"the template {template.location} records another location or version than its own: "
            "do not use this template"
        )
    return Rendering(without_own_entries(recorded), own)


@contextmanager
def _without_environment(template: Path) -> Iterator[None]:
    """Hide the user's variables from the template, whose filters could read them; and git.

    Without git on the PATH, copier takes the template as a plain folder.
    """
    from plumbum import local

    before = dict(os.environ)
    # plumbum copied the environment when it was imported
    with chdir(template.parent), local.env(PATH=""):
        os.environ.clear()
        os.environ.update(PATH="", HOME=str(template))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _render(
    template: Path,
    stage: Path,
    location: str,
    answers: Answers,
    defaults: Answers,
) -> list[str]:
    """Run copier, and return the files that belong to the user."""
    import copier

    # The user's settings would make the same command render something else on another machine.
    settings = copier.Settings()
    try:
        worker = copier.run_copy(
            template.name,
            stage,
            answers,
            user_defaults=defaults,
            defaults=True,
            overwrite=True,
            quiet=True,
            settings=settings,
        )
    except Exception as error:
        raise _explained(error, location, answers | defaults) from error
    if worker.template.config_data.get("migrations"):
        raise FastprojError(
            f"the template {location} would run code of its own at updates: remove its _migrations"
        )
    files = [path.relative_to(stage) for path in stage.rglob("*") if not path.is_dir()]
    return [str(file) for file in files if worker.match_skip(file)]


def _explained(
    error: Exception,
    location: str,
    answers: Answers,
) -> Exception:
    """Return the error of one line for an error of copier or of a library that it uses."""
    if type(error).__name__ == "UnsafeTemplateError":
        return FastprojError(
            f"the template {location} would run code of its own, such as _tasks: "
            "remove that from it"
        )
    if isinstance(error, OSError) and error.errno:  # Jinja's for a missing include has none
        return error
    message = " ".join(str(error).split()) or type(error).__name__
    if required := re.fullmatch(r'Question "(\w+)" is required', message):
        if required[1] == "project_name":
            return FastprojError(f"{ANSWERS_FILE} does not record project_name: {RESTORE}")
        return UsageError(f"{required[1]} has no default: answer it with {option(required[1])}")
    refused = re.match(r"(?:Validation error for question|Invalid choice for) '(\w+)': ", message)
    if refused and refused[1] in (*answers, "project_name"):
        return UsageError(f"{option(refused[1])}: {message[refused.end() :]}")
    return FastprojError(f"the template {location} is broken: {message}")


def _record(
    file: Path,
    read: str,
    location: str,
    version: str,
) -> None:
    """Record where the template is, and its version, instead of the folder that copier read."""
    import yaml

    line = f"_src_path: {read}\n"
    content = file.read_text(encoding="utf-8") if file.is_file() else ""
    if line not in content:
        raise FastprojError(
            f"the template {location} does not record its answers, which updates need: "
            f"add a {ANSWERS_FILE} with _copier_answers | to_nice_yaml"
        )
    recorded = yaml.safe_dump({"_commit": version, "_src_path": location})
    file.write_text(content.replace(line, recorded), encoding="utf-8")
