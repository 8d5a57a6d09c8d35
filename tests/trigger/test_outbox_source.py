"""A team's own outbox as a trigger: every committed message once, in order, and none skipped however late it commits.

The rules behind it: [HORIZON-PG-XID] [HORIZON-PG-IDENTITY] [HORIZON-MY-IDENTITY].
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, text
from sqlalchemy.engine import Connection

from holdfast import (
    ConfigurationError,
    DbConnectionError,
    EngineProvider,
    FingerprintMismatchError,
    Holdfast,
    PollContext,
    PollRunner,
    RetryPolicy,
    RowChange,
    SourceConfigurationError,
    SourceDescriptor,
)
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.trigger.sources.outbox_messages import MessageBatch, decoded
from tests.components.ports import HOST, free_port
from tests.components.processes import wait_until
from tests.trigger.late_commits import plants


@dataclass(frozen=True, slots=True)
class Kind:
    """A table ``my_outbox`` with names of its own, on the database a fixture gives."""

    name: str
    url_fixture: str
    columns: str
    horizon: str

    def __str__(self) -> str:
        return self.name


POSTGRES = "seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_uuid uuid, kind text NOT NULL, body jsonb"
PG_XID8 = Kind(
    "postgresql xid8",
    "postgres_url",
    f"{POSTGRES}, tx_id xid8 NOT NULL DEFAULT pg_current_xact_id()",
    "xid8",
)
PG_IDENTITY = Kind("postgresql identity", "postgres_url", POSTGRES, "identity")
MARIADB = Kind(
    "mariadb",
    "mariadb_url",
    "seq BIGINT AUTO_INCREMENT PRIMARY KEY, event_uuid CHAR(36), kind VARCHAR(40) NOT NULL, body JSON",
    "identity",
)
SQLITE = Kind(
    "sqlite",
    "sqlite_url",
    "seq INTEGER PRIMARY KEY AUTOINCREMENT, event_uuid TEXT, kind TEXT NOT NULL, body TEXT",
    "identity",
)
on_every_kind = pytest.mark.parametrize("kind", [PG_XID8, PG_IDENTITY, MARIADB, SQLITE], ids=str)
on_servers = pytest.mark.parametrize("kind", [PG_XID8, PG_IDENTITY, MARIADB], ids=str)
on_barriers = pytest.mark.parametrize("kind", [PG_IDENTITY, MARIADB], ids=str)
on_two = pytest.mark.parametrize("kind", [PG_XID8, SQLITE], ids=str)


@dataclass
class Service:
    """An application with an outbox of its own, and what its handler was given."""

    url: str
    kind: Kind | None = None
    handled: list[RowChange] = field(default_factory=list)
    checkpoints: MemoryDocumentStore = field(default_factory=MemoryDocumentStore)
    engines: EngineProvider = field(default_factory=EngineProvider)

    def __post_init__(self) -> None:
        self.restart()
        if self.kind is not None:
            self.execute(f"CREATE TABLE my_outbox ({self.kind.columns})")

    def restart(self) -> None:
        """Begin anew, with the checkpoints that were kept."""
        self.hf = Holdfast(self.url, state=self.checkpoints, engine_provider=self.engines)

    def execute(self, *statements: str) -> None:
        with self.hf.database.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def write(self, number: int, connection: Connection | None = None, kind: str = "OrderPlaced") -> None:
        """Append a message, in a transaction of its own or in one that somebody else ends."""
        statement = text("INSERT INTO my_outbox (event_uuid, kind, body) VALUES (:id, :kind, :body)")
        values = {"id": str(UUID(int=number)), "kind": kind, "body": json.dumps({"number": number})}
        if connection is not None:
            connection.execute(statement, values)
            return
        with self.hf.database.begin() as own:
            own.execute(statement, values)

    def follow(self, **settings: Any) -> PollRunner:
        """Declare the trigger under the table's own names."""
        names = {"position": "seq", "message_id": "event_uuid", "message_type": "kind", "data": "body"}
        if self.kind is PG_XID8:
            names["transaction"] = "tx_id"
        return self.declare("my_outbox", **{**names, **settings})

    def declare(self, table: str, **settings: Any) -> PollRunner:
        settings = {"strategy": "outbox", **settings}
        name = settings.get("name", table)
        self.hf.trigger(table, **settings)(lambda changes: self.handled.extend(changes))
        return self.hf.runner(name)

    @property
    def numbers(self) -> list[int]:
        return [change.after["body"]["number"] for change in self.handled]  # type: ignore[index]  # a dict in a dict

    def receive(self, runner: PollRunner, how_many: int) -> list[int]:
        """Poll until so many messages have come; return all of them in the order of delivery."""
        wait_until(lambda: runner.tick() and len(self.handled) >= how_many, f"{how_many} messages")
        return self.numbers

    def close(self) -> None:
        self.engines.dispose_all()


@pytest.fixture
def service(kind: Kind, request: pytest.FixtureRequest) -> Iterator[Service]:
    opened = Service(request.getfixturevalue(kind.url_fixture), kind)
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite_url", "postgres_url", "mariadb_url"])
def empty(request: pytest.FixtureRequest) -> Iterator[Service]:
    """An application without an outbox yet, on every database."""
    opened = Service(request.getfixturevalue(request.param))
    yield opened
    opened.close()


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Service]:
    opened = Service(sqlite_url, SQLITE)
    yield opened
    opened.close()


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Service]:
    opened = Service(postgres_url, PG_XID8)
    yield opened
    opened.close()


@on_every_kind
def test_messages_arrive_under_the_names_of_the_team(service: Service) -> None:
    runner = service.follow()
    for number in (1, 2, 3):
        service.write(number)
    assert service.receive(runner, 3) == [1, 2, 3]
    assert runner.tick() == 0
    first = service.handled[0]
    assert (first.op, first.pk, first.before) == ("insert", {"seq": 1}, None)
    assert first.after is not None
    assert first.after["kind"] == "OrderPlaced"
    assert first.after["body"] == {"number": 1}
    assert (first.source.kind, first.source.name) == ("outbox", "my_outbox")
    assert service.kind is not None
    assert runner.source.capability().horizon == service.kind.horizon
    assert runner.source.capability().safe_from_late_commits
    assert not runner.source.capability().detects_updates
    runner.source.validate()


USUAL = {
    "postgresql": "position BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, transaction_id xid8 NOT NULL, "
    "message_id TEXT NOT NULL, message_type TEXT NOT NULL, data JSONB NOT NULL, "
    "scheduled TIMESTAMPTZ NOT NULL DEFAULT now()",
    "mysql": "position BIGINT AUTO_INCREMENT PRIMARY KEY, transaction_id BIGINT NOT NULL, message_id VARCHAR(40), "
    "message_type VARCHAR(40), data JSON",
    "sqlite": "position INTEGER PRIMARY KEY AUTOINCREMENT, transaction_id INT, message_id TEXT, message_type TEXT, "
    "data JSON",
}


def test_the_usual_names_need_not_be_told(empty: Service) -> None:
    dialect = empty.hf.database.dialect.name
    transaction, horizon = ("pg_current_xact_id()", "xid8") if dialect == "postgresql" else ("1", "identity")
    empty.execute(
        f"CREATE TABLE outbox ({USUAL[dialect]})",
        "INSERT INTO outbox (transaction_id, message_id, message_type, data) VALUES "
        f"({transaction}, 'm-1', 'Paid', '{{\"body\": 1}}'), ({transaction}, 'm-2', 'Shipped', '{{\"body\": 2}}')",
    )
    runner = empty.declare("outbox", types=["Paid"])
    wait_until(lambda: runner.tick() and empty.handled, "the message")
    [message] = empty.handled
    assert message.after is not None
    assert message.after["data"] == {"body": 1}
    assert message.pk == {"position": 1}
    assert runner.source.capability().horizon == horizon


def test_effects_in_the_transaction_commit_with_the_checkpoint(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    hf.migrate()
    with hf.database.begin() as connection:
        connection.execute(text(f"CREATE TABLE my_outbox ({SQLITE.columns})"))
        connection.execute(text("CREATE TABLE effects (number INT)"))
        connection.execute(text("INSERT INTO my_outbox (kind, body) VALUES ('Paid', '{\"number\": 5}')"))

    @hf.trigger("my_outbox", strategy="outbox", position="seq", data="body")
    def handle(changes: list[RowChange], context: PollContext) -> None:
        bodies: list[Any] = [change.after and change.after["body"] for change in changes]
        context.transaction.execute(text("INSERT INTO effects VALUES (:number)"), bodies)

    hf.validate()
    runner = hf.runner("my_outbox")
    assert (runner.tick(), runner.tick()) == (1, 0)
    with hf.database.connect() as connection:
        assert connection.execute(text("SELECT number FROM effects")).scalars().all() == [5]
    hf._provider.dispose_all()


def test_a_table_with_nothing_but_a_position_is_an_outbox(sqlite: Service) -> None:
    sqlite.execute(
        "CREATE TABLE ticks (position INTEGER PRIMARY KEY AUTOINCREMENT, note TEXT)",
        "INSERT INTO ticks (note) VALUES ('{}')",
    )
    assert sqlite.declare("ticks").tick() == 1
    [message] = sqlite.handled
    assert message.after == {"position": 1, "note": "{}"}


def late_commit(service: Service, runner: PollRunner) -> list[int]:
    """One transaction writes message 1 and stays open; another commits message 2; the reader looks; 1 commits."""
    with service.hf.database.connect() as slow:
        service.write(1, slow)
        service.write(2)
        look(service, runner)
        slow.commit()
    service.write(3)
    wait_until(lambda: runner.tick() and 3 in service.numbers, "the message that was written last")
    return service.numbers


def look(service: Service, runner: PollRunner) -> None:
    """Give the reader every chance to read what it should not: on MariaDB, until it says whom it waits for."""
    runner.tick()
    runner.tick()
    if service.kind is MARIADB and not service.handled:
        wait_until(
            lambda: runner.tick() or runner.source.fetch_changes({}, 10).held_back_by, "the reader to see the writer"
        )


@on_servers
def test_a_message_that_commits_late_is_delivered_in_its_place(service: Service) -> None:
    assert late_commit(service, service.follow()) == [1, 2, 3]


@on_servers
def test_without_a_horizon_a_message_that_commits_late_is_lost(service: Service) -> None:
    assert late_commit(service, service.follow(horizon="none")) == [2, 3]


@on_barriers
def test_a_barrier_that_does_not_wait_loses_a_message(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    plants.do_not_wait(monkeypatch)
    assert late_commit(service, service.follow()) == [2, 3]


def test_a_low_transaction_that_writes_last_still_comes_first(postgres: Service) -> None:
    """Positions alone would tell another order: the message of the older transaction has the higher one."""
    runner = postgres.follow()
    with postgres.hf.database.connect() as old:
        old.execute(text("SELECT pg_current_xact_id()"))
        postgres.write(2)
        look(postgres, runner)
        assert postgres.numbers == []
        postgres.write(1, old)
        look(postgres, runner)
        old.commit()
    assert postgres.receive(runner, 2) == [1, 2]
    assert [change.pk["seq"] for change in postgres.handled] == [2, 1]


@on_every_kind
def test_gaps_that_a_rollback_leaves_do_no_harm(service: Service) -> None:
    runner = service.follow()
    service.write(1)
    for number in (10, 11):
        with service.hf.database.connect() as connection:
            service.write(number, connection)
            connection.rollback()
    service.write(2)
    assert service.receive(runner, 2) == [1, 2]


@on_every_kind
def test_more_messages_than_a_batch_all_arrive_in_order(service: Service) -> None:
    runner = service.follow(batch_size=4, max_batches_per_tick=2)
    with service.hf.database.begin() as connection:
        for number in range(1, 12):
            service.write(number, connection)
    for number in range(12, 24):
        service.write(number)
    assert service.receive(runner, 23) == list(range(1, 24))


@on_every_kind
def test_only_the_asked_for_types_are_delivered(service: Service) -> None:
    runner = service.follow(types=["Paid", "it's: odd"])
    for number, kind in enumerate(["OrderPlaced", "Paid", "Shipped", "it's: odd", "Shipped"], start=1):
        service.write(number, kind=kind)
    assert service.receive(runner, 2) == [2, 4]
    assert runner.tick() == 0


def test_types_and_a_filter_of_ones_own_both_hold(sqlite: Service) -> None:
    runner = sqlite.follow(types=["Paid"], where="seq > :least OR 1 = 0", parameters={"least": 2})
    for number, kind in enumerate(["Paid", "Paid", "Paid", "Shipped"], start=1):
        sqlite.write(number, kind=kind)
    assert sqlite.receive(runner, 1) == [3]
    with pytest.raises(SourceConfigurationError, match=r"unbalanced parentheses or quotes: a\) OR \(b\."):
        sqlite.follow(name="unbalanced", types=["Paid"], where="a) OR (b")


def test_types_can_be_in_a_column_of_any_name(empty: Service) -> None:
    name = "100% :kind (\"' \\"
    outbox = Table(
        "Out-box: 1",
        MetaData(),
        Column("position", Integer, primary_key=True),
        Column(name, String(20)),
        sqlite_autoincrement=True,
    )
    outbox.create(empty.hf.database)
    with empty.hf.database.begin() as connection:
        connection.execute(outbox.insert(), [{name: "a"}, {name: "b"}])
    runner = empty.declare("Out-box: 1", name="odd", message_type=name, types=["b"])
    wait_until(lambda: runner.tick() and empty.handled, "the message")
    assert [message.pk for message in empty.handled] == [{"position": 2}]


@on_two
def test_an_event_id_is_made_of_the_message_id(service: Service) -> None:
    """A message has the same id through another trigger, after a reset, and in a copy of the outbox."""
    service.write(1)
    service.write(2)
    service.receive(service.follow(), 2)
    service.execute("DELETE FROM my_outbox")
    service.write(2)
    service.receive(service.follow(name="again", types=["OrderPlaced"]), 3)
    first, second, copied = service.handled
    assert first.event_id != second.event_id
    assert copied.event_id == second.event_id
    assert copied.pk != second.pk


def test_two_outboxes_do_not_share_event_ids(sqlite: Service) -> None:
    sqlite.execute("CREATE TABLE other (position INTEGER PRIMARY KEY AUTOINCREMENT, message_id INT, body TEXT)")
    sqlite.execute("CREATE TABLE third (position INTEGER PRIMARY KEY AUTOINCREMENT, message_id INT, body TEXT)")
    for table in ("other", "third"):
        sqlite.execute(f"INSERT INTO {table} (message_id) VALUES (1), (NULL), (NULL)")
        assert sqlite.declare(table).tick() == 3
    assert len({message.event_id for message in sqlite.handled}) == 6


def test_a_message_without_an_id_has_the_event_id_of_its_row(sqlite: Service) -> None:
    sqlite.execute("INSERT INTO my_outbox (kind, body) VALUES ('Paid', '{}')")
    sqlite.follow().tick()
    sqlite.declare("my_outbox", name="plain", strategy="cursor", cursor="seq").tick()
    message, row = sqlite.handled
    assert message.event_id == row.event_id


def test_a_message_is_pickled_like_any_other_event(sqlite: Service) -> None:
    sqlite.write(1)
    sqlite.follow().tick()
    [message] = sqlite.handled
    copied = pickle.loads(pickle.dumps(message))
    assert (copied.event_id, copied.op, copied.after) == (message.event_id, "insert", message.after)


def test_a_normalizer_of_ones_own_gets_decoded_records(sqlite: Service) -> None:
    def normalizer(record: dict[str, object], source: SourceDescriptor) -> RowChange:
        return RowChange(
            event_id=str(record["event_uuid"]),
            op="insert",
            source=source,
            cursor=None,
            pk={},
            before=None,
            after={"number": record["body"]["number"]},  # type: ignore[index]  # it is what the test shows
        )

    sqlite.write(7)
    sqlite.follow(normalizer=normalizer).tick()
    assert [message.after for message in sqlite.handled] == [{"number": 7}]


@pytest.mark.parametrize(
    ("kept", "handed_out"),
    [
        ('{"a": [1, 2.5, null, true]}', {"a": [1, 2.5, None, True]}),
        ("\n [1]", [1]),
        ("17", "17"),
        ("true", "true"),
        ('"text"', '"text"'),
        ("plain text", "plain text"),
        ("", ""),
        ('{"broken": ', '{"broken": '),
        ("[NaN]", "[NaN]"),
        ("[1e999]", "[1e999]"),
        ("[" * 100_000, "[" * 100_000),
        (b"{}", b"{}"),
        (None, None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_text_that_is_a_json_object_or_array_is_decoded(kept: object, handed_out: object) -> None:
    assert decoded(kept) == handed_out


def test_json_that_the_driver_decodes_is_not_decoded_again(postgres: Service) -> None:
    postgres.execute("INSERT INTO my_outbox (kind, body) VALUES ('Paid', to_jsonb(CAST('[1]' AS text)))")
    runner = postgres.follow()
    wait_until(lambda: runner.tick() and postgres.handled, "the message")
    [message] = postgres.handled
    assert message.after is not None
    assert message.after["body"] == "[1]"


def test_a_broken_message_reaches_the_handler_as_it_is(sqlite: Service) -> None:
    sqlite.execute("INSERT INTO my_outbox (kind, body) VALUES ('Paid', '{oops')")
    sqlite.follow().tick()
    [message] = sqlite.handled
    assert message.after is not None
    assert message.after["body"] == "{oops"


def test_each_try_of_a_handler_gets_data_of_its_own(sqlite: Service) -> None:
    seen: list[object] = []

    def handle(changes: list[RowChange]) -> None:
        body: Any = changes[0].after
        seen.append(body["body"].pop("number"))
        if len(seen) == 1:
            raise ValueError("not yet")

    policy = RetryPolicy(max_retries=1, base_delay_seconds=0.001)
    sqlite.hf.trigger("my_outbox", strategy="outbox", position="seq", data="body", retry_policy=policy)(handle)
    sqlite.write(1)
    sqlite.hf.runner("my_outbox").tick()
    assert seen == [1, 1]


def test_a_part_of_a_batch_is_a_batch_of_messages(sqlite: Service) -> None:
    for number in (1, 2, 3):
        sqlite.write(number)
    records = sqlite.follow().source.fetch_changes({}, 10).records
    assert isinstance(records, MessageBatch)
    part = records[1:]
    assert isinstance(part, MessageBatch)
    assert [event.event_id for event in part.events()] == [event.event_id for event in records.events()[1:]]
    assert records[0]["body"] == {"number": 1}


@on_two
def test_a_trigger_by_cursor_becomes_one_by_outbox_where_it_stands(service: Service) -> None:
    service.write(1)
    by_cursor = service.declare(
        "my_outbox", strategy="cursor", cursor="tx_id" if service.kind is PG_XID8 else "seq", key="seq"
    )
    wait_until(lambda: by_cursor.tick() and service.handled, "the first message")
    service.write(2)
    service.handled.clear()
    service.restart()
    assert service.receive(service.follow(), 1) == [2]


def test_other_types_are_another_definition(sqlite: Service) -> None:
    sqlite.write(1)
    assert sqlite.follow(types=["Paid", "OrderPlaced"]).tick() == 1
    sqlite.restart()
    assert sqlite.follow(types=("OrderPlaced", "Paid", "Paid")).tick() == 0
    sqlite.restart()
    with pytest.raises(FingerprintMismatchError):
        sqlite.follow(types=["Paid"]).tick()


def test_the_fingerprints_of_other_triggers_are_what_they_were() -> None:
    """Counted with the version before there were outboxes: a change would make every stored checkpoint unusable."""
    hf = Holdfast("sqlite:////srv/shop.db")
    hf.trigger("orders", cursor="updated_at", key="id")(print)
    hf.trigger("orders", name="drafts", cursor="seq", key=["seq"], where="x <> :draft", parameters={"draft": 1})(print)
    found = [trigger.source.source_descriptor.former_fingerprint for trigger in hf.triggers.values()]
    assert found == [
        "sha256:38ec313f10e0905320bd9e63be59e1bd207d24ec1be5186c6f3aedf089c3c1df",
        "sha256:cf235c34f8bc83063b6cfabb1fc37855fa360ef444ce6206e0decab06dfff967",
    ]


def test_a_partitioned_outbox_is_read_by_position_and_primary_key(postgres: Service) -> None:
    postgres.execute(
        "CREATE TABLE parts (seq BIGSERIAL, tx_id xid8 NOT NULL DEFAULT pg_current_xact_id(), day DATE, body TEXT, "
        "PRIMARY KEY (seq, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE january PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "CREATE TABLE february PARTITION OF parts FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
        "INSERT INTO parts (day, body) VALUES ('2026-02-01', '{\"number\": 1}'), ('2026-01-31', '{\"number\": 2}')",
    )
    runner = postgres.declare("parts", position="seq", transaction="tx_id", data="body", batch_size=1)
    assert postgres.receive(runner, 2) == [1, 2]
    assert set(postgres.handled[0].pk) == {"seq", "day"}


def test_an_outbox_in_a_schema_of_its_own(postgres: Service) -> None:
    postgres.execute(
        "CREATE SCHEMA app",
        "CREATE TABLE app.events (seq BIGSERIAL PRIMARY KEY, kind text, body text)",
        "INSERT INTO app.events (kind, body) VALUES ('Paid', '{\"number\": 1}'), ('Shipped', '{}')",
    )
    runner = postgres.declare("events", schema="app", position="seq", message_type="kind", data="body", types=["Paid"])
    assert postgres.receive(runner, 1) == [1]


def test_a_transaction_column_is_not_used_where_positions_are_asked_for(postgres: Service) -> None:
    assert postgres.follow(transaction=None, horizon="identity").source.capability().horizon == "identity"


def test_positions_that_the_application_fills_can_be_looked_back_on(sqlite: Service) -> None:
    sqlite.execute("CREATE TABLE own (position INT PRIMARY KEY NOT NULL, note TEXT)", "INSERT INTO own VALUES (5, '')")
    with pytest.raises(SourceConfigurationError, match="is not filled by the database"):
        sqlite.declare("own").source.open()
    runner = sqlite.declare("own", name="back", lookback=10)
    assert runner.tick() == 1
    sqlite.execute("INSERT INTO own VALUES (3, '')")
    wait_until(runner.tick, "the lower position")
    assert [message.pk["position"] for message in sqlite.handled] == [5, 3]


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"strategy": "inbox"}, "strategy='inbox' is not known: use 'cursor' or 'outbox'."),
        ({"cursor": "seq"}, "cursor=… does not go with strategy='outbox': name the outbox's columns with position=…"),
        ({"key": "seq"}, "key=… does not go with strategy='outbox': messages are told apart by position=…"),
        ({"query": "SELECT 1"}, "query=… does not go with strategy='outbox': pass the name of the outbox table."),
        ({"created_column": "at"}, "created_column=… does not go with strategy='outbox': every message is an insert."),
        ({"deleted_column": "at"}, "deleted_column=… does not go with strategy='outbox': every message is an insert."),
        ({"source": "mine"}, "source=… does not go with strategy='outbox': a source of your own"),
        ({"types": "Paid"}, "types must be a list of message types, as in ['OrderPlaced'], not 'Paid'."),
        ({"types": []}, "types must be a list of message types, as in ['OrderPlaced'], not []."),
        ({"types": [1]}, "types must be a list of message types, as in ['OrderPlaced'], not [1]."),
        ({"transaction": "tx", "lookback": 5}, "transaction=… has a sound horizon of its own: leave out lookback=…"),
        ({"transaction": "tx", "horizon": "identity"}, "or leave out transaction=… to read by position alone."),
        ({"strategy": "cursor", "cursor": "seq", "types": ["Paid"]}, "types=… is for an outbox: add strategy='outbox'"),
        ({"strategy": "cursor", "cursor": "seq", "data": "body"}, "data=… is for an outbox: add strategy='outbox'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_declaration_that_makes_no_sense_is_refused_at_once(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Holdfast("sqlite:///nowhere.db").trigger("my_outbox", **{"strategy": "outbox", **settings})
    assert wrong in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_outbox_without_a_table_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'mail' with strategy='outbox' needs the name of the outbox table"):
        Holdfast("sqlite:///nowhere.db").trigger(name="mail", strategy="outbox")


HAS = "set {}=… to one of those it has, seq, event_uuid, kind, body"


@on_two
def test_a_named_column_that_is_not_there_is_refused(service: Service) -> None:
    for role in ("position", "transaction", "message_id", "message_type", "data"):
        with pytest.raises(SourceConfigurationError) as refused:
            service.follow(name=role, **{role: "nonesuch"})
        assert f"Table 'my_outbox' has no column 'nonesuch': {HAS.format(role)}" in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({}, f"Table 'my_outbox' has no column 'position': {HAS.format('position')}."),
        (
            {"position": "seq", "types": ["Paid"]},
            f"Table 'my_outbox' has no column 'message_type': {HAS.format('message_type')}.",
        ),
        ({"position": "kind", "transaction": "seq"}, "Column 'seq' of table 'my_outbox' is of type integer, but"),
        ({"position": "event_uuid"}, "Column 'event_uuid' of table 'my_outbox' may be NULL, and a message without its"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_columns_that_do_not_fit_are_refused(sqlite: Service, settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(SourceConfigurationError) as refused:
        sqlite.declare("my_outbox", **settings)
    assert wrong in str(refused.value)


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        ("position BIGINT UNIQUE", "Column 'position' of table 'mail' may be NULL"),
        ("position BIGSERIAL PRIMARY KEY, transaction_id xid8", "Column 'transaction_id' of table 'mail' may be NULL"),
        (
            "position BIGSERIAL, transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id()",
            "No unique constraint of table 'mail' lies within its cursor and key (transaction_id, position)",
        ),
        ("position BIGINT PRIMARY KEY", "Column 'position' of table 'mail' is not filled by the database"),
    ],
)
def test_an_outbox_that_could_lose_messages_is_refused(postgres: Service, columns: str, wrong: str) -> None:
    postgres.execute(f"CREATE TABLE mail ({columns})")
    with pytest.raises(SourceConfigurationError) as refused:
        postgres.declare("mail").source.open()
    assert wrong in str(refused.value)


def test_a_view_is_refused(empty: Service) -> None:
    empty.execute("CREATE TABLE mail (position INT PRIMARY KEY)", "CREATE VIEW shown AS SELECT * FROM mail")
    with pytest.raises(SourceConfigurationError, match="'shown' is not a table but a view of one"):
        empty.declare("shown")


def test_a_materialized_view_is_refused(postgres: Service) -> None:
    postgres.execute("CREATE MATERIALIZED VIEW shown AS SELECT * FROM my_outbox")
    with pytest.raises(SourceConfigurationError, match="'shown' is not a table but a view of one"):
        postgres.declare("shown", position="seq")


def test_a_table_that_is_not_there_is_refused(sqlite: Service) -> None:
    with pytest.raises(SourceConfigurationError, match=r"Table 'mail' not found in the database\."):
        sqlite.declare("mail")


def test_a_database_that_does_not_answer_can_be_tried_again() -> None:
    hf = Holdfast(f"postgresql://nobody:s3cret@{HOST}:{free_port()}/shop")
    hf.trigger("my_outbox", strategy="outbox")(print)
    with pytest.raises(DbConnectionError) as refused:
        hf.runner("my_outbox")
    assert "s3cret" not in str(refused.value)


def test_a_column_that_is_dropped_meanwhile_is_told(sqlite: Service) -> None:
    runner = sqlite.follow()
    sqlite.write(1)
    assert runner.tick() == 1
    sqlite.execute("ALTER TABLE my_outbox DROP COLUMN body")
    sqlite.execute("INSERT INTO my_outbox (kind) VALUES ('Paid')")
    with pytest.raises(SourceConfigurationError, match="'my_outbox' has lost its column 'body' since the trigger"):
        wait_until(runner.tick, "the lost column")
