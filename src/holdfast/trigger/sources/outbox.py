"""A team's own outbox table as a source: every committed message, in order, none skipped.

The service writes messages into a table of its own; this source only reads it. It is no second way of polling: the
columns the table has decide the cursor (``outbox_columns.py``), and ``SqlAlchemySource`` reads the rows below the
horizon that fits it. What is added is what makes a row a message (``outbox_messages.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from ...core.clock import Clock
from ...core.config import DbConfig
from ...core.errors import ConfigurationError, SourceConfigurationError
from ...core.events import RowBatch, RowShape
from ...core.types import JsonObject
from ...database.errors import connection_error
from ...database.pools import EngineProvider
from ...database.reflection import qualified
from .outbox_columns import OutboxDefinition, look_up
from .outbox_messages import MessageBatch, MessageShape, insert
from .protocol import AdapterCapability, FetchResult
from .settings import is_balanced, one_condition
from .sqlalchemy import SqlAlchemySource
from .update_proof import UpdateProof

if TYPE_CHECKING:
    from typing import Unpack

    from ..options import HorizonOptions

STRATEGIES: tuple[str, ...] = ("cursor", "outbox")

_TRANSACTION_HORIZONS = frozenset({"auto", "xid8", "none"})
_TYPE_PARAM = "holdfast_type_{}"
_INSTEAD = {
    "cursor": "name the outbox's columns with position=… and, for one of type xid8, transaction=…",
    "key": "messages are told apart by position=…",
    "query": "pass the name of the outbox table",
    "source": "a source of your own has a strategy of its own",
    "created_column": "every message is an insert",
    "deleted_column": "every message is an insert",
    "cursor_timezone": "messages are read by position",
}


def check_strategy(trigger: str, strategy: str, outbox: OutboxDefinition, settings: Mapping[str, object]) -> None:
    """Refuse a declaration whose parts do not go together. ``settings`` are the trigger's other settings by name.

    Raises:
        ConfigurationError: the first thing that is wrong.
    """
    if strategy not in STRATEGIES:
        raise ConfigurationError(f"Trigger '{trigger}': strategy={strategy!r} is not known: use 'cursor' or 'outbox'.")
    if strategy == "cursor":
        if outbox.given:
            raise ConfigurationError(
                f"Trigger '{trigger}': {outbox.given[0]}=… is for an outbox: add strategy='outbox', or leave it out."
            )
        return
    for setting, advice in _INSTEAD.items():
        if settings.get(setting) is not None:
            raise ConfigurationError(f"Trigger '{trigger}': {setting}=… does not go with strategy='outbox': {advice}.")
    if not settings.get("table"):
        raise ConfigurationError(f"Trigger '{trigger}' with strategy='outbox' needs the name of the outbox table.")
    if outbox.transaction is not None and not _reads_by_transaction(settings.get("horizon"), settings.get("lookback")):
        raise ConfigurationError(
            f"Trigger '{trigger}': transaction=… has a sound horizon of its own: leave out lookback=… and horizon=…, "
            "or leave out transaction=… to read by position alone."
        )
    outbox.check_types()


def _reads_by_transaction(horizon: object, lookback: object) -> bool:
    """Return whether a transaction column would be used: the other horizons, and a lookback, are about positions."""
    return lookback is None and horizon in _TRANSACTION_HORIZONS


class OutboxSource(SqlAlchemySource):
    """Messages of an outbox table, under whatever names its columns have.

    Args:
        outbox: the columns and the types to deliver.
        table: the outbox table (with ``schema``); no view.
        where: a further filter, with ``parameters`` for its binds.
        horizon: how far it is safe to read. ``auto``: with a transaction column of type xid8 below the oldest running
            transaction, otherwise by what fills the position column.
        lookback: re-read this window of positions, where the application fills them.

    Unlike other sources it looks the table up when it is made, because what the table has decides what the cursor is.

    Raises:
        SourceConfigurationError: the table or a column does not fit; the message says what to do.
        DbConnectionError: the database does not answer.
    """

    def __init__(
        self,
        outbox: OutboxDefinition,
        *,
        table: str,
        schema: str | None = None,
        db_config: DbConfig,
        engine_provider: EngineProvider,
        where: str | None = None,
        parameters: dict[str, object] | None = None,
        clock: Clock | None = None,
        **options: Unpack[HorizonOptions],
    ) -> None:
        options.setdefault("horizon", "auto")
        by_transaction = _reads_by_transaction(options["horizon"], options.get("lookback"))
        engine = engine_provider.get_engine(db_config)
        try:
            found = look_up(engine, table, schema, outbox, uses_transaction=by_transaction)
        except DBAPIError as error:
            raise connection_error(engine.url, error) from error
        condition, binds = _type_filter(engine.dialect.name, table, found.message_type, outbox.types)
        super().__init__(
            db_config=db_config,
            engine_provider=engine_provider,
            table=table,
            schema=schema,
            cursor_column=found.transaction or found.position,
            pk_columns=list(found.keys),
            where=_both(condition, one_condition(where)),
            parameters={**(parameters or {}), **binds},
            clock=clock,
            **options,
        )
        self._columns = found
        self._outbox_name = qualified(table, schema)
        self._descriptor = replace(self._descriptor, kind="outbox")

    def capability(self) -> AdapterCapability:
        """Return what this source can promise: messages are only ever added."""
        return replace(
            super().capability(),
            detects_updates=False,
            updates="inserts only",
            updates_because="messages of an outbox are only ever added",
            prove_updates_with=None,
        )

    def _log_proof(self, proof: UpdateProof) -> None:
        """Say nothing: messages are only ever added, so there are no updates to be proved."""

    def fetch_changes(self, checkpoint: JsonObject, limit: int) -> FetchResult:
        """Return at most ``limit`` messages after ``checkpoint``, in order, strictly below the horizon.

        Raises:
            FetchError: the database could not be read; a retry can help.
            SourceConfigurationError: the definition is wrong.
            SerializationError: the checkpoint cannot be understood.
        """
        found = super().fetch_changes(checkpoint, limit)
        if not isinstance(found.records, RowBatch):
            return found
        return replace(found, records=MessageBatch(self._message_shape(found.records.shape), found.records.rows))

    def _message_shape(self, shape: RowShape) -> MessageShape:
        """Return where a message's parts are in these rows: a table that changed meanwhile was looked up again."""
        message_id, data = self._columns.message_id, self._columns.text_data
        for name in (message_id, data):
            if name is not None and name not in shape.row_columns:
                raise SourceConfigurationError(
                    f"Table '{self._outbox_name}' has lost its column '{name}' since the trigger started; it has: "
                    f"{', '.join(shape.row_columns)}."
                )
        return MessageShape(
            source=shape.source,
            row_columns=shape.row_columns,
            cursor_at=shape.cursor_at,
            keys=shape.keys,
            operation=insert,
            outbox=self._outbox_name,
            message_id_at=None if message_id is None else shape.row_columns.index(message_id),
            text_data=data,
        )


def _type_filter(
    dialect_name: str, table: str, column: str | None, types: Sequence[str] | None
) -> tuple[str | None, dict[str, object]]:
    """Return the condition for the types to deliver, and its binds: the same for the same types in any order.

    The text goes into the source's fingerprint, so it must not depend on how a session is set up to quote.
    """
    if column is None or types is None:
        return None, {}
    quote = "`" if dialect_name in ("mysql", "mariadb") else '"'
    name = ".".join(f"{quote}{part.replace(quote, 2 * quote)}{quote}" for part in (table, column))
    binds: dict[str, object] = {_TYPE_PARAM.format(at): each for at, each in enumerate(sorted(set(types)))}
    listed = ", ".join(f":{bind}" for bind in binds)
    return f"{name.replace(':', chr(92) + ':')} IN ({listed})", binds


def _both(condition: str | None, where: str | None) -> str | None:
    """Return one condition. An unbalanced one goes on alone, to be refused as what the user wrote."""
    if condition is None or where is None or not is_balanced(where):
        return condition if where is None else where
    return f"{condition} AND ({where}\n)"
