"""Make a template's git bundle from a source tree. The build hook imports this, so it needs nothing but Python."""

import os
import subprocess
import tempfile
from pathlib import Path

# Fixed, so that the same tree gives the same bundle to the byte.
_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "fastproj"), ("EMAIL", "fastproj@localhost"), ("DATE", "2000-01-01T00:00:00+0000"))
}


def tag_of(version: str) -> str:
    """Return the git tag that stands for a version of the template."""
    return f"v{version}"


def build(root: Path, target: Path, version: str) -> None:
    """Write a bundle with one parentless commit of `copier.yml` and `template/` under `root`, tagged with the version.

    Files that git ignores there are left out. The bundle replaces `target` in one step.

    Raises:
        subprocess.CalledProcessError: git failed; its message is in `stderr`.
        FileNotFoundError: there is no git.
    """
    root, target = root.absolute(), target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fastproj-bundle-", dir=target.parent) as folder:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        environment |= _IDENTITY | {"GIT_DIR": f"{folder}/git", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
        environment["GIT_CONFIG_NOSYSTEM"] = "1"

        def git(*arguments: str) -> None:
            subprocess.run(
                ["git", *arguments],
                cwd=root,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
                errors="replace",
            )

        git("init", "--quiet", "--bare", "--initial-branch=main", f"{folder}/git")
        environment["GIT_WORK_TREE"] = str(root)
        git("-c", "core.bare=false", "-c", "core.autocrlf=false", "add", "--all", "--", "copier.yml", "template")
        git("-c", "core.bare=false", "commit", "--quiet", "--no-verify", "--message", f"Template {version}")
        git("tag", tag_of(version))
        git("-c", "pack.threads=1", "bundle", "create", "--quiet", f"{folder}/bundle", "--tags", "main", "HEAD")
        os.replace(f"{folder}/bundle", target)
