"""What a part found: lines for people, figures for machines, and targets that were met or missed."""

import json
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.scale import Scale


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a figure must keep; give ``at_least`` or ``at_most``."""

    figure: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def is_met(self) -> bool:
        """Return whether the figure keeps its bounds."""
        low = self.at_least is None or self.value >= self.at_least
        return low and (self.at_most is None or self.value <= self.at_most)

    def __str__(self) -> str:
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (("at least", self.at_least), ("at most", self.at_most))
            if bound is not None
        ]
        return f"{self.figure}: {self.value:.2f}, target {' and '.join(bounds)}"


@dataclass(frozen=True, slots=True)
class Section:
    """The result of one part."""

    title: str
    lines: Sequence[str]
    figures: dict[str, Any]
    targets: Sequence[Target] = field(default_factory=tuple)


def printed(section: Section, scale: Scale) -> str:
    """Return a section as text; a run that enforces no targets does not judge them either."""
    words = {True: "met", False: "MISSED"} if scale.enforces_targets else {}
    verdicts = [f"{words.get(target.is_met, 'not judged')}: {target}" for target in section.targets]
    return "\n".join(["", section.title, "=" * len(section.title), *section.lines, *verdicts])


def missed(sections: Sequence[Section]) -> list[str]:
    """Return one line for each target that was missed."""
    return [str(target) for section in sections for target in section.targets if not target.is_met]


def write_json(file: Path, sections: Sequence[Section], scale: Scale) -> None:
    """Write all figures, with when and where they were taken."""
    content = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "scale": scale.name,
        "machine": {"processor": _processor(), "python": platform.python_version(), "system": platform.platform()},
        "figures": {section.title: section.figures for section in sections},
        "missed": missed(sections),
    }
    file.write_text(json.dumps(content, indent=2) + "\n")


def _commit() -> str | None:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} cores, {models[0]}" if models else platform.processor()
