"""Releases of a template that no project should take part in.

Changes of the small template, as functions of its clone.

HACKED stands for a file that the payload creates when it is executed, and OUTSIDE for one that it
must not write.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from hostile_answers import BOMB
from updating import commit, git

Change = Callable[[Path], None]
CONFIG = "[core]\n\tfsmonitor = touch HACKED\n"
HOOK = "#!/bin/sh\ntouch HACKED\n"


def files(name: str, contents: Mapping[str, str]) -> Change:
    """Return the change that adds files; a name of a file may be an expression."""

    def change(template: Path) -> None:
        for path, content in contents.items():
            file = template / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_filled(content, template))
            file.chmod(0o755)

    change.__name__ = name
    return change


def _filled(text: str, template: Path) -> str:
    return text.replace("HACKED", str(template.parent / "hacked")).replace(
        "OUTSIDE", str(template.parent / "outside")
    )


def questions(name: str, text: str, more: Mapping[str, str] | None = None) -> Change:
    """Return the change that appends to copier.yml."""

    def change(template: Path) -> None:
        with (template / "copier.yml").open("a") as file:
            file.write(_filled(text, template))
        files(name, more or {})(template)

    change.__name__ = name
    return change


def links(name: str, targets: Mapping[str, str], preserve: bool = True) -> Change:
    """Return the change that adds symbolic links."""

    def change(template: Path) -> None:
        for path, target in targets.items():
            file = template / "project" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.symlink_to(_filled(target, template))
        if preserve:
            questions(name, "_preserve_symlinks: true\n")(template)

    change.__name__ = name
    return change


def link_then_file(template: Path) -> None:
    """A file below a link that leaves."""
    links("", {"linked": "OUTSIDE"})(template)
    (template.parent / "outside").mkdir()
    at("", "linked/x.txt", "from the template\n")(template)


def device(template: Path) -> None:
    """A link to an endless file, which copier reads as it does not preserve links."""
    os.symlink("/dev/zero", template / "project/zero")


def submodule(template: Path) -> None:
    oid = git(template, "rev-parse", "HEAD")
    git(template, "update-index", "--add", "--cacheinfo", f"160000,{oid},project/sub")
    (template / ".gitmodules").write_text(
        '[submodule "x"]\n\tpath = project/sub\n\turl = ext::sh -c touch% HACKED\n'
    )


_PATHS = {
    "git_config": ".git/config",
    "git_hook": ".git/hooks/post-checkout",
    "git_upper": ".GIT/config",
    "git_in_folder": "src/.git/config",
    "git_space": ".git /config",
    "git_dot": ".git./config",
    "git_stream": ".git::$INDEX_ALLOCATION/config",
    "git_short": "GIT~1/config",
    "git_hfs": ".g\u200cit/config",
    "git_head": ".git/HEAD",
    "git_joined": "{{ ['.g', 'it'] | join }}/config",
    "git_by_way_of": "x/../.git/config",
    "git_file": ".git",
    "git_modules": ".gitmodules",
    "git_backslash": "a\\.git\\config",
    "up": "../../outside.txt",
    "up_again": "x/../../../outside.txt",
    "absolute": "OUTSIDE",
    "home": "~/outside.txt",
    "empty": "",
    "dot": ".",
    "slash": "/",
    "dots": "..",
    "double_slash": "x//y.txt",
    "null": "a\0b.txt",
    "newline": "a\nb.txt",
    "tab_and_quote": "a\t\"b'.txt",
    "long": "{{ 'x' * 300 }}.txt",
    "deep": "{{ 'x/' * 3000 }}y.txt",
    "surrogate": "a\udcff.txt",
    "option": "--upload-pack=x",
    "magic": ":(exclude)*",
    "backslash": "a\\..\\b.txt",
    "below_a_file": "README.md/x",
    "at_a_folder": "src",
    "at_the_answers": ".copier-answers.yml",
    "below_the_answers": ".copier-answers.yml/x",
    "below_another_new_file": "changed.txt/y",
    "scratch_folder": ".fastproj/index",
}


def at(name: str, path: str, content: str) -> Change:
    """Return the change that adds a file whose path is the default of a question."""
    text = f"p: {{type: str, when: false, default: {json.dumps(path)}}}\n"
    return questions(
        f"path_{name}", text, {"project/{{ p }}": content, "project/changed.txt": "x\n"}
    )


TEMPLATES: list[Change] = [
    *(at(name, path, HOOK if "hook" in path else CONFIG) for name, path in _PATHS.items()),
    files(
        "answers_elsewhere",
        {"project/{{ '.copier-answers.yml' }}": "_src_path: /etc\n_commit: v1\n"},
    ),
    files("answers_missing_version", {"project/.copier-answers.yml": "project_name: proj\n"}),
    files("folder_at_answers", {"project/{{ _copier_conf.answers_file }}/x": "x\n"}),
    files(
        "two_files_of_one_name", {"project/{{ 'a' }}.txt": "1\n", "project/{{ 'a.txt' }}": "2\n"}
    ),
    files("only_case_differs", {"project/{{ 'a' }}.txt": "1\n", "project/A.txt": "2\n"}),
    files("nested_answers", {"project/nested/.copier-answers.yml": "_src_path: x\n_commit: v1\n"}),
    at(
        "attributes",
        ".gitattributes",
        "* filter=evil diff=evil merge=evil working-tree-encoding=UTF-7\n",
    ),
    at("attributes_bad", ".gitattributes", "* working-tree-encoding=nonsense\n"),
    files("attributes_macro", {"project/.gitattributes": "[attr]x -text\n* x eol=crlf ident\n"}),
    files("ignores_all", {"project/.gitignore": "*\n"}),
    files("not_text", {"project/x.jinja": "{{ '\\udcff' }}\n"}),
    files("syntax", {"project/x.jinja": "{% if %}\n"}),
    files("undefined", {"project/x.jinja": "{{ missing.attribute }}\n"}),
    files("range", {"project/x.jinja": "{% for i in range(99999999) %}x{% endfor %}\n"}),
    files("division", {"project/x.jinja": "{{ 1 // 0 }}\n"}),
    files(
        "python",
        {"project/x.jinja": "{{ cycler.__init__.__globals__.os.system('touch HACKED') }}\n"},
    ),
    files(
        "python_subclasses", {"project/x.jinja": "{{ ''.__class__.__mro__[1].__subclasses__() }}\n"}
    ),
    files("includes_other_files", {"project/x.jinja": "{% include '/etc/passwd' %}\n"}),
    files("includes_itself", {"project/x.jinja": "{% include 'project/x.jinja' %}\n"}),
    files("calls_itself", {"project/x.jinja": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}\n"}),
    files(
        "nested_expression", {"project/x.jinja": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}\n"}
    ),
    links("link_absolute", {"host": "/etc/hostname"}),
    links("link_up", {"up": "../.."}),
    links("link_to_git", {"hooks": ".git/hooks"}),
    links("link_to_itself", {"loop": "loop"}),
    link_then_file,
    links("link_chain", {"a": "b", "b": "c/..", "c": "../x"}),
    links("link_copied", {"passwd": "/etc/hostname"}, preserve=False),
    questions("migrations", "_migrations:\n  - touch HACKED\n"),
    questions("migrations_quoted", '"_migrations":\n  - touch HACKED\n'),
    questions("tasks", "_tasks:\n  - touch HACKED\n"),
    questions("extensions", "_jinja_extensions: [os.system]\n"),
    questions("envops", "_envops: {loader: x}\n"),
    questions("exclude_all", '_exclude: ["*"]\n'),
    questions("external_data", "_external_data: {x: /etc/passwd}\n"),
    questions("min_version", '_min_copier_version: "99"\n'),
    questions("answers_file", "_answers_file: ../x.yml\n"),
    questions("subdirectory_up", "_subdirectory: ../..\n"),
    questions("include", "---\n!include /etc/passwd\n"),
    questions("object", "x: !!python/object/apply:os.system ['touch HACKED']\n"),
    questions("aliases", BOMB),
    questions("alias_of_itself", "a: &a [*a]\n"),
    questions("deep", "a: " + "[" * 20_000 + "]" * 20_000 + "\n"),
    questions("deep_mapping", "a: " + "{a: " * 2_000 + "1" + "}" * 2_000 + "\n"),
    questions("not_yaml", "a: [\n"),
    questions("bad_type", "x: {type: nonsense, default: 1}\n"),
    questions(
        "validator", 'x: {type: str, default: a, validator: "{{ range(99999999) | list }}"}\n'
    ),
    questions("secret", "_secret_questions: [gpus]\ngpus: {type: int, secret: true, default: 1}\n"),
    device,
    submodule,
]

HOOK_TEMPLATE = at("hook", ".git/hooks/pre-commit", HOOK)


def publish(change: Change, template: Path) -> None:
    """Commit a change to the clone of a template, as release v0.4.0."""
    change(template)
    if change is submodule:
        git(template, "add", ".gitmodules")
        git(template, "-c", "user.name=u", "-c", "user.email=u@example.org", "commit", "-qm", "4")
    else:
        commit(template)
    git(template, "tag", "v0.4.0")
