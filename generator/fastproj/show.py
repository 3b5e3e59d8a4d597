"""What the commands print."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .creating.hardware import Machine
from .creating.project import ANSWERS_FILE, Rendered
from .shared import git
from .updating.adopt import Adopted
from .updating.merge import Conflict
from .updating.status import Status
from .updating.update import Updated

# Options in the order in which they are asked.
OPTIONS = ("gpus", "nodes", "tensor_cores", "framework", "model", "launchers", "author", "licence", "update_workflow")


def default_answers(machine: Machine) -> dict[str, Any]:
    """Return answers that follow from the machine and from git's own settings."""
    name = git.run(Path("/"), "config", "user.name").text.strip()
    known = name.isprintable() and 0 < len(name) <= 100 and "\N{REPLACEMENT CHARACTER}" not in name
    return machine.answers() | ({"author": name} if known else {})


def machine_json(machine: Machine) -> str:
    """Return all that was found, and the answers that follow."""
    return json.dumps(asdict(machine) | {"answers": machine.answers()}, indent=2)


def machine_text(machine: Machine) -> str:
    """Return the same for a reader."""
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
    lines.append(
        "answers  " + " ".join(f"--{key.replace('_', '-')} {value}" for key, value in machine.answers().items())
    )
    return "\n".join(lines)


def rendered(made: Rendered, machine: Machine, output: Path, template: str | None, no_git: bool) -> str:
    """Return what was made, what of the machine is doubtful, what to type next, and the command that makes it again."""
    answers = made.answers
    what = f"{answers.get('model', 'a project')} in {answers.get('framework', 'the template')}"
    again = ["fastproj", "new", made.path.name]
    for key in OPTIONS:
        if isinstance(answers.get(key), bool):
            again += [f"--{'' if answers[key] else 'no-'}{key.replace('_', '-')}"]
        elif key in answers:
            value = answers[key]
            text = ",".join(value) or "none" if isinstance(value, list) else str(value)
            again += [f"--{key.replace('_', '-')}", text]
    for key, value in answers.items():
        if key not in (*OPTIONS, "project_name"):
            again += ["--data", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    again += ["--template", template] if template else []
    again += ["--output", str(output)] if output != Path() else []
    again += ["--no-git"] if no_git else []
    return "\n".join(
        [
            f"Made {made.path}: {what}, {made.files} files; {made.git}.",
            *(f"Note: {note}." for note in machine.notes),
            "",
            "Next:",
            f"  cd {shlex.quote(str(made.path))}",
            "  make setup",
            "  make train",
            "",
            "To render it again:",
            f"  {shlex.join([*again, '--yes'])}",
        ]
    )


def updated(done: Updated, dry_run: bool) -> str:
    """Return what an update brought, what is in conflict, and what to do next."""
    if done.finished is not None:
        lines = [f"An update to {done.after} was stopped half way; it is finished now, and staged in {done.root}."]
        lines += [f"  left alone, as you changed it since: {path}" for path in done.finished.left]
        return "\n".join([*lines, "", *_next(done, conflicts=True)])
    if done.merged is None:
        return f"{done.root} is up to date: {done.after}, with these answers."
    merged = done.merged
    lines = [f"{'Would update' if dry_run else 'Updated'} {done.root} from {done.before} to {done.after}."]
    lines += [f"  {key}: {_answer(was)} -> {_answer(now)}" for key, (was, now) in (done.answers or {}).items()]
    if done.news:
        lines += ["", "What is new:", "", done.news, ""]
    by_kind = {"added": [], "changed": [], "removed": []}  # type: dict[str, list[str]]
    taken = {*merged.renamed, *merged.renamed.values()}
    for change in merged.changes:
        if change.path in taken or change.path in merged.stages or change.path.endswith(ANSWERS_FILE):
            continue
        kind = "added" if change.before is None else "removed" if change.after is None else "changed"
        by_kind[kind].append(change.path)
    for kind, paths in by_kind.items():
        lines += [f"  {kind:9} {path}" for path in paths]
    lines += [f"  renamed   {was} -> {now}" for was, now in sorted(merged.renamed.items())]
    lines += [f"  yours     {path}: left as you changed it; the template has a newer one" for path in merged.stay_own]
    lines += [f"  deleted   {path}: stays so, though the template changed it" for path in merged.stay_deleted]
    lines += [f"  CONFLICT  {_conflict(it)}" for it in merged.conflicts]
    if not merged.changes:
        lines.append("  nothing changes in the files")
    return "\n".join(lines if dry_run else [*lines, "", *_next(done, bool(merged.conflicts))])


def status_json(found: Status) -> str:
    """Return all of a status."""
    return json.dumps(asdict(found), indent=2)


def status_text(found: Status) -> str:
    """Return the same for a reader."""
    behind = f"; {found.newest} is there: fastproj update" if found.behind else ", the newest"
    lines = [f"An update to {found.finished} had been stopped; it is finished now."] if found.finished else []
    lines += [f"project   {found.project}", f"template  {found.template}", f"version   {found.version}{behind}"]
    lines.append("answers   " + " ".join(f"{key}={_answer(value)}" for key, value in found.answers.items()))
    lines += [f"CONFLICT  {path}: not mended yet" for path in found.conflicts]
    lines += [f"changed   {path}" for path in found.changed]
    lines += [f"renamed   {was} -> {now}" for was, now in found.renamed.items()]
    lines += [f"deleted   {path}" for path in found.deleted]
    if not (found.changed or found.renamed or found.deleted):
        lines.append("changed   nothing of what was rendered")
    return "\n".join(lines)


def adopted(found: Adopted) -> str:
    """Return what a repository was linked to, how near that is, and what is only a guess."""
    lines = [
        f"{'Linked' if found.written else 'Would link'} {found.root} to {found.version} of {found.template}:",
        f"  {found.differing} of its {found.lines} lines differ from a rendering with these answers",
    ]
    lines += [f"  {tag}: {differing} lines would differ" for tag, differing in found.others.items()]
    lines += ["", "Answers, and where each is from:"]
    lines += [f"  {key} = {_answer(value)} ({source})" for key, (value, source) in found.answers.items()]
    guessed = [key for key, (_, source) in found.answers.items() if source == "default"]
    if guessed:
        lines.append(f"The files tell nothing of {', '.join(guessed)}: give an option where the default is not right.")
    if found.written:
        lines += [
            "",
            "Next, look, and commit it:",
            f"  git add {ANSWERS_FILE}",
            f"  git commit -m 'Link to {found.version}'",
        ]
    return "\n".join(lines)


def _next(done: Updated, conflicts: bool) -> list[str]:
    """Return what to type after an update."""
    git = "git" if _here() == done.repository.top else shlex.join(["git", "-C", str(done.repository.top)])
    where = shlex.quote(done.repository.where)
    # An update may add files; those that are in conflict leave the index only once they are marked as mended.
    undo = f"{git} add --update -- {where} && " if conflicts else ""
    mend = ["Mend the conflicts (git status lists them), git add them, then look and commit:"] if conflicts else []
    return [
        *(mend or ["Next, look and commit:"]),
        f"  {git} diff --staged",
        f"  {git} commit -m {shlex.quote(f'Update to template {done.after}')}",
        "Or undo it all:",
        f"  {undo}{git} restore --source=HEAD --staged --worktree -- {where}",
    ]


def _here() -> Path | None:
    """Return the current folder; None where the update has just removed it, as its files have left it."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _conflict(conflict: Conflict) -> str:
    path = conflict.paths[0] if conflict.paths else ""
    if conflict.kind == "contents":
        return f"{path}: you and the template changed the same lines"
    return f"{path} ({conflict.kind}): {conflict.reason.removeprefix(f'CONFLICT ({conflict.kind}): ')}"


def _answer(value: Any) -> str:
    if value is None:
        return "(not asked)"
    return ",".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
