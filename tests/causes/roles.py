"""A role without rights, in a database with Holdfast's tables."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from holdfast import EngineProvider, Holdfast
from holdfast.core.errors import ConfigurationError
from tests.components.mariadb import MariadbServer
from tests.components.postgres import PostgresServer
from tests.components.prepared import create_prepared, dropped_after

TABLES = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"


class Role:
    """A role that may log in, the owner of the database, and an application of each."""

    def __init__(self, url: str) -> None:
        provider = EngineProvider()
        name = f"worker_{uuid.uuid4().hex[:12]}"
        self.owner = Holdfast(url, engine_provider=provider)
        self.is_postgres = self.owner.database.dialect.name == "postgresql"
        self.name = name if self.is_postgres else f"'{name}'@'%'"
        self.do("CREATE ROLE {role} LOGIN" if self.is_postgres else "CREATE USER {role}")
        self.runs: list[str] = []
        self.app = Holdfast(
            make_url(url).set(username=name).render_as_string(hide_password=False), engine_provider=provider
        )
        self.close = provider.dispose_all
        for app in self.app, self.owner:
            self.greet = app.job("greet")(self.greeting)

    def greeting(self) -> None:
        self.runs.append("greet")
        self.app.stop()

    def url(self, app: Holdfast) -> str:
        return app.database.url.render_as_string(hide_password=False)

    def do(self, statement: str) -> None:
        with self.owner.database.begin() as connection:
            connection.exec_driver_sql(statement.format(role=self.name).replace("%", "%%"))

    def drop(self) -> None:
        self.close()
        if self.is_postgres:
            self.do("DROP OWNED BY {role} CASCADE")
        self.do("DROP ROLE {role}" if self.is_postgres else "DROP USER {role}")
        self.close()

    def grant_everything_but(self, table: str, rights: str) -> None:
        with self.owner.database.begin() as connection:
            found = connection.exec_driver_sql(
                "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'holdfast%%' "
                + "AND table_schema = "
                + ("'public'" if self.is_postgres else "DATABASE()")
            )
            names = [row[0] for row in found]
        for name in names:
            self.do(f"GRANT {rights if name == table else 'SELECT, INSERT, UPDATE, DELETE'} ON {name} TO {{role}}")
        if self.is_postgres:
            self.do("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}")

    def refused(self) -> str:
        self.greet.enqueue()
        with pytest.raises(ConfigurationError) as refusal:
            self.app.validate()
        with pytest.raises(ConfigurationError, match=re.escape(str(refusal.value))):
            self.app.run(handle_signals=False)
        assert self.runs == []
        return str(refusal.value)

    def granted(self, refusal: str) -> None:
        """Do what a refusal says, after which jobs are run and recorded."""
        for statement in refusal.partition("run: ")[2].split(";"):
            if statement.strip():
                self.do(statement)
        assert self.app.run(handle_signals=False)
        assert self.runs == ["greet"]
        with self.owner.database.connect() as connection:
            ends = connection.exec_driver_sql("SELECT status FROM holdfast_history").scalars().all()
        assert ends == ["Succeeded"]


def role_on(server: PostgresServer | MariadbServer) -> Iterator[Role]:
    databases = dropped_after(server, create_prepared(server))
    made = Role(next(databases))
    yield made
    made.drop()
    next(databases, None)
