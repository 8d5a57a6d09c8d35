"""Remove from package-lock.json what is not needed to install: author notes and addresses.

npm copies advertising addresses of package authors into the lock file. A lock file of ours names
versions and hashes only, so `make lock` runs this after npm and fails if an address is left.
"""

import json
import sys
from pathlib import Path

NOISE = ("funding", "deprecated", "license", "resolved")


def main(path: Path) -> int:
    """Rewrite the lock file at `path`; return 1 when it still names an address."""
    lock = json.loads(path.read_text())
    for package in lock["packages"].values():
        for key in NOISE:
            package.pop(key, None)
    text = json.dumps(lock, indent=2) + "\n"
    path.write_text(text)
    left = [line.strip() for line in text.splitlines() if "://" in line]
    for line in left:
        print(f"{path}: names an address: {line}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
