"""The decorators. Each checks what it can when it is applied, and does its database work around each call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..binding.reader import DbReader
from ..binding.writer import DbWriter
from ..core.config import DbConfig
from ..core.errors import ConfigurationError, NotFoundError
from ..core.keywords import picked, require_known, takes
from ..core.normalizer import EventNormalizer
from ..core.retry import RetryPolicy
from ..core.telemetry import MetricsCollector
from ..database.pools import EngineProvider
from ..lease.foreign import ForeignStateStore
from ..lease.store import StateStore
from ..trigger.sources.outbox_columns import OutboxDefinition
from ..trigger.sources.protocol import SimpleSource, SourceAdapter
from ..trigger.sources.update_proof import check_updates
from .async_proxies import AsyncDbOut, AsyncDbReader, AsyncDbWriter
from .awaited import TrackedCalls
from .composition import check_composition, mark
from .metadata import add_metadata, shown_url
from .models import check_model, to_model
from .off_loop import off_loop, to_the_end
from .out import DbOut
from .polling import BindingSettings, OutboxTable, finding, polling, shared_engines, trust_updates
from .signatures import check_argument, hide, named, resolving
from .targets import Target
from .trigger_names import claim_name, remember_source
from .triggering import triggered

if TYPE_CHECKING:
    from typing import Unpack

    from ..trigger.options import BindingOptions

Handler = Callable[..., Any]
Decorator = Callable[[Handler], Handler]


class DbBindings:
    """Decorators for Azure Functions handlers. They go below the host's own (``@app.route``, ``@app.schedule``, …).

    ``trigger`` delivers changed rows, ``input`` passes query results, ``output`` a ``DbOut`` to write with;
    ``inject_reader`` and ``inject_writer`` pass a ``DbReader`` or ``DbWriter``. Handlers are ``def`` or ``async def``.
    """

    @takes(BindingSettings, OutboxDefinition, OutboxTable)
    def trigger(
        self,
        *,
        arg_name: str,
        source: SourceAdapter | SimpleSource | str,
        checkpoint_store: StateStore | ForeignStateStore,
        name: str | None = None,
        normalizer: EventNormalizer | None = None,
        batch_size: int = 100,
        max_batches_per_tick: int = 1,
        lease_ttl_seconds: int = 120,
        retry_policy: RetryPolicy | None = None,
        metrics: MetricsCollector | None = None,
        **options: Unpack[BindingOptions],
    ) -> Decorator:
        """Poll ``source`` on every invocation and pass what changed as ``arg_name`` (and a ``context``, if asked for).

        With ``model``, each event also holds its row as an object, ``event.row``. ``updates="trusted"`` says that every
        update sets the cursor to the database's clock where the database cannot prove it.

        With ``strategy="outbox"``, ``source`` is the name of a table of messages. It takes ``url`` or ``db_config``,
        ``schema``, the names of the table's columns where they are others (``position``, ``transaction``,
        ``message_id``, ``message_type``, ``data``), ``types``, ``where``, ``parameters``, ``horizon``, ``lookback`` and
        ``engine_provider``, as ``hf.trigger`` does. The table is looked up by the first invocation.

        Raises:
            ConfigurationError: the handler has no such parameter, a setting is wrong, or another function's trigger has
                this name on the same ``checkpoint_store``.
        """
        require_known("trigger", options, BindingSettings, OutboxDefinition, OutboxTable)
        own, columns = picked(BindingSettings, options), picked(OutboxDefinition, options)
        table = picked(OutboxTable, options)
        check_model(own.model, "trigger")
        check_updates(own.updates)
        if own.updates is not None:
            trust_updates(source)

        def decorate(function: Handler) -> Handler:
            check_composition(function, "trigger")
            check_argument(function, arg_name, "trigger")
            trigger_name = name or str(getattr(function, "__name__", "trigger"))
            trigger = polling(
                own.strategy,
                source,
                columns,
                table,
                name=trigger_name,
                checkpoint_store=checkpoint_store,
                normalizer=normalizer,
                batch_size=batch_size,
                max_batches_per_tick=max_batches_per_tick,
                lease_ttl_seconds=lease_ttl_seconds,
                retry_policy=retry_policy,
                metrics=metrics,
            )
            wrapper = triggered(function, trigger, arg_name, own.model)
            claim_name(checkpoint_store, trigger_name, function)
            remember_source(checkpoint_store, trigger_name, finding(source, trigger))
            mark(wrapper, "trigger")
            add_metadata(wrapper, binding={"kind": "trigger", "parameter": arg_name})
            return wrapper

        return decorate

    def input(
        self,
        arg_name: str,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | None = None,
        schema: str | None = None,
        pk: dict[str, object] | Callable[..., dict[str, object]] | None = None,
        query: str | None = None,
        params: dict[str, object] | Callable[..., dict[str, object]] | None = None,
        model: type | None = None,
        on_not_found: Literal["none", "raise"] = "none",
        engine_provider: EngineProvider | None = None,
    ) -> Decorator:
        """Read before the handler runs, and pass the result as ``arg_name``.

        With ``pk`` (and ``table``) it is one row or None, with ``query`` a list of rows. ``pk`` and ``params`` may be
        functions of the handler's other parameters. With ``model``, rows become objects.

        Raises:
            ConfigurationError: the arguments do not fit each other or the handler.
        """
        _check_input(pk, query, params, table, on_not_found)
        check_model(model, "input")
        target = Target("input", url, db_config, table, schema, engine_provider or shared_engines)
        reading = _Reading(target, query, model, on_not_found)
        described: dict[str, Any] = {"kind": "input", "parameter": arg_name, "connection_setting": shown_url(url)}
        described |= {"resource": {"table": table} if table else {}, "query_kind": "pk" if query is None else "text"}
        if model is not None:
            described["model_ref"] = f"{model.__module__}:{model.__qualname__}"

        def decorate(function: Handler) -> Handler:
            check_composition(function, "input")
            check_argument(function, arg_name, "input")
            wanted, label = (pk, "pk") if query is None else (params, "params")
            values = resolving(wanted, function, arg_name, label)
            wrapper = _with_value(function, arg_name, lambda given: functools.partial(reading.read, values(given)))
            return _finished(wrapper, function, arg_name, "input", binding=described)

        return decorate

    def output(
        self,
        arg_name: str,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str,
        schema: str | None = None,
        action: Literal["insert", "upsert"] = "insert",
        conflict_columns: list[str] | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> Decorator:
        """Pass a ``DbOut`` as ``arg_name``; the handler calls its ``set`` (awaits it, if async) to write rows.

        Raises:
            ConfigurationError: the action is not known, or it and ``conflict_columns`` do not fit each other.
        """
        if action not in ("insert", "upsert"):
            raise ConfigurationError(f"output: action must be 'insert' or 'upsert', not {action!r}.")
        target = Target("output", url, db_config, table, schema, engine_provider or shared_engines)
        if action == "upsert":
            target.check_upsert(conflict_columns)
        elif conflict_columns:
            raise ConfigurationError(
                "output: conflict_columns mean nothing to an insert. Pass action='upsert' with them."
            )
        described: dict[str, Any] = {"kind": "output", "parameter": arg_name, "connection_setting": shown_url(url)}
        described |= {"resource": {"table": table}}

        def decorate(function: Handler) -> Handler:
            check_composition(function, "output")
            check_argument(function, arg_name, "output")
            out = DbOut(**target.settings, action=action, conflict_columns=conflict_columns)
            wrapper = _with_output(function, arg_name, out)
            return _finished(wrapper, function, arg_name, "output", binding=described)

        return decorate

    def inject_reader(
        self,
        arg_name: str,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | None = None,
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> Decorator:
        """Pass a fresh ``DbReader`` as ``arg_name`` (with awaitable methods, if async), closed after the handler."""
        return _injecting(
            arg_name,
            "inject_reader",
            "reader",
            Target("inject_reader", url, db_config, table, schema, engine_provider).reader,
            AsyncDbReader,
        )

    def inject_writer(
        self,
        arg_name: str,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str,
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> Decorator:
        """Pass a fresh ``DbWriter`` as ``arg_name`` (with awaitable methods, if async), closed after the handler."""
        return _injecting(
            arg_name,
            "inject_writer",
            "writer",
            Target("inject_writer", url, db_config, table, schema, engine_provider).writer,
            AsyncDbWriter,
        )


@dataclass(frozen=True, slots=True)
class _Reading:
    """What ``input`` reads."""

    target: Target
    query: str | None
    model: type | None
    on_not_found: str

    def read(self, given: dict[str, object]) -> Any:
        with self.target.reader() as reader:
            if self.query is not None:
                rows = reader.query(self.query, params=given)
                return rows if self.model is None else [to_model(self.model, row) for row in rows]
            row = reader.get(pk=given)
        if row is None and self.on_not_found == "raise":
            raise NotFoundError(f"input: table '{self.target.table}' has no row with {given}.")
        return row if row is None or self.model is None else to_model(self.model, row)


def _check_input(pk: object, query: object, params: object, table: object, on_not_found: object) -> None:
    for broken, message in (
        ((pk is None) == (query is None), "input: pass exactly one of pk (one row) or query (many rows)."),
        (pk == {}, "input: pk must not be empty: name every column of the primary key."),
        (query is not None and not (isinstance(query, str) and query.strip()), "input: query must be a SQL text."),
        (pk is not None and table is None, "input: pk needs table=…, the table to look into."),
        (params is not None and query is None, "input: params belong to query; with pk they have no meaning."),
        (
            on_not_found not in ("none", "raise"),
            f"input: on_not_found must be 'none' or 'raise', not {on_not_found!r}.",
        ),
        (
            on_not_found == "raise" and query is not None,
            "input: on_not_found='raise' belongs to pk; a query that finds nothing gives an empty list.",
        ),
    ):
        if broken:
            raise ConfigurationError(message)


def _with_value(function: Handler, arg_name: str, prepare: Callable[[dict[str, Any]], Callable[[], Any]]) -> Handler:
    """Return a wrapper that reads (off the loop, for an async handler) and passes what it got."""
    arguments = named(function, {arg_name})
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            given = arguments(args, kwargs)
            return await function(**{**given, arg_name: await off_loop(prepare(given))})

        return async_wrapper

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = arguments(args, kwargs)
        return function(**{**given, arg_name: prepare(given)()})

    return wrapper


def _with_output(function: Handler, arg_name: str, out: DbOut) -> Handler:
    """Return a wrapper that passes the output, in its form for async handlers when the handler is one."""
    arguments = named(function, {arg_name})
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            return await _watched(function, arguments(args, kwargs), arg_name, AsyncDbOut(out))

        return async_wrapper

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(**{**arguments(args, kwargs), arg_name: out})

    return wrapper


async def _watched(function: Handler, given: dict[str, Any], arg_name: str, proxy: TrackedCalls) -> Any:
    """Call an async handler; raise if it returned without having awaited what it called."""
    try:
        result = await function(**{**given, arg_name: proxy})
    except BaseException:
        proxy.drop_unfinished()
        raise
    proxy.require_awaited(arg_name)
    return result


def _injecting(
    arg_name: str,
    kind: str,
    label: str,
    make: Callable[[], DbReader | DbWriter],
    async_form: Callable[[Any], TrackedCalls],
) -> Decorator:
    def decorate(function: Handler) -> Handler:
        check_composition(function, kind)
        check_argument(function, arg_name, kind)
        wrapper = _with_resource(function, arg_name, make, async_form)
        return _finished(wrapper, function, arg_name, kind, injection={"kind": label, "parameter": arg_name})

    return decorate


def _with_resource(
    function: Handler, arg_name: str, make: Callable[[], DbReader | DbWriter], async_form: Callable[[Any], TrackedCalls]
) -> Handler:
    """Return a wrapper that passes a new reader or writer, and closes it whatever happens."""
    arguments = named(function, {arg_name})
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            given = arguments(args, kwargs)
            resource = make()
            try:
                return await _watched(function, given, arg_name, async_form(resource))
            finally:
                await to_the_end(resource.close)

        return async_wrapper

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = arguments(args, kwargs)
        with make() as resource:
            return function(**{**given, arg_name: resource})

    return wrapper


def _finished(wrapper: Handler, function: Handler, arg_name: str, kind: str, **described: dict[str, Any]) -> Handler:
    hide(wrapper, function, {arg_name})
    mark(wrapper, kind)
    add_metadata(wrapper, **described)
    return wrapper
