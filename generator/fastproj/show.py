"""The output of the commands, as text."""

from __future__ import annotations

import json
import os
import shlex
import string
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import printable, wrapped
from .template.answers import as_text, shown_name

if TYPE_CHECKING:  # no command needs all of them
    from .creating.hardware import Machine
    from .creating.project import Project
    from .updating.components import Component, Table
    from .updating.project import Status
    from .updating.update import UpdateResult

_NO_HOOKS = "-c core.hooksPath=/dev/null"


def write(text: str) -> None:
    """Print what was done, which is done also if nobody can read it; wrap it for a terminal.

    Lines that start with spaces are commands and paths, and those of a diff have no capital.
    """
    if sys.stdout is not None and sys.stdout.isatty():
        text = "\n".join(wrapped(it) if it[:1].isupper() else it for it in text.split("\n"))
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"fastproj: {unwritable(error)}", file=sys.stderr)


def unwritable(error: OSError) -> str:
    """Return the message for an output that cannot be written."""
    return f"cannot write the output ({error.strerror}): check where stdout goes"


def as_json(
    result: Machine | Status,
    **more: Any,
) -> str:
    """Format the result of a command as JSON."""
    return _text(json.dumps(asdict(result) | more, indent=2).split("\n"))


def machine(machine: Machine) -> str:
    """Describe a machine in two lines, and what could not be detected."""
    counted = Counter((gpu.name, gpu.tensor_cores) for gpu in machine.gpus)
    gpus = [
        f"{count} x {name}, {'no Tensor Cores' if newest == 'none' else newest}"
        for (name, newest), count in counted.items()
    ]
    memory = f"{machine.memory_gib:.0f} GiB of memory"
    bf16 = f"bf16 by {machine.bf16}" if machine.bf16 else "no bf16 in hardware"
    lines = [f"CPU   {_count(machine.cores, 'core')}, {memory}, {bf16}"]
    lines.append(f"GPUs  {'; '.join(gpus) or 'none'}")
    return _text(lines + [f"Note: {note}." for note in machine.notes])


def detected(machine: Machine) -> str:
    """Describe a machine in one line, and how to answer the questions that follow."""
    gpus = "no GPU"
    if machine.gpus:
        names = " and ".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
        gpus = f"{_count(len(machine.gpus), 'GPU')} ({names})"
    hints = "Enter accepts the default in gray; Ctrl-C cancels."
    return _text([f"Detected: {_count(machine.cores, 'CPU core')}, {gpus}", hints, ""])


def created(
    project: Project,
    machine: Machine,
) -> str:
    """Describe a new project: notes on the detected hardware, and next steps."""
    answers = project.answers
    content = f"{answers.get('model', 'a project')} in {answers.get('framework', 'the template')}"
    files = _count(project.files, "file")
    lines = [f"Created {project.path}: {content}, {files}; {project.git}."]
    lines += [f"Note: {note}." for note in machine.notes]
    folder = _quoted(project.path)
    return _text([*lines, "", "Next:", f"  cd {folder}", "  make setup", "  make train"])


def updated(
    result: UpdateResult,
    dry_run: bool,
) -> str:
    """Describe an update: new answers, changed files, conflicts and next steps."""
    project = result.project
    if result.merge is None:
        return _text([f"{project.root} is up to date: {result.after}, with these answers."])
    verb = "Would update" if dry_run else "Updated"
    lines = [f"{verb} {project.root} from {project.version} to {result.after}."]
    for key, (was, now) in result.answers.items():
        answer = "(no longer asked)" if now is None else _answer(now)
        lines.append(f"  {shown_name(key)}: {_answer(was)} -> {answer}")
    lines += _changes(result)
    return _text(lines if dry_run else [*lines, "", *_next_steps(result)])


def _changes(result: UpdateResult) -> list[str]:
    """Return a line for each file that an update changed or left alone."""
    merge = result.merge
    if merge is None:
        return []
    kinds = {}
    for path, (was, now) in merge.changes.items():
        kinds[path] = "changed" if was and now else "removed" if was else "added"
    kinds |= dict.fromkeys(merge.unmerged, "conflict")
    for was, now in merge.renamed.items():
        kinds.pop(was, None)
        if kinds.get(now) == "added":
            del kinds[now]
    lines = sorted(f"  {kind:9} {path}" for path, kind in kinds.items())
    lines += [f"  renamed   {was} -> {now}" for was, now in sorted(merge.renamed.items())]
    lines += [f"  {line}" for line in [*merge.notes, *merge.conflicts]]
    return lines if merge.changes else [*lines, "  no file changes"]


def status_text(status: Status) -> str:
    """Format a status as text."""
    newest = f"; {status.newest} is available: fastproj update" if status.behind else ", the newest"
    answers = [f"{shown_name(key)}={_answer(value)}" for key, value in status.answers.items()]
    return _text(
        [
            f"project   {status.project}",
            f"template  {status.template}",
            f"version   {status.version}{newest}",
            f"answers   {' '.join(answers)}",
        ]
    )


def component_list(components: Table) -> str:
    """Format the components in groups, a line for each; those for other frameworks come last.

    Libraries, which come with the components that need them, are shown if they are installed.
    """
    width = max(map(len, components), default=0)
    groups: dict[str, list[str]] = {}
    others = []
    for name, component in components.items():
        if component.refusal:
            others.append(f"{name:{width}}  {component.refusal}")
        elif component.installed or component.entry.get("kind") != "library":
            installed = "installed" if component.installed else ""
            rows = groups.setdefault(component.entry.get("group", ""), [])
            rows.append(f"{name:{width}}  {installed:9}  {component.entry['about']}")
    if others:
        groups["not for this project"] = others
    blocks = []
    for group, rows in groups.items():
        heading = [f"{group[:1].upper()}{group[1:]}:"] if group else []
        blocks.append("\n".join(map(printable, [*heading, *rows])))
    return "\n\n".join(blocks)


def added(
    result: UpdateResult,
    components: list[Component],
    asked: list[str],
    dry_run: bool,
) -> str:
    """Describe what `add` did: files, how to enable each component, and next steps."""
    root = result.project.root
    if not components:
        return _text([f"{root} has these components already: nothing was changed."])
    names = [component.name for component in components]
    verb = "Would add" if dry_run else "Added"
    lines = [f"{verb} {', '.join(names)} to {root}, from {result.after}."]
    lines += [f"  {name} is required" for name in names if name not in asked]
    lines += [*_changes(result), "", "How to use it:"]
    packages: list[str] = []
    for component in components:
        packages += component.entry.get("packages", [])
        if component.entry.get("kind") != "library":
            lines.append(_use(component))
    if packages:
        lines.append(f"  make setup, which installs {', '.join(packages)}")
    return _text([*lines, "", *_diff_or_next_steps(result, dry_run)])


def _use(component: Component) -> str:
    """Return how a component is used."""
    if component.has_switch:
        section = component.section
        switch = f"--{section}.enabled true"
        return f"  {switch}, or in configs/default.yaml: {section}: {{enabled: true}}"
    return f"  {component.file or f'components/{component.section}.py'}; its first lines say how"


def removed(
    result: UpdateResult,
    components: list[Component],
    dry_run: bool,
) -> str:
    """Describe what `remove` did."""
    root = result.project.root
    if not components:
        return _text([f"{root} does not have these components: nothing was changed."])
    names = ", ".join(component.name for component in components)
    lines = [f"{'Would remove' if dry_run else 'Removed'} {names} from {root}."]
    lines += _changes(result)
    for component in components:
        if component.has_switch:
            section = f"the section {component.section}"
            lines.append(f"  Remove {section} from your config files, if it is there.")
    return _text([*lines, "", *_diff_or_next_steps(result, dry_run)])


def _diff_or_next_steps(
    result: UpdateResult,
    dry_run: bool,
) -> list[str]:
    if dry_run and result.merge:
        trees = [result.merge.head, result.merge.tree]
        patch = result.project.repository.git("diff-tree", "-r", "-p", "--no-ext-diff", *trees)
        return patch.expandtabs().split("\n")
    return _next_steps(result)


def _next_steps(result: UpdateResult) -> list[str]:
    """Return the commands that commit what is staged, or undo it."""
    from .updating.apply import base_of

    top = result.project.repository.top
    where = result.project.repository.where
    git = "git" if os.path.samefile(".", top) else f"git -C {_quoted(top)}"
    merge = result.merge
    if merge is None:
        return []
    steps = ["Next, review and commit:", f"  {git} diff --staged"]
    steps.append(f"  {git} commit -m {shlex.quote(result.message)}")
    base = base_of(result.project.repository, merge)
    everything = (
        f"{git} read-tree --reset {merge.tree[:12]} && "  # without entries in conflict
        f"{git} {_NO_HOOKS} restore --source={base} --staged --worktree -- {_quoted(where)}"
    )
    if result.conflicts:
        steps = [
            "Resolve the conflicts (git status lists them), git add the files, "
            "then review and commit:",
            f"  {git} cherry-pick --continue",
        ]
        everything += f" && {git} {_NO_HOOKS} cherry-pick --quit"
    steps += ["Or undo it, and all later changes of tracked files here:", f"  {everything}"]
    if merge.undo:
        steps += ["Or undo it, and keep later changes of other files:", f"  {git} {merge.undo}"]
    return steps


def _text(lines: Iterable[str]) -> str:
    return "\n".join(map(printable, lines))


def _quoted(path: Path | str) -> str:
    """Return a path as an argument in a shell; bash, zsh and ksh read `$'...'`."""
    if str(path).isprintable():
        return shlex.quote(str(path))
    plain = set(string.ascii_letters + string.digits + "/._- ")
    letters = [chr(byte) if chr(byte) in plain else f"\\x{byte:02x}" for byte in os.fsencode(path)]
    return f"$'{''.join(letters)}'"


def _count(
    number: int,
    noun: str,
) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _answer(value: Any) -> str:
    return "(not asked)" if value is None else as_text(value)
