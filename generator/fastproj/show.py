"""The output of the commands, as text."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .template.answers import ANSWERS_FILE, as_text, shown_name

if TYPE_CHECKING:  # no command needs all of them
    from .creating.hardware import Machine
    from .creating.project import Project
    from .updating.components import Changed, Table
    from .updating.project import Status
    from .updating.update import Updated


def as_json(found: Machine | Status, **more: Any) -> str:
    """Format the result of a command as JSON."""
    return json.dumps(asdict(found) | more, indent=2)


def detected(machine: Machine) -> str:
    """Describe a machine in one line, and how to answer the questions that follow."""
    names = " and ".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
    gpus = f"{_count(len(machine.gpus), 'GPU')} ({names})" if machine.gpus else "no GPU"
    hints = "Enter accepts the default in gray; Ctrl-C cancels."
    return f"Detected: {_count(machine.cores, 'CPU core')}, {gpus}\n{hints}\n"


def created(project: Project, machine: Machine) -> str:
    """Describe a new project: notes on the detected hardware, and next steps."""
    answers = project.answers
    content = f"{answers.get('model', 'a project')} in {answers.get('framework', 'the template')}"
    lines = [f"Created {project.path}: {content}, {_count(project.files, 'file')}; {project.git}."]
    lines += [f"Note: {note}." for note in machine.notes]
    return "\n".join(
        [
            *lines,
            "",
            "Next:",
            f"  cd {shlex.quote(str(project.path))}",
            "  make setup",
            "  make train",
        ]
    )


def updated(done: Updated, dry_run: bool) -> str:
    """Describe an update: new answers, changed files, conflicts and next steps."""
    if done.merged is None:
        return f"{done.project.root} is up to date: {done.after}, with these answers."
    lines = [
        f"{'Would update' if dry_run else 'Updated'} {done.project.root} from {done.project.version} to {done.after}."
    ]
    lines += [
        f"  {shown_name(key)}: {_answer(was)} -> {'(no longer asked)' if now is None else _answer(now)}"
        for key, (was, now) in (done.answers or {}).items()
    ]
    lines += changes(done)
    return "\n".join(lines if dry_run else [*lines, "", *next_steps(done)])


def changes(done: Updated) -> list[str]:
    """Return a line for each file that an update changed or left alone."""
    merged = done.merged
    if merged is None:
        return []
    listed_below = {*merged.renamed, *merged.renamed.values(), *merged.unmerged}
    found = {path: it for path, it in merged.changes.items() if path not in listed_below}
    kinds = {
        path: "added" if not was else "removed" if not now else "changed"
        for path, (was, now) in found.items()
    }
    lines = sorted(
        f"  {kind:9} {path}" for path, kind in kinds.items() if not path.endswith(ANSWERS_FILE)
    )
    lines += [f"  renamed   {was} -> {now}" for was, now in sorted(merged.renamed.items())]
    lines += [f"  {note}" for note in merged.notes]
    lines += [f"  {conflict}" for conflict in merged.conflicts]
    return lines if merged.changes else [*lines, "  no file changes"]


def status_text(found: Status) -> str:
    """Format a status as text."""
    newest = f"; {found.newest} is available: fastproj update" if found.behind else ", the newest"
    lines = [
        f"project   {found.project}",
        f"template  {found.template}",
        f"version   {found.version}{newest}",
    ]
    lines.append(
        "answers   "
        + " ".join(f"{shown_name(key)}={_answer(value)}" for key, value in found.answers.items())
    )
    return "\n".join(lines)


def listed(components: Table) -> str:
    """Format the components in one line each; those that the project's framework does not have come last."""
    width = max(map(len, components), default=0)
    lines = [
        f"{name:{width}}  {'installed' if it.installed else '':9}  {it.about}".rstrip()
        for name, it in components.items()
        if not it.refused
    ]
    others = [f"{name:{width}}  {it.refused}" for name, it in components.items() if it.refused]
    return "\n".join([*lines, *(["", "Not for this project:", *others] if others else [])])


def added(changed: Changed, asked: list[str], dry_run: bool) -> str:
    """Describe what `add` did: files, how to enable each component, what to install, and next steps."""
    done = changed.updated
    names = [it.name for it in changed.components]
    if not names:
        return f"{done.project.root} has these components already: nothing was changed."
    lines = [
        f"{'Would add' if dry_run else 'Added'} {', '.join(names)} to {done.project.root}, from {done.after}."
    ]
    lines += [f"  {name} is required" for name in names if name not in asked]
    lines += [*changes(done), "", "How to use it:"]
    for it in changed.components:
        if it.file or it.kind == "command":
            lines.append(f"  {it.file or f'components/{it.section}.py'}; its first lines say how")
        elif it.kind is None:
            lines.append(
                f"  --{it.section}.enabled true, or in configs/default.yaml: {it.section}: {{enabled: true}}"
            )
    if packages := [package for it in changed.components for package in it.packages]:
        lines.append(f"  make setup, which installs {', '.join(packages)}")
    return "\n".join([*lines, "", *_diff_or_next_steps(done, dry_run)])


def removed(changed: Changed, dry_run: bool) -> str:
    """Describe what `remove` did."""
    done = changed.updated
    if not changed.components:
        return f"{done.project.root} does not have these components: nothing was changed."
    names = ", ".join(it.name for it in changed.components)
    lines = [
        f"{'Would remove' if dry_run else 'Removed'} {names} from {done.project.root}.",
        *changes(done),
    ]
    sections = [it.section for it in changed.components if not it.file and not it.kind]
    lines += [
        f"  Remove the section {section} from your config files, if it is there."
        for section in sections
    ]
    return "\n".join([*lines, "", *_diff_or_next_steps(done, dry_run)])


def _diff_or_next_steps(done: Updated, dry_run: bool) -> list[str]:
    if dry_run and done.merged:
        between = (done.merged.head, done.merged.tree)
        return [done.project.repository.git("diff-tree", "-r", "-p", "--no-ext-diff", *between)]
    return next_steps(done)


def next_steps(done: Updated) -> list[str]:
    """Return the commands that commit what is staged, or undo it."""
    top = done.project.repository.top
    git = "git" if os.path.samefile(".", top) else shlex.join(["git", "-C", str(top)])
    if done.conflicts:
        resolve = "Resolve the conflicts (git status lists them), git add the files, then review and commit:"
        return [
            resolve,
            f"  {git} cherry-pick --continue",
            "Or undo it:",
            f"  {git} cherry-pick --abort",
        ]
    return [
        "Next, review and commit:",
        f"  {git} diff --staged",
        f"  {git} commit -m {shlex.quote(done.message)}",
        "Or undo it, which keeps other changes:",
        f"  {git} read-tree -m -u {done.merged.tree[:12] if done.merged else 'HEAD'} HEAD",
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _answer(value: Any) -> str:
    return "(not asked)" if value is None else as_text(value)
