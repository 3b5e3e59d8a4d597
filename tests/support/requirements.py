"""Print the requirements of all rendered projects, for one environment that tests them."""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from matrix import COMPONENTS, PAIRS, UPDATE_SOURCE

APART = {"ray"}
"""Components that are tested in an environment of their own: they need hundreds of megabytes."""


def main() -> None:
    """Render each framework with each model, and print what all of them need."""
    found: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for number, (framework, model) in enumerate(PAIRS):
            name = f"project{number}"
            chosen = ",".join(component for component in COMPONENTS if component not in APART)
            components = (
                []
                if number
                else [f"--components={chosen}", f"--data=update_source={UPDATE_SOURCE}"]
            )
            answers = [
                "--framework",
                framework,
                "--model",
                model,
                "--yes",
                "--no-git",
                "--output",
                folder,
                *components,
            ]
            subprocess.run(
                [sys.executable, "-m", "fastproj", "new", name, *answers],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            declared = tomllib.loads(Path(folder, name, "pyproject.toml").read_text())
            found |= {*declared["project"]["dependencies"], *declared["dependency-groups"]["dev"]}
    print("\n".join(sorted(found)))


if __name__ == "__main__":
    main()
