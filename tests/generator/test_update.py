"""`fastproj update` through the real program: every release, in every state that a user's project may be in."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest
import yaml
from program import Fastproj
from updating import VERSIONS, Made, commit, edit, files_of, git, lost

State = Callable[[Path], None]
PACKAGE = Path("src/proj")


def untouched(project: Path) -> None:
    pass


def edited_far(project: Path) -> None:
    edit(project / PACKAGE / "engine.py", "return 20\n", "return 20 + 1  # mine, far away\n")


def edited_near(project: Path) -> None:
    edit(project / PACKAGE / "engine.py", "return 0\n", "return 0 + 1  # mine, just below\n")
    edit(project / "README.md", "Release", "My release")


def edited_same_line(project: Path) -> None:
    edit(project / PACKAGE / "engine.py", '"""Of release', '"""Mine, and of release')


def deleted(project: Path) -> None:
    (project / PACKAGE / "engine.py").unlink()
    (project / "logo.bin").unlink()


def renamed(project: Path) -> None:
    (project / PACKAGE / "engine.py").rename(project / PACKAGE / "motor.py")
    edit(project / PACKAGE / "motor.py", "return 20\n", "return 20 + 1  # mine, in a renamed file\n")


def edited_what_goes(project: Path) -> None:
    for name in ("old.py", "loop.py"):
        if (project / PACKAGE / name).exists():
            with (project / PACKAGE / name).open("a") as file:
                file.write(f"MINE = '{name}'\n")


def binary_on_both_sides(project: Path) -> None:
    (project / "logo.bin").write_bytes(b"\0mine" * 50)


def own_binary(project: Path) -> None:
    (project / "weights.bin").write_bytes(os.urandom(2000))


def ignored_elsewhere(project: Path) -> None:
    (project / "cache").mkdir()
    (project / "cache/data.bin").write_bytes(b"\0mine")
    (project / "mine.local").write_text("mine\n")


def untracked(project: Path) -> None:
    (project / "scratch.txt").write_text("mine, never added\n")


def repeated_blocks(project: Path) -> None:
    file = project / "configs/default.yaml"
    blocks = file.read_text().split("\n\n")
    blocks[-2] = blocks[-2].replace("workers: 4", "workers: 16  # mine, of the last block")
    blocks.insert(1, blocks[0].replace("train", "mine").replace("pinned: true", "pinned: false  # of my block"))
    file.write_text("\n\n".join(blocks))


def edited_in_a_block(project: Path) -> None:
    """Further from the block's name than a patch's context, while the template adds an equal block above."""
    file = project / "configs/default.yaml"
    blocks = file.read_text().split("\n\n")
    blocks[2] = blocks[2].replace("rate: 0.1", "rate: 0.7  # mine, of the test block")
    file.write_text("\n\n".join(blocks))


def added_same_name(project: Path) -> None:
    (project / "docs").mkdir(exist_ok=True)
    (project / "docs/new.md").write_text("# My own page\n\nAll mine.\n")


def file_for_a_folder(project: Path) -> None:
    if not (project / PACKAGE / "extras").exists():
        (project / PACKAGE / "extras").write_text("a file of mine where the template will have a folder\n")


def crlf(project: Path) -> None:
    for file in (project / PACKAGE / "engine.py", project / "configs/default.yaml"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    edit_bytes(project / PACKAGE / "engine.py", b"return 20\r\n", b"return 21  # mine\r\n")


def edit_bytes(file: Path, old: bytes, new: bytes) -> None:
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new, 1))


def crlf_and_renamed(project: Path) -> None:
    content = (project / PACKAGE / "engine.py").read_bytes().replace(b"\n", b"\r\n")
    (project / PACKAGE / "engine.py").unlink()
    (project / PACKAGE / "motor.py").write_bytes(content.replace(b"return 20\r\n", b"return 21  # mine\r\n"))


def mode_changed(project: Path) -> None:
    (project / PACKAGE / "engine.py").chmod(0o755)
    (project / "README.md").chmod(0o755)


def made_a_link(project: Path) -> None:
    (project / "README.md").unlink()
    (project / "mine.md").write_text("mine\n")
    (project / "README.md").symlink_to("mine.md")


def own_model(project: Path) -> None:
    (project / PACKAGE / "model.py").write_text("# a network of my own\nSIZE = 99\n")


def odd_names(project: Path) -> None:
    for name in ("a b", "ä", 'quo"te', "tab\there", "-rf", "new\nline", os.fsdecode(b"\xff")):
        (project / name).write_text(f"mine, {len(name)}\n")


def detached(project: Path) -> None:
    commit_all = (project / "x.txt").write_text("mine\n")
    assert commit_all
    commit(project)
    git(project, "checkout", "-q", "--detach")


def failing_hooks(project: Path) -> None:
    if git(project, "status", "--porcelain"):
        commit(project)
    hooks = project / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-commit", "post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc"):
        (hooks / name).write_text("#!/bin/sh\necho $0 >> $(git rev-parse --git-dir)/hooked\nexit 1\n")
        (hooks / name).chmod(0o755)


def own_attributes(project: Path) -> None:
    (project / ".gitattributes").write_text("*.yaml text eol=crlf\n*.py text=auto\n")
    edited_far(project)
    commit(project)
    (project / "configs/default.yaml").unlink()
    git(project, "checkout", "--", "configs")


def deleted_folder(project: Path) -> None:
    shutil.rmtree(project / "launch")


STATES = [
    untouched,
    edited_far,
    edited_near,
    edited_same_line,
    deleted,
    deleted_folder,
    renamed,
    edited_what_goes,
    binary_on_both_sides,
    own_binary,
    ignored_elsewhere,
    untracked,
    repeated_blocks,
    edited_in_a_block,
    added_same_name,
    file_for_a_folder,
    crlf,
    crlf_and_renamed,
    mode_changed,
    made_a_link,
    own_model,
    odd_names,
    detached,
    failing_hooks,
    own_attributes,
]


# Those that can be true at once; each for itself is tried from the first release.
TOGETHER = [
    [untouched],
    [edited_far, deleted_folder, binary_on_both_sides, own_binary, ignored_elsewhere, own_model, added_same_name],
    [renamed, edited_what_goes, repeated_blocks, file_for_a_folder, odd_names, detached],
    [edited_near, edited_in_a_block, failing_hooks],
    [edited_same_line, mode_changed, own_attributes],
    [crlf, made_a_link],
    [crlf_and_renamed],
    [deleted],
    [untracked],
]
CASES = [("v0.1.0", [state]) for state in STATES] + [("v0.2.0", states) for states in TOGETHER]


def test_every_state_is_tried_from_every_release() -> None:
    tried = {version: {state for at, states in CASES if at == version for state in states} for version, _ in CASES}
    assert tried == {version: set(STATES) for version in VERSIONS[:-1]}


@pytest.mark.parametrize(
    ("version", "states"), CASES, ids=[f"{at}-{'-'.join(state.__name__ for state in states)}" for at, states in CASES]
)
def test_nothing_is_lost(version: str, states: list[State], made: Made, fastproj: Fastproj) -> None:
    folder = made(version)
    rendered = files_of(folder)
    for state in states:
        state(folder)
    if untracked not in states:
        git(folder, "add", "-A")
        if git(folder, "status", "--porcelain"):
            commit(folder)
    before, head = files_of(folder), git(folder, "rev-parse", "HEAD")
    (folder / ".git/hooked").unlink(missing_ok=True)
    done = fastproj("update", "--yes", cwd=folder)
    assert not (folder / ".git/hooked").exists(), "no hook ran"
    conflicts = bool(git(folder, "ls-files", "-u"))
    assert done.returncode == int(conflicts), done.stdout + done.stderr
    assert done.stderr == ""
    assert ("CONFLICT" in done.stdout) == conflicts
    assert lost(folder, before, rendered) == []
    assert git(folder, "rev-parse", "HEAD") == head
    changed = {line[3:] for line in git(folder, "status", "--porcelain").splitlines() if line[1] != " "}
    unmerged = {line.partition("\t")[2] for line in git(folder, "ls-files", "-u").splitlines()}
    assert changed <= {*unmerged, "? scratch.txt", "scratch.txt"}, "all is staged"
    assert not (folder / ".git/fastproj").exists()
    assert answers(folder)["_commit"] == "v0.3.0"

    undo = done.stdout.strip().splitlines()[-1]
    subprocess.run(undo, shell=True, check=failing_hooks not in states, cwd=folder)  # noqa: S602
    assert git(folder, "status", "--porcelain", "--untracked-files=no") == ""
    assert files_of(folder) == before


def answers(project: Path) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load((project / ".copier-answers.yml").read_text())
    return found


def ignored_in_the_way(project: Path) -> None:
    (project / "notes.local").write_text("mine, and ignored\n")


def untracked_in_the_way(project: Path) -> None:
    (project / "docs").mkdir()
    (project / "docs/new.md").write_text("mine, and untracked\n")


def untracked_file_for_a_folder(project: Path) -> None:
    (project / "docs").write_text("mine, and a file\n")


def link_in_the_way(project: Path) -> None:
    (project / "cache").mkdir()
    (project / "docs").symlink_to("cache")


def dirty(project: Path) -> None:
    edited_far(project)


def staged(project: Path) -> None:
    edited_far(project)
    git(project, "add", "-A")


def removed_and_not_committed(project: Path) -> None:
    (project / PACKAGE / "engine.py").unlink()


def meant_to_be_added(project: Path) -> None:
    (project / "mine.txt").write_text("mine\n")
    git(project, "add", "-N", "mine.txt")


def conflicting_branch(project: Path) -> None:
    git(project, "checkout", "-qb", "other")
    edit(project / "README.md", "About", "Theirs")
    commit(project)
    git(project, "checkout", "-q", "main")
    edit(project / "README.md", "About", "Ours")
    commit(project)


def under_way(command: str) -> State:
    def state(project: Path) -> None:
        conflicting_branch(project)
        who = ["-c", "user.name=u", "-c", "user.email=u@example.org"]
        subprocess.run(["git", *who, *command.split()], cwd=project, capture_output=True, check=False)

    state.__name__ = command.split()[0]
    return state


def bisecting(project: Path) -> None:
    git(project, "bisect", "start")


def hidden_from_git(project: Path) -> None:
    git(project, "update-index", "--assume-unchanged", "src/proj/engine.py")
    edited_far(project)


def sparse(project: Path) -> None:
    git(project, "status")  # what looks changed would stay
    git(project, "sparse-checkout", "set", "configs")


def git_is_at_work(project: Path) -> None:
    (project / ".git/index.lock").touch()


def unborn(project: Path) -> None:
    shutil.rmtree(project / ".git")
    git(project, "init", "-q")


def no_repository(project: Path) -> None:
    shutil.rmtree(project / ".git")


def no_answers(project: Path) -> None:
    (project / ".copier-answers.yml").unlink()
    commit(project)


def answers_with(text: str, name: str) -> State:
    def state(project: Path) -> None:
        (project / ".copier-answers.yml").write_text(text.replace("BUNDLE", str(project.parent / "team.bundle")))
        commit(project)

    state.__name__ = name
    return state


def ignored_answers(project: Path) -> None:
    git(project, "rm", "-q", "--cached", ".copier-answers.yml")
    with (project / ".gitignore").open("a") as file:
        file.write(".copier-answers.yml\n")
    commit(project)


def submodule_in_the_way(project: Path) -> None:
    other = project.parent / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "mine.py").write_text("mine = 1\n")
    commit(other)
    git(project, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "src/proj/extras")
    commit(project)


REFUSED: list[tuple[State, str]] = [
    (ignored_in_the_way, "notes.local"),
    (untracked_in_the_way, "docs/new.md"),
    (untracked_file_for_a_folder, "docs"),
    (link_in_the_way, "docs"),
    (dirty, "src/proj/engine.py changed since the last commit"),
    (staged, "src/proj/engine.py changed since the last commit"),
    (removed_and_not_committed, "src/proj/engine.py changed since the last commit"),
    (meant_to_be_added, "mine.txt changed"),
    (under_way("merge other"), "a merge is under way"),
    (under_way("rebase other"), "a rebase is under way"),
    (under_way("cherry-pick other"), "a cherry-pick is under way"),
    (bisecting, "a bisect is under way"),
    (hidden_from_git, "--no-assume-unchanged"),
    (sparse, "sparse-checkout disable"),
    (git_is_at_work, "index.lock"),
    (unborn, "no commit yet"),
    (no_repository, "in no git repository"),
    (no_answers, "fastproj adopt"),
    (answers_with("", "empty"), "holds no answers"),
    (answers_with("{", "broken"), "cannot read"),
    (answers_with("_src_path: BUNDLE\ngpus: 0\n", "without_version"), "_commit"),
    (answers_with("_commit: v0.1.0\ngpus: 0\n", "without_place"), "_src_path"),
    (answers_with("_src_path: 5\n_commit: [a]\n", "of_other_types"), "_src_path"),
    (answers_with("_src_path: /no/where\n_commit: v0.1.0\n", "elsewhere"), "is not on this machine"),
    (answers_with("_src_path: https://127.0.0.1:9/x.git\n_commit: v1\n", "offline"), "could not read the template"),
    (answers_with("_src_path: BUNDLE\n_commit: v9.9.9\nproject_name: proj\n", "unknown_version"), "no version v9.9.9"),
    (answers_with("_src_path: BUNDLE\n_commit: --upload-pack=x\n", "hostile_version"), "no version --upload-pack=x"),
    (answers_with("_src_path: BUNDLE\n_commit: v0.1.0\nproject_name: proj\ncolour: red\n", "others"), "'colour'"),
    (answers_with("_src_path: BUNDLE\n_commit: v0.1.0\nproject_name: proj\nmodel: x\n", "bad_answer"), "does not fit"),
    (ignored_answers, "is not committed"),
    (submodule_in_the_way, "is a submodule"),
]


@pytest.mark.parametrize(("state", "message"), REFUSED, ids=lambda value: getattr(value, "__name__", None))
def test_what_stands_against_an_update(
    state: State, message: str, made: Made, bundles: list[Path], fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = made()
    shutil.copy(bundles[-1], tmp_path / "team.bundle")
    state(folder)
    before = files_of(tmp_path)
    done = fastproj("update", "--yes", cwd=folder)
    assert done.returncode == 1, done.stdout
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert files_of(tmp_path) == before
    assert not (folder / ".git/fastproj").exists()


BAD = [
    (["--gpus", "x"], "integer"),
    (["--model", "three"], "three"),
    (["--launchers", "ray,dask"], "dask"),
    (["--data", "nonsense=1"], "asks no such question"),
    (["--data", "project_name=other"], "asks no such question"),
    (["--data", "package=other"], "asks no such question"),
    (["--tensor-cores", "bf16"], "needs a GPU"),
    (["--to", "0.9"], "has no version 0.9"),
    (["--to", "main"], "has no version main"),
    (["--to", "--help"], "has no version --help"),
    (["--template", "/no/where"], "is not on this machine"),
    (["--template", ""], "is not on this machine"),
    (["nowhere"], "is no folder"),
    (["/"], "no .copier-answers.yml"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=lambda value: ascii(" ".join(value))[:40])
def test_bad_options_are_one_line(options: list[str], message: str, made: Made, fastproj: Fastproj) -> None:
    folder = made()
    before = files_of(folder)
    done = fastproj("update", "--yes", *options, cwd=folder)
    assert done.returncode in (1, 2), done.stdout
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert files_of(folder) == before
    assert git(folder, "status", "--porcelain") == ""


def test_another_answer_is_an_update_too(made: Made, fastproj: Fastproj) -> None:
    folder = made("v0.2.0")
    edited_far(folder)
    commit(folder)
    done = fastproj("update", "--yes", "--to", "v0.2.0", "--gpus", "8", "--launchers", "slurm", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "gpus: 0 -> 8" in done.stdout
    assert (folder / "job.sbatch").is_file()
    assert "8 GPUs" in (folder / "README.md").read_text()
    recorded = answers(folder)
    assert (recorded["gpus"], recorded["tensor_cores"], recorded["launchers"]) == (8, "bf16", ["slurm"])
    assert recorded["_commit"] == "v0.2.0"
    commit(folder)
    done = fastproj("update", "--yes", "--to", "v0.2.0", "--gpus", "0", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "tensor_cores: bf16 -> (not asked)" in done.stdout
    assert "tensor_cores" not in answers(folder)
    commit(folder)
    done = fastproj("update", "--yes", "--to", "v0.2.0", "--gpus", "0", cwd=folder)
    assert "is up to date" in done.stdout
    assert git(folder, "status", "--porcelain") == ""


def test_the_users_own_file_is_left_alone_unless_an_answer_exchanges_it(made: Made, fastproj: Fastproj) -> None:
    folder = made("v0.1.0")
    model = folder / PACKAGE / "model.py"
    own_model(folder)
    commit(folder)
    done = fastproj("update", "--yes", "--gpus", "2", cwd=folder)
    assert done.returncode == 0, done.stdout
    assert "yours     src/proj/model.py" in done.stdout
    assert model.read_text() == "# a network of my own\nSIZE = 99\n"
    git(folder, "reset", "-q", "--hard")
    done = fastproj("update", "--yes", "--model", "two", cwd=folder)
    assert done.returncode == 1, done.stdout
    assert "CONFLICT  src/proj/model.py" in done.stdout
    text = model.read_text()
    for line in ("<<<<<<< yours", "# a network of my own", "SIZE = 99", "# the network two", ">>>>>>> template v0.3.0"):
        assert line in text


def test_downgrade_only_when_asked(made: Made, fastproj: Fastproj) -> None:
    folder = made("v0.2.0")
    rendered = files_of(folder)
    edited_far(folder)
    commit(folder)
    before = files_of(folder)
    done = fastproj("update", "--yes", "--to", "0.1.0", cwd=folder)
    assert done.returncode == 1
    assert "add --downgrade" in done.stderr
    assert files_of(folder) == before
    done = fastproj("update", "--yes", "--to", "0.1.0", "--downgrade", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert answers(folder)["_commit"] == "v0.1.0"
    assert lost(folder, before, rendered) == []


def test_a_dry_run_writes_nothing(made: Made, fastproj: Fastproj) -> None:
    folder = made()
    edited_same_line(folder)
    commit(folder)

    def all_files() -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    before = all_files()
    shown = fastproj("update", "--yes", "--dry-run", cwd=folder)
    assert all_files() == before, "not even in git's folder"
    done = fastproj("update", "--yes", cwd=folder)
    assert shown.returncode == done.returncode == 1
    assert done.stdout.startswith(shown.stdout.replace("Would update", "Updated").rstrip())


def test_in_a_folder_of_a_larger_repository(rendered: Made, fastproj: Fastproj, tmp_path: Path) -> None:
    top = tmp_path / "large"
    shutil.copytree(rendered("v0.1.0"), top / "train/proj", ignore=shutil.ignore_patterns(".git"))
    (top / "other").mkdir()
    (top / "other/file.txt").write_text("committed\n")
    git(top, "init", "-q")
    commit(top)
    folder = top / "train/proj"
    before_edits = files_of(folder)
    edited_far(folder)
    (top / "tools").mkdir()
    (folder / "README.md").rename(top / "tools/README.md")
    commit(top)
    (top / "other/file.txt").write_text("dirty\n")
    (top / "other/staged.txt").write_text("staged\n")
    git(top, "add", "other/staged.txt")
    before, others = files_of(folder), files_of(top / "other")
    done = fastproj("update", "--yes", cwd=folder / "src/proj")
    assert done.returncode == 0, done.stdout + done.stderr
    assert lost(folder, before, before_edits) == []
    assert "Release 1." in (top / "tools/README.md").read_text()
    assert "deleted   train/proj/README.md" in done.stdout, "what left the project's folder is not followed"
    assert files_of(top / "other") == others
    status = git(top, "status", "--porcelain").splitlines()
    assert {"M other/file.txt", " M other/file.txt"} & set(status)
    assert "A  other/staged.txt" in status
    assert "A  train/proj/docs/new.md" in status
    assert answers(folder)["_commit"] == "v0.3.0"
    subprocess.run(done.stdout.strip().splitlines()[-1], shell=True, check=True, cwd=folder)  # noqa: S602
    assert files_of(folder) == before
    assert files_of(top / "other") == others
    assert "A  other/staged.txt" in git(top, "status", "--porcelain").splitlines()


def test_with_a_submodule_and_from_a_linked_work_tree(made: Made, fastproj: Fastproj, tmp_path: Path) -> None:
    folder = made()
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "lib.py").write_text("mine = 1\n")
    commit(other)
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "vendor/lib")
    edited_far(folder)
    commit(folder)
    (folder / "vendor/lib/lib.py").write_text("mine = 2\n")
    inside = files_of(folder / "vendor")
    done = fastproj("update", "--yes", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert files_of(folder / "vendor") == inside
    assert "vendor" not in git(folder, "diff", "--staged", "--name-only")
    git(folder, "reset", "-q", "--hard")
    git(folder, "worktree", "add", "-q", str(tmp_path / "linked"))
    done = fastproj("update", "--yes", cwd=tmp_path / "linked")
    assert done.returncode == 0, done.stderr
    assert answers(tmp_path / "linked")["_commit"] == "v0.3.0"
    assert git(folder, "status", "--porcelain", "--ignore-submodules=dirty") == ""


def test_answers_of_one_machine_update_on_another(fastproj: Fastproj, tmp_path: Path, home: Path) -> None:
    """The own template: its place is the same text everywhere, and FASTPROJ_HOME moves it for one machine alone."""
    done = fastproj("new", "proj", "--yes", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "proj"
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(home / ".gitconfig", other / ".gitconfig")
    done = fastproj("update", "--yes", "--gpus", "2", cwd=folder, HOME=str(other))
    assert done.returncode == 0, done.stderr
    assert answers(folder)["_src_path"] == "~/.fastproj/template.bundle"
    assert answers(folder)["gpus"] == 2
    git(folder, "reset", "-q", "--hard")
    (tmp_path / "file").touch()
    done = fastproj("update", "--yes", "--gpus", "2", cwd=folder, HOME=str(tmp_path / "file"))
    assert done.returncode == 1
    assert "FASTPROJ_HOME" in done.stderr
    moved = {"HOME": str(tmp_path / "file"), "FASTPROJ_HOME": str(tmp_path / "moved")}
    done = fastproj("update", "--yes", "--gpus", "2", cwd=folder, **moved)
    assert done.returncode == 0, done.stderr
    assert answers(folder)["_src_path"] == "~/.fastproj/template.bundle"
    assert str(tmp_path) not in git(folder, "diff", "--staged")


def test_a_fork_is_recorded_and_used_from_then_on(
    made: Made, bundles: list[Path], fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = made()
    fork = tmp_path / "fork.git"
    git(tmp_path, "clone", "-q", str(bundles[-1]), "work")
    for version in (1, 2, 3):
        git(tmp_path / "work", "checkout", "-q", f"v0.{version}.0")
    (tmp_path / "work/project/team.txt").write_text("of the team\n")
    commit(tmp_path / "work")
    git(tmp_path / "work", "tag", "v0.3.1")
    git(tmp_path, "clone", "-q", "--bare", "work", str(fork))
    done = fastproj("update", "--yes", "--template", f"file://{fork}", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "team.txt").read_text() == "of the team\n"
    assert (answers(folder)["_src_path"], answers(folder)["_commit"]) == (f"file://{fork}", "v0.3.1")
    commit(folder)
    assert "up to date: v0.3.1" in fastproj("update", "--yes", cwd=folder).stdout


@pytest.mark.parametrize("how", ["truncated", "swapped", "empty", "folder"])
def test_a_broken_bundle_is_one_line(
    how: str, rendered: Made, bundles: list[Path], fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = shutil.copytree(rendered("v0.1.0"), tmp_path / "proj")
    bundle = tmp_path / "team.bundle"
    edit(folder / ".copier-answers.yml", str(answers(folder)["_src_path"]), str(bundle))
    commit(folder)
    if how == "truncated":
        bundle.write_bytes(bundles[-1].read_bytes()[:1500])
    elif how == "empty":
        bundle.touch()
    elif how == "folder":
        bundle.mkdir()
    else:
        other = tmp_path / "other"
        other.mkdir()
        git(other, "init", "-q")
        (other / "copier.yml").write_text("project_name: {type: str}\n")
        (other / "{{ _copier_conf.answers_file }}.jinja").write_text("{{ _copier_answers | to_nice_yaml -}}\n")
        commit(other)
        git(other, "tag", "v0.1.0")
        git(other, "bundle", "create", "-q", str(bundle), "--tags")
    before = files_of(folder)
    done = fastproj("update", "--yes", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "template" in done.stderr
    assert files_of(folder) == before


@pytest.mark.parametrize(("said", "message"), [("git version 2.37.9", "install git 2.38 or newer"), ("hi", "repair")])
def test_an_old_git_is_told(said: str, message: str, made: Made, fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text(f"#!/bin/sh\necho {said}\n")
    (tmp_path / "bin/git").chmod(0o755)
    done = fastproj("update", "--yes", cwd=made(), PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    done = fastproj("update", "--yes", cwd=tmp_path / "proj", PATH=str(tmp_path))
    assert "install git" in done.stderr


def test_hostile_settings_do_no_harm(made: Made, fastproj: Fastproj, tmp_path: Path) -> None:
    folder = made()
    renamed(folder)
    commit(folder)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "reference-transaction", "post-checkout"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\nexit 1\n")
        (hooks / name).chmod(0o755)
    settings = (
        f"[core]\nhooksPath = {hooks}\nexcludesFile = {tmp_path}/ignore\nautocrlf = input\n[merge]\nrenames = false\n"
    )
    settings += "conflictStyle = diff3\ndirectoryRenames = true\n[diff]\nrenames = false\nnoprefix = true\n"
    settings += (
        "[commit]\ngpgSign = true\n[status]\nshowUntrackedFiles = no\nrelativePaths = true\n[protocol]\nallow = never\n"
    )
    (tmp_path / ".gitconfig").write_text(settings + "[color]\nui = always\n[safe]\nbareRepository = explicit\n")
    (tmp_path / "ignore").write_text("*\n")
    hostile = {"HOME": str(tmp_path), "GIT_DIR": "/nowhere", "GIT_INDEX_FILE": "/nowhere", "GIT_OBJECT_DIRECTORY": "/x"}
    done = fastproj("update", "--yes", cwd=folder, **hostile)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "hooked").exists()
    assert '"""Of release 3."""' in (folder / PACKAGE / "motor.py").read_text()


def test_a_repository_with_longer_names(made: Made, fastproj: Fastproj) -> None:
    folder = made()
    shutil.rmtree(folder / ".git")
    git(folder, "init", "-q", "--object-format=sha256")
    deleted(folder)
    readme = folder / "README.md"
    edit(readme, "Release", "My release")
    commit(folder)
    done = fastproj("update", "--yes", cwd=folder)
    assert done.returncode == 1, done.stderr
    assert "My release" in readme.read_text()
    assert not (folder / "logo.bin").exists()


def test_an_edit_stays_in_its_block(made: Made, fastproj: Fastproj) -> None:
    folder = made("v0.1.0")
    edited_in_a_block(folder)
    commit(folder)
    assert fastproj("update", "--yes", cwd=folder).returncode == 0
    blocks = yaml.safe_load((folder / "configs/default.yaml").read_text())
    assert {name: block["rate"] for name, block in blocks.items()} == {
        "train": 0.1,
        "tune": 0.1,
        "val": 0.1,
        "test": 0.7,
    }


# Where plain `copier update` is safe. It loses edits of files that the template deletes or renames, binaries that both
# changed, and ignored files in the way; and a change may land in the wrong one of several equal blocks.
SAFE = [[edited_far, edited_near, added_same_name, own_model], [edited_same_line], [deleted], [renamed], [crlf]]


@pytest.mark.parametrize("states", SAFE, ids=lambda states: "-".join(state.__name__ for state in states))
def test_plain_copier_update(states: list[State], made: Made, environment: dict[str, str]) -> None:
    folder = made("v0.1.0")
    rendered = files_of(folder)
    for state in states:
        state(folder)
    commit(folder)
    before = files_of(folder)
    copier_update(folder, environment)
    assert lost(folder, before, rendered) == []
    assert answers(folder)["_commit"] == "v0.3.0"


def copier_update(folder: Path, environment: dict[str, str]) -> None:
    """Run it plainly: no --trust, no network."""
    command = [str(Path(sys.executable).parent / "copier"), "update", "--defaults"]
    offline = environment | {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(command, cwd=folder, env=offline, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_plain_copier_update_from_the_programs_own_bundle(
    fastproj: Fastproj, environment: dict[str, str], tmp_path: Path
) -> None:
    shutil.copy(Path(environment["HOME"]) / ".gitconfig", tmp_path / ".gitconfig")
    done = fastproj("new", "proj", "--yes", cwd=tmp_path, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    folder, bundle = tmp_path / "proj", tmp_path / ".fastproj/template.bundle"
    edit(folder / "README.md", "## Switches", "## My switches")
    (folder / "src/proj/model.py").write_text("# mine\n")
    commit(folder)
    git(tmp_path, "clone", "-q", str(bundle), "template")
    (tmp_path / "template/template/project/NEW.md").write_text("# New\n")
    (tmp_path / "template/template/models/resnet/model.py").write_text("# newer\n")
    commit(tmp_path / "template")
    git(tmp_path / "template", "tag", "v99.0.0")
    git(tmp_path / "template", "bundle", "create", "-q", str(bundle), "--tags")
    copier_update(folder, environment | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")})
    assert (answers(folder)["_commit"], answers(folder)["_src_path"]) == ("v99.0.0", "~/.fastproj/template.bundle")
    assert (folder / "NEW.md").is_file()
    assert "## My switches" in (folder / "README.md").read_text()
    assert (folder / "src/proj/model.py").read_text() == "# mine\n"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_new_question_is_asked_on_a_terminal(made: Made, environment: dict[str, str]) -> None:
    folder = made("v0.2.0")
    variables = environment | {"TERM": "xterm-256color"}
    command = ["-m", "fastproj", "update"]
    terminal = pexpect.spawn(
        sys.executable, command, cwd=str(folder), env=variables, encoding="utf-8", dimensions=(40, 120), timeout=60
    )
    terminal.expect("tracker")
    terminal.send("\x7f" * 4 + "mlflow\r")
    terminal.expect(r"tracker: \(not asked\) -> mlflow")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    assert answers(folder)["tracker"] == "mlflow"


def test_a_templates_code_is_not_run(made: Made, fastproj: Fastproj, bundles: list[Path], tmp_path: Path) -> None:
    folder = made("v0.1.0")
    before = files_of(folder)
    git(tmp_path, "clone", "-q", str(bundles[0]), "fork")
    for number, key in enumerate(("_migrations", "_tasks")):
        questions = tmp_path / "fork/copier.yml"
        questions.write_text(f"{key}:\n  - touch {tmp_path}/ran\n" + questions.read_text())
        commit(tmp_path / "fork")
        git(tmp_path / "fork", "tag", f"v1.{number}.0")
        done = fastproj("update", "--yes", "--template", str(tmp_path / "fork"), cwd=folder)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert key.removeprefix("_") in done.stderr
        git(tmp_path / "fork", "reset", "-q", "--hard", "HEAD~1")
    assert files_of(folder) == before
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("state", "name"), [(crlf, "engine.py"), (crlf_and_renamed, "motor.py")])
def test_line_ends_are_no_conflict(state: State, name: str, made: Made, fastproj: Fastproj) -> None:
    folder = made("v0.1.0")
    state(folder)
    commit(folder)
    done = fastproj("update", "--yes", cwd=folder)
    assert done.returncode == 0, done.stdout
    content = (folder / PACKAGE / name).read_bytes()
    assert b'"""Of release 3."""\r\n' in content
    assert b"return 21  # mine\r\n" in content
    assert content.count(b"\n") == content.count(b"\r\n")
