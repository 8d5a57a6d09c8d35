"""Issue 13, line 16: `make test` never replaces a file of the system, not even while it installs servers."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = (Path(__file__).parents[2] / "tools" / "components.sh").read_text()
[FORBID] = re.findall(r"^forbid_service_starts\(\) \{.*?^\}", SCRIPT, re.DOTALL | re.MULTILINE)


def during_an_installation(policy: Path, then: str = "") -> tuple[int, str]:
    """Forbid service starts as an installation does; return its exit code and the policy that held meanwhile."""
    shell = ["env", "--default-signal=HUP,INT,TERM", "sh", "-c"]  # a run in the background may be deaf to some
    script = f"set -eu\n{FORBID}\n(forbid_service_starts || exit 1; cat {policy}; {then or ':'})"
    environment = {**os.environ, "POLICY_RC_D": str(policy)}
    ended = subprocess.run([*shell, script], env=environment, capture_output=True, text=True)
    return ended.returncode, ended.stdout


@pytest.mark.parametrize(("answer", "code"), [(101, 0), (0, 1)])
def test_13_16_a_policy_that_is_there_is_obeyed_and_not_replaced(tmp_path: Path, answer: int, code: int) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text(f"#!/bin/sh\nexit {answer}\n")
    policy.chmod(0o755)
    before = policy.stat()
    assert during_an_installation(policy)[0] == code
    after = policy.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)
    assert list(tmp_path.iterdir()) == [policy]


def test_13_16_where_there_is_no_policy_one_holds_only_meanwhile(tmp_path: Path) -> None:
    assert during_an_installation(tmp_path / "policy-rc.d") == (0, "#!/bin/sh\nexit 101\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("signal", ["HUP", "INT", "TERM"])
def test_13_16_an_installation_that_is_broken_off_leaves_no_policy(tmp_path: Path, signal: str) -> None:
    broken_off = f"sh -c 'kill -{signal} $PPID'; sleep 60"
    assert during_an_installation(tmp_path / "policy-rc.d", broken_off) == (1, "#!/bin/sh\nexit 101\n")
    assert list(tmp_path.iterdir()) == []


def test_13_16_nothing_else_is_written_outside_the_project() -> None:
    assert re.findall(r"(?:>|mv |cp |rm -\S+ |ln -\S+ )\s*\"?(/(?!dev/null)\S+)", SCRIPT) == []
