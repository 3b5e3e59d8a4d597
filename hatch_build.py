"""Build hook: puts the template into the package as a git bundle, from which projects are rendered offline."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUNDLE = "generator/fastproj/_template.bundle"


class TemplateBundle(BuildHookInterface[Any]):
    """Writes the bundle before a wheel or sdist is put together, and adds it to what is packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the bundle of the releases in the history, and of `copier.yml` and `template/` as they are now."""
        root = Path(self.root)
        build_data["artifacts"].append(BUNDLE)
        packed_already = (root / "PKG-INFO").exists() and (root / BUNDLE).exists()  # in an sdist, maybe without git
        if packed_already or version == "editable":
            return  # an editable install makes a bundle of the working tree whenever it needs one
        sys.path.insert(0, str(root / "generator"))
        from fastproj.shared.bundle import build  # it needs nothing but the standard library and packaging

        build(root, root / BUNDLE)
