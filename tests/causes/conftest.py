"""Roles without rights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.causes.roles import Role, role_on
from tests.components.postgres import PostgresServer


@pytest.fixture
def postgres_role(postgres_server: PostgresServer) -> Iterator[Role]:
    yield from role_on(postgres_server)


@pytest.fixture(params=["postgres_server", "mariadb_server"])
def role(request: pytest.FixtureRequest) -> Iterator[Role]:
    yield from role_on(request.getfixturevalue(request.param))
