"""Issue 13, line 16: what is installed is what was locked, by its hash, and is listed for whoever must know it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
INSTALLERS = [ROOT / "Makefile", *sorted((ROOT / "tools").glob("*.sh"))]


def locked(lock: Path) -> dict[tuple[str, str], set[str]]:
    """Return the hashes of every package and version of a lock file."""
    lines = lock.read_text().replace("\\\n", " ").splitlines()
    pins = [re.match(r"([a-z0-9._-]+)(?:\[.*\])?==(\S+)", line) for line in lines if not line.startswith("#")]
    found = [(pin[1], pin[2], pin.string) for pin in pins if pin]
    assert len(found) == len(pins) > 0
    return {(name, version): set(re.findall(r"--hash=sha256:([0-9a-f]{64})", line)) for name, version, line in found}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.stem))
def test_13_16_every_locked_package_has_hashes_and_no_address(lock: Path) -> None:
    assert [pin for pin, hashes in locked(lock).items() if not hashes] == []
    assert "://" not in lock.read_text()


def test_13_16_everything_is_installed_by_its_hash() -> None:
    """Only the project itself has none: it is what is worked on."""
    text = "\n".join(file.read_text() for file in INSTALLERS).replace("\\\n", " ")
    assert "LOCKED := $(PIP) --no-deps --require-hashes --requirement" in text
    installs = [line for line in text.splitlines() if re.search(r"pip install|\$\(PIP\)|uv pip (install|sync)", line)]
    without = [line for line in installs if "--require-hashes" not in line and not line.startswith("PIP :=")]
    assert [line.split(maxsplit=1)[1] for line in without] == ["$(PIP) --no-deps --no-build-isolation --editable ."]


def test_13_16_the_sbom_lists_every_package_of_the_base_install(tmp_path: Path) -> None:
    lock = ROOT / "requirements" / "base.lock"
    tool = Path(sys.executable).with_name("cyclonedx-py")
    subprocess.run([ROOT / "tools" / "sbom.sh", tool, tmp_path, lock], cwd=ROOT, check=True, timeout=120)
    [file] = tmp_path.iterdir()
    sbom = json.loads(file.read_text())
    assert (file.name, sbom["bomFormat"]) == ("base.cdx.json", "CycloneDX")
    assert sbom["metadata"]["component"]["name"] == "holdfast"
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", sbom["metadata"]["component"]["version"])
    listed = {
        (item["name"], item["version"]): {
            digest["content"] for reference in item["externalReferences"] for digest in reference["hashes"]
        }
        for item in sbom["components"]
    }
    assert listed == locked(lock)
