"""The techniques that `fastproj bench` measures: techniques.yaml, and components."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..template.clone import questions_in
from ..template.embedded import QUESTIONS
from .options import Options
from .stages import Setting


class Technique(NamedTuple):
    """A technique, with the options that switch it off and on."""

    about: str
    without: Options
    enabled: Options


def in_the_core() -> dict[str, dict[str, Any]]:
    """Return the entries of techniques.yaml."""
    file = Path(__file__).with_name("techniques.yaml")
    entries: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return entries


def applicable(setting: Setting) -> dict[str, Technique]:
    """Return the techniques that this project, framework and machine have."""
    techniques = {}
    for name, entry in in_the_core().items():
        if setting.on_gpu or not entry.get("gpu"):
            techniques[name] = Technique(entry["about"], entry["without"], entry["with"])
    if not setting.convolves():
        del techniques["channels-last"]

    batch = setting.batch()
    if batch >= 8:
        techniques["batch"] = Technique(
            f"passes of {batch} instead of {batch // 4}",
            setting.accumulated(batch // 4),
            setting.accumulated(batch),
        )

    components = questions_in(QUESTIONS)["component_table"]["default"]
    for name in setting.project.components:
        entry = components.get(name, {})
        if "bench" in entry:
            switch = f"{name.replace('-', '_')}.enabled"
            techniques[name] = Technique(entry["about"], {switch: False}, entry["bench"])

    names = setting.project.names
    return {
        name: technique
        for name, technique in techniques.items()
        if names.translate(technique.without | technique.enabled) is not None
    }
