"""The output of the commands, as text."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .shared.answers import ANSWERS, ANSWERS_FILE, as_options, as_text, shown_name

if TYPE_CHECKING:  # no command needs all of them
    from .creating.hardware import Machine
    from .creating.project import Project
    from .updating.adopt import Adopted
    from .updating.apply import Ended
    from .updating.merge import Conflict
    from .updating.repository import Repository
    from .updating.status import Status
    from .updating.wanted import Updated


def as_json(found: Machine | Status, **more: Any) -> str:
    """Format the result of a command as JSON."""
    return json.dumps(asdict(found) | more, indent=2)


def machine_text(machine: Machine) -> str:
    """Format a machine and the derived answers as text."""
    lines = [f"system   {machine.system}"]
    memory = f", {machine.memory_mib / 1024:.1f} GiB of memory" if machine.memory_mib else ""
    bf16 = "with" if machine.cpu_bf16 else "without"
    lines.append(f"cpu      {machine.cpu}: {machine.cores} usable cores{memory}, {bf16} bf16 instructions")
    for number, gpu in enumerate(machine.gpus):
        size = f"{gpu.memory_mib / 1024:.1f} GiB" if gpu.memory_mib else "memory unknown"
        capability = f", {gpu.capability}" if gpu.capability else ""
        lines.append(f"gpu {number}    {gpu.name}{capability}, {size}, Tensor Cores: {gpu.tensor_cores}")
    if not machine.gpus:
        lines.append("gpus     none")
    lines += [f"note     {note}" for note in machine.notes]
    return "\n".join([*lines, f"answers  {' '.join(as_options(machine.answers()))}"])


def detected(machine: Machine) -> str:
    """Describe a machine in one line, and how to answer the questions that follow."""
    names = " and ".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
    gpus = f"{_count(len(machine.gpus), 'GPU')} ({names})" if machine.gpus else "no GPU"
    hints = "Enter accepts the default in gray; Ctrl-C cancels."
    return f"Detected: {_count(machine.cores, 'CPU core')}, {gpus}\n{hints}\n"


def created(project: Project, machine: Machine, output: Path, template: str | None, no_git: bool) -> str:
    """Describe a new project: notes on the detected hardware, next steps, and the command that renders it again."""
    answers = project.answers
    again = ["fastproj", "new", project.path.name, *as_options(answers)]
    for key in sorted(answers.keys() - {"project_name", *(it.name for it in ANSWERS)}):
        again += ["--data", f"{key}={answers[key] if isinstance(answers[key], str) else json.dumps(answers[key])}"]
    again += ["--template", template] if template else []
    again += ["--output", str(output)] if output != Path() else []
    again += ["--no-git"] if no_git else []
    content = f"{answers.get('model', 'a project')} in {answers.get('framework', 'the template')}"
    lines = [f"Created {project.path}: {content}, {_count(project.files, 'file')}; {project.git}."]
    lines += [f"Note: {note}." for note in machine.notes]
    lines += ["", "Next:", f"  cd {shlex.quote(str(project.path))}", "  make setup", "  make train"]
    return "\n".join([*lines, "", "To render it again:", f"  {shlex.join([*again, '--yes'])}"])


def updated(done: Updated, dry_run: bool) -> str:
    """Describe an update: new answers, changed files, conflicts and next steps."""
    if done.merged is None:
        return f"{done.root} is up to date: {done.after}, with these answers."
    merged = done.merged
    lines = [f"{'Would update' if dry_run else 'Updated'} {done.root} from {done.before} to {done.after}."]
    lines += [
        f"  {shown_name(key)}: {_answer(was)} -> {'(no longer asked)' if now is None else _answer(now)}"
        for key, (was, now) in (done.answers or {}).items()
    ]
    if done.news:
        lines += ["", "What is new:", "", done.news, ""]
    lines += changes(done)
    offered = {name for name in done.used if done.answers and name in (done.answers.get("components") or ((), ()))[1]}
    for name, options in done.used.items():
        later = f"which does not exist yet; stay at {done.before} if you need it"
        state = "which is added" if name in offered else later
        lines.append(f"  option    {', '.join(options)}: needs the component {name}, {state}")
    steps = next_steps(done.repository, f"Update to template {done.after}", bool(merged.conflicts))
    return "\n".join(lines if dry_run else [*lines, "", *steps])


def changes(done: Updated) -> list[str]:
    """Return a line for each file that an update changed or left alone."""
    merged = done.merged
    if merged is None:
        return []
    listed_below = {*merged.renamed, *merged.renamed.values(), *merged.stages}
    found = [it for it in merged.changes if it.path not in listed_below and not it.path.endswith(ANSWERS_FILE)]
    kinds = {it.path: "added" if it.before is None else "removed" if it.after is None else "changed" for it in found}
    lines = sorted(f"  {kind:9} {path}" for path, kind in kinds.items())
    lines += [f"  renamed   {was} -> {now}" for was, now in sorted(merged.renamed.items())]
    lines += [f"  yours     {it}: kept with your changes; the template has a newer version" for it in merged.stay_own]
    lines += [f"  yours     {it}: kept with your changes; it is no longer rendered" for it in merged.stay_edited]
    lines += [f"  yours     {it}: kept, as a file that you edited imports it" for it in merged.stay_imported]
    lines += [f"  deleted   {path}: stays deleted, although the template changed it" for path in merged.stay_deleted]
    lines += [f"  CONFLICT  {_conflict(it)}" for it in merged.conflicts]
    return lines if merged.changes else [*lines, "  no file changes"]


def ended(done: Ended) -> str:
    """Describe an interrupted update that was continued or aborted."""
    kept = [f"  kept, as you changed it since: {path}" for path in done.edited]
    if done.aborted:
        lines = [f"Aborted the update to {done.version}: the files in {done.repository.top} are as in the last commit."]
        return "\n".join([*lines, *kept])
    lines = [f"Finished the interrupted update to {done.version}; it is staged in {done.repository.top}.", *kept]
    lines += [f"  CONFLICT  {path}" for path in done.conflicts]
    return "\n".join(
        [*lines, "", *next_steps(done.repository, f"Update to template {done.version}", bool(done.conflicts))]
    )


def status_text(found: Status) -> str:
    """Format a status as text."""
    newest = f"; {found.newest} is available: fastproj update" if found.behind else ", the newest"
    lines = [f"project   {found.project}", f"template  {found.template}", f"version   {found.version}{newest}"]
    if found.interrupted:
        lines.append(
            f"pending   the update to {found.interrupted} was interrupted: fastproj update --continue, or --abort"
        )
    lines.append("answers   " + " ".join(f"{shown_name(key)}={_answer(value)}" for key, value in found.answers.items()))
    lines += [f"CONFLICT  {path}: not resolved yet" for path in found.conflicts]
    lines += [f"changed   {path}" for path in found.changed]
    lines += [f"renamed   {was} -> {now}" for was, now in found.renamed.items()]
    lines += [f"deleted   {path}" for path in found.deleted]
    if not (found.changed or found.renamed or found.deleted):
        lines.append("changed   no rendered file")
    return "\n".join(lines)


def adopted(found: Adopted) -> str:
    """Describe the release that a repository was linked to, the difference from it, and the source of each answer."""
    lines = [
        f"{'Linked' if found.written else 'Would link'} {found.root} to {found.version} of {found.template}:",
        f"  {found.differing} of its {found.lines} lines differ from a rendering with these answers",
    ]
    lines += [f"  {tag}: {differing} lines would differ" for tag, differing in found.others.items()]
    lines += ["", "Answers, and the source of each:"]
    lines += [f"  {shown_name(key)} = {_answer(value)} ({source})" for key, (value, source) in found.answers.items()]
    guessed = [key for key, (_, source) in found.answers.items() if source == "default"]
    if guessed:
        lines.append(
            f"Not found in the files: {', '.join(map(shown_name, guessed))}. Pass an option where the default is wrong."
        )
    if found.written:
        commit = f"git commit -m 'Link to {found.version}'"
        lines += ["", "Next, review and commit it:", f"  git add {ANSWERS_FILE}", f"  {commit}"]
    return "\n".join(lines)


def next_steps(repository: Repository, message: str, conflicts: bool) -> list[str]:
    """Return the commands that commit what is staged with a message, or undo it."""
    top = repository.top
    git = "git" if os.path.samefile(".", top) else shlex.join(["git", "-C", str(top)])
    where = shlex.quote(repository.where)
    # `git restore` removes added files only if they are in the index, which files in conflict are not until `git add`.
    undo = f"{git} add --update -- {where} && " if conflicts else ""
    resolve = "Resolve the conflicts (git status lists them), git add the files, then review and commit:"
    return [
        resolve if conflicts else "Next, review and commit:",
        f"  {git} diff --staged",
        f"  {git} commit -m {shlex.quote(message)}",
        "Or undo it:",
        f"  {undo}{git} restore --source=HEAD --staged --worktree -- {where}",
    ]


def _conflict(conflict: Conflict) -> str:
    path = conflict.paths[0] if conflict.paths else ""
    if conflict.kind == "contents":
        return f"{path}: you and the template changed the same lines"
    return f"{path} ({conflict.kind}): {conflict.reason.removeprefix(f'CONFLICT ({conflict.kind}): ')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _answer(value: Any) -> str:
    return "(not asked)" if value is None else as_text(value)
