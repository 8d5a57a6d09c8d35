"""A cursor that a person types has the types of its columns, in every database; what only looks like one is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from holdfast import EngineProvider, Holdfast
from holdfast.core.errors import SourceConfigurationError

DATABASES = [
    pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
    pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
    "sqlite_url",
]
FITTING = [("7", 7), ("-3", -3), ("0", 0)]
UNFIT = [
    "nope",
    "42abc",
    "7; drop",
    "7.5",
    "1e3",
    " 7",
    "4_2",
    "\u0664\u0662",
    "042",
    "",
    str(2**63),
    "a\x00",
    "\udcff",
]


@pytest.fixture(params=DATABASES)
def hf(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    made = Holdfast(request.getfixturevalue(request.param), engine_provider=EngineProvider())
    with made.database.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id integer PRIMARY KEY, version bigint)"))
        connection.execute(text("CREATE INDEX orders_by_version ON orders (version, id)"))
    made.trigger("orders", cursor="version", key="id", horizon="none")(lambda changes: None)
    yield made
    made._provider.dispose_all()


def test_14_2_a_cursor_typed_by_hand_is_of_its_columns_types(hf: Holdfast) -> None:
    source = hf.runner("orders").source
    for typed, meant in FITTING:
        cursor = source.cursor_from_text(typed, [typed])  # type: ignore[attr-defined]  # it is a SQL source
        assert (cursor.value, cursor.key_values) == (meant, (meant,))
    for typed in UNFIT:
        with pytest.raises(SourceConfigurationError):
            source.cursor_from_text(typed, ["1"])  # type: ignore[attr-defined]  # see above
        with pytest.raises(SourceConfigurationError):
            source.cursor_from_text("1", [typed])  # type: ignore[attr-defined]  # see above
