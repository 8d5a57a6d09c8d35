"""Names of documents in a database are equal only if their bytes are; one too long for its column is refused alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import EngineProvider
from holdfast.core.config import DbConfig
from holdfast.core.errors import ConfigurationError
from holdfast.lease.documents import ETag
from holdfast.lease.stores.sql import SqlDocumentStore

DATABASES = [
    pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
    pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
    pytest.param("mariadb dialect", marks=pytest.mark.component("mariadb")),
    "sqlite_url",
]


@pytest.fixture(params=DATABASES)
def store(request: pytest.FixtureRequest) -> Iterator[SqlDocumentStore]:
    if request.param == "mariadb dialect":
        url = request.getfixturevalue("mariadb_url").replace("mysql+", "mariadb+")
    else:
        url = request.getfixturevalue(request.param)
    provider = EngineProvider()
    opened = SqlDocumentStore(provider.get_engine(DbConfig(connection_url=url)))
    opened.create_table()
    yield opened
    provider.dispose_all()


def test_14_1_documents_whose_names_look_alike_are_apart(store: SqlDocumentStore) -> None:
    names = ["state/a", "state/A", "state/á", "state/a\u0301", " state/a", "state/\u00e5", "state/\u212b", "x" * 300]
    for number, name in enumerate(names):
        store.create(name, b"%d" % number)
    for number, name in enumerate(names):
        found = store.read(name)
        assert found is not None
        assert found.content == b"%d" % number
    assert sorted(store.list("")) == sorted(names)


def test_14_1_a_name_longer_than_its_column_is_refused_by_every_call(store: SqlDocumentStore) -> None:
    name = "x" * 301
    for call in (store.read, lambda name: store.create(name, b"{}"), lambda name: store.delete(name, ETag("e"))):
        with pytest.raises(ConfigurationError, match="it has 301 characters, and 300 are the most"):
            call(name)
    assert list(store.list("")) == []
