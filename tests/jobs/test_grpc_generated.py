"""The generated code is what the published protocol says."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

from tests.components.processes import REPOSITORY

PACKAGE = Path("holdfast/jobs/grpc")
GENERATED = ("holdfast_jobs_pb2.py", "holdfast_jobs_pb2.pyi")
PROTO = REPOSITORY / "src" / PACKAGE / "holdfast_jobs.proto"


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    subprocess.run([REPOSITORY / "tools" / "generate_grpc.sh", sys.executable, tmp_path], check=True)
    for name in GENERATED:
        assert (tmp_path / PACKAGE / name).read_text() == (REPOSITORY / "src" / PACKAGE / name).read_text(), (
            f"{name} is out of date: run tools/generate_grpc.sh"
        )


def test_every_field_and_call_is_documented() -> None:
    lines = [line.strip() for line in PROTO.read_text().splitlines()]
    declared = re.compile(r"(rpc |(optional |repeated )?[\w.]+ \w+ = \d+;)")
    bare = [line for before, line in itertools.pairwise(lines) if declared.match(line) and before[:2] != "//"]
    assert bare == []
