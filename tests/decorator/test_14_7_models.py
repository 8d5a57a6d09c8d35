"""Line 7: what Pydantic keeps in values of its own, a URL or a secret, is written as what it stands for."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

from pydantic import BaseModel, HttpUrl, PostgresDsn, Secret, SecretBytes, SecretStr

from holdfast import DbBindings, DbOut
from tests.binding.databases import Database

db = DbBindings()
TYPES = {
    "postgresql": ("bytea", "uuid", "jsonb"),
    "mysql": ("varbinary(50)", "uuid", "json"),
    "sqlite": ("BLOB", "UUID", "JSON"),
}


class Links(BaseModel):
    """What is kept as JSON."""

    home: HttpUrl
    others: list[HttpUrl]
    tokens: dict[str, SecretStr]


class Account(BaseModel):
    """A row with values of Pydantic's own."""

    id: int
    site: HttpUrl
    database: PostgresDsn
    password: SecretStr
    seed: SecretBytes
    pin: Secret[int]
    unset: SecretStr | None
    token: UUID
    balance: Decimal
    links: Links


ACCOUNT = Account.model_validate(
    {
        "id": 1,
        "site": "https://example.com/a?b=c",
        "database": "postgresql://app:pw@db/shop",
        "password": "hunter2",
        "seed": b"\x00\xff",
        "pin": 1234,
        "unset": None,
        "token": UUID(int=7),
        "balance": Decimal("99999999.99"),
        "links": {"home": "https://example.com", "others": ["https://example.org/x"], "tokens": {"a": "t0ken"}},
    }
)


def test_14_7_urls_and_secrets_are_written_as_what_they_stand_for(database: Database) -> None:
    octets, identity, document = TYPES[database.kind]
    database.raw(
        f"CREATE TABLE accounts (id integer PRIMARY KEY, site varchar(80), {database.quoted('database')} varchar(80), "
        f"password varchar(80), seed {octets}, pin integer, unset varchar(80), token {identity}, "
        f"balance numeric(12, 2), links {document})"
    )
    target: dict[str, Any] = {"url": database.url, "table": "accounts", "engine_provider": database.provider}

    @db.output("out", **target)
    def write(out: DbOut) -> None:
        out.set(ACCOUNT)

    @db.input("account", pk={"id": 1}, model=Account, **target)
    def read(account: Account) -> Account:
        return account

    write()
    assert read() == ACCOUNT
    stored = database.rows(f"SELECT site, {database.quoted('database')}, password, pin FROM accounts")
    assert stored == [("https://example.com/a?b=c", "postgresql://app:pw@db/shop", "hunter2", 1234)]
