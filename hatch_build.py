"""Build hook: puts the template into the package as a git bundle, from which projects are rendered offline."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUNDLE = "generator/fastproj/_template.bundle"


class TemplateBundle(BuildHookInterface[Any]):
    """Writes the bundle before a wheel or sdist is built, and adds it to the build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the bundle with the releases in the history, and with `copier.yml` and `template/` as they are now."""
        root = Path(self.root)
        build_data["artifacts"].append(BUNDLE)
        in_sdist = (root / "PKG-INFO").exists() and (root / BUNDLE).exists()
        if in_sdist or version == "editable":
            return  # an editable install builds a bundle of the working tree when it needs one
        sys.path.insert(0, str(root / "generator"))
        from fastproj.shared.bundle import build  # needs only the standard library and packaging

        build(root, root / BUNDLE)
