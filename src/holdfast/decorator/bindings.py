"""The decorators. Each checks what it can when it is applied, and does its database work around each call."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..binding.reader import DbReader
from ..binding.writer import DbWriter
from ..core.config import DbConfig
from ..core.engine import EngineProvider
from ..core.errors import ConfigurationError, NotFoundError
from ..core.normalizer import EventNormalizer
from ..core.retry import RetryPolicy
from ..core.telemetry import MetricsCollector
from ..state.foreign import ForeignStateStore
from ..state.store import StateStore
from ..trigger.poll import PollTrigger
from ..trigger.sources.protocol import SimpleSource, SourceAdapter
from .async_proxies import AsyncDbOut, AsyncDbReader, AsyncDbWriter
from .composition import check_composition, mark
from .metadata import add_metadata, shown_url
from .models import check_model, to_model
from .out import DbOut
from .signatures import Resolver, check_argument, hide, resolve, resolver_parameters
from .triggering import triggered

Handler = Callable[..., Any]
Decorator = Callable[[Handler], Handler]
_shared_engines = EngineProvider()


class DbBindings:
    """Decorators for Azure Functions handlers. They go below the host's own (``@app.route``, ``@app.schedule``, …).

    ``trigger`` delivers changed rows, ``input`` passes query results, ``output`` a ``DbOut`` to write with;
    ``inject_reader`` and ``inject_writer`` pass a ``DbReader`` or ``DbWriter``. Handlers are ``def`` or ``async def``.
    """

    def trigger(
        self,
        *,
        arg_name: str,
        source: SourceAdapter | SimpleSource,
        checkpoint_store: StateStore | ForeignStateStore,
        name: str | None = None,
        normalizer: EventNormalizer | None = None,
        batch_size: int = 100,
        max_batches_per_tick: int = 1,
        lease_ttl_seconds: int = 120,
        retry_policy: RetryPolicy | None = None,
        metrics: MetricsCollector | None = None,
        model: type | None = None,
    ) -> Decorator:
        """Poll ``source`` on every invocation and pass what changed as ``arg_name`` (and a ``context``, if asked for).

        With ``model``, each event also holds its row as an object, ``event.row``.

        Raises:
            ConfigurationError: the handler has no such parameter, or a setting is wrong.
        """
        check_model(model, "trigger")

        def decorate(function: Handler) -> Handler:
            check_composition(function, "trigger")
            check_argument(function, arg_name, "trigger")
            trigger = PollTrigger(
                name=name or str(getattr(function, "__name__", "trigger")),
                source=source,
                checkpoint_store=checkpoint_store,
                normalizer=normalizer,
                batch_size=batch_size,
                max_batches_per_tick=max_batches_per_tick,
                lease_ttl_seconds=lease_ttl_seconds,
                retry_policy=retry_policy,
                metrics=metrics,
            )
            wrapper = triggered(function, trigger, arg_name, model)
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
        reading = _Reading(
            {
                "url": url,
                "db_config": db_config,
                "table": table,
                "schema": schema,
                "engine_provider": engine_provider or _shared_engines,
            },
            query,
            model,
            on_not_found,
        )

        def decorate(function: Handler) -> Handler:
            check_composition(function, "input")
            check_argument(function, arg_name, "input")
            wanted = pk if query is None else params
            arguments = _argument_maker(wanted, function, arg_name, "pk" if query is None else "params")

            def read(*args: Any, **kwargs: Any) -> Callable[[], Any]:
                given = arguments(args, kwargs)
                return lambda: reading.read(given)

            described: dict[str, Any] = {"kind": "input", "parameter": arg_name, "connection_setting": shown_url(url)}
            described |= {
                "resource": {"table": table} if table else {},
                "query_kind": "pk" if query is None else "text",
            }
            if model is not None:
                described["model_ref"] = f"{model.__module__}:{model.__qualname__}"
            wrapper = _with_value(function, arg_name, read)
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
            ConfigurationError: the action is not known, or an upsert has no ``conflict_columns``.
        """
        if action not in ("insert", "upsert"):
            raise ConfigurationError(f"output: action must be 'insert' or 'upsert', not {action!r}.")
        if action == "upsert" and not conflict_columns:
            raise ConfigurationError("output: action='upsert' needs conflict_columns=[…], the columns that name a row.")

        def decorate(function: Handler) -> Handler:
            check_composition(function, "output")
            check_argument(function, arg_name, "output")
            out = DbOut(
                url=url,
                db_config=db_config,
                table=table,
                schema=schema,
                action=action,
                conflict_columns=conflict_columns,
                engine_provider=engine_provider or _shared_engines,
            )
            value = AsyncDbOut(out) if inspect.iscoroutinefunction(function) else out

            def passed(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **{**kwargs, arg_name: value})

            wrapper = functools.wraps(function)(_as_kind_of(function, passed))
            described = {
                "kind": "output",
                "parameter": arg_name,
                "connection_setting": shown_url(url),
                "resource": {"table": table},
            }
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
            lambda: DbReader(url=url, db_config=db_config, table=table, schema=schema, engine_provider=engine_provider),
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
            lambda: DbWriter(url=url, db_config=db_config, table=table, schema=schema, engine_provider=engine_provider),
            AsyncDbWriter,
        )


@dataclass(frozen=True, slots=True)
class _Reading:
    """What ``input`` reads."""

    target: dict[str, Any]
    query: str | None
    model: type | None
    on_not_found: str

    def read(self, given: dict[str, object]) -> Any:
        with DbReader(**self.target) as reader:
            if self.query is not None:
                rows = reader.query(self.query, params=given)
                return rows if self.model is None else [to_model(self.model, row) for row in rows]
            row = reader.get(pk=given)
        if row is None and self.on_not_found == "raise":
            raise NotFoundError(f"input: table '{self.target['table']}' has no row with {given}.")
        return row if row is None or self.model is None else to_model(self.model, row)


def _check_input(pk: object, query: object, params: object, table: object, on_not_found: object) -> None:
    for broken, message in (
        ((pk is None) == (query is None), "input: pass exactly one of pk (one row) or query (many rows)."),
        (pk is not None and table is None, "input: pk needs table=…, the table to look into."),
        (params is not None and query is None, "input: params belong to query; with pk they have no meaning."),
        (
            on_not_found not in ("none", "raise"),
            f"input: on_not_found must be 'none' or 'raise', not {on_not_found!r}.",
        ),
    ):
        if broken:
            raise ConfigurationError(message)


def _argument_maker(
    wanted: dict[str, object] | Resolver | None, function: Handler, arg_name: str, label: str
) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, object]]:
    """Return what turns a call's arguments into the values to read with."""
    if not callable(wanted):
        return lambda args, kwargs: dict(wanted or {})
    names = resolver_parameters(wanted, function, arg_name, label)
    signature = inspect.signature(function)
    return lambda args, kwargs: resolve(wanted, names, signature.bind_partial(*args, **kwargs).arguments)


def _with_value(function: Handler, arg_name: str, read: Callable[..., Callable[[], Any]]) -> Handler:
    """Return a wrapper that reads (off the loop, for an async handler) and passes what it got."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            kwargs[arg_name] = await asyncio.to_thread(read(*args, **kwargs))
            return await function(*args, **kwargs)

        return async_wrapper

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kwargs[arg_name] = read(*args, **kwargs)()
        return function(*args, **kwargs)

    return wrapper


def _injecting(
    arg_name: str,
    kind: str,
    label: str,
    make: Callable[[], DbReader | DbWriter],
    async_form: Callable[[Any], Any],
) -> Decorator:
    def decorate(function: Handler) -> Handler:
        check_composition(function, kind)
        check_argument(function, arg_name, kind)
        wrapper = _with_resource(function, arg_name, make, async_form)
        return _finished(wrapper, function, arg_name, kind, injection={"kind": label, "parameter": arg_name})

    return decorate


def _with_resource(
    function: Handler, arg_name: str, make: Callable[[], DbReader | DbWriter], async_form: Callable[[Any], Any]
) -> Handler:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            resource = make()
            try:
                return await function(*args, **{**kwargs, arg_name: async_form(resource)})
            finally:
                await asyncio.to_thread(resource.close)

        return async_wrapper

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with make() as resource:
            return function(*args, **{**kwargs, arg_name: resource})

    return wrapper


def _as_kind_of(function: Handler, call: Handler) -> Handler:
    """Return ``call`` as a coroutine function when the handler is one: the host looks at that."""
    if not inspect.iscoroutinefunction(function):
        return call

    async def awaiting(*args: Any, **kwargs: Any) -> Any:
        return await call(*args, **kwargs)

    return awaiting


def _finished(wrapper: Handler, function: Handler, arg_name: str, kind: str, **described: dict[str, Any]) -> Handler:
    hide(wrapper, function, {arg_name})
    mark(wrapper, kind)
    add_metadata(wrapper, **described)
    return wrapper
