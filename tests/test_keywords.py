"""Keywords that a function takes in groups: they are shown, typed and refused as if each stood in its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    BoundJob,
    DbBindings,
    EngineDefinition,
    Engines,
    Holdfast,
    Jobs,
    PollRunner,
    PollTrigger,
    Processors,
    SqlAlchemySource,
)
from holdfast.core.keywords import picked, require_known, takes
from holdfast.engines.options import EngineOptions, IdOptions, MessageOptions
from holdfast.jobs.grpc.client import RemoteQueue
from holdfast.jobs.options import EnqueueOptions, JobOptions, RemoteEnqueueOptions
from holdfast.outbox.options import ProcessorOptions
from holdfast.resources import ApplicationOptions
from holdfast.trigger.options import BindingOptions, PollOptions, RunnerOptions, SourceOptions, TriggerOptions
from holdfast.trigger.triggers import Triggers

GROUPED: dict[Callable[..., Any], type] = {
    Holdfast: ApplicationOptions,
    Triggers.trigger: TriggerOptions,
    DbBindings.trigger: BindingOptions,
    PollRunner: RunnerOptions,
    PollTrigger: PollOptions,
    SqlAlchemySource: SourceOptions,
    Jobs.job: JobOptions,
    BoundJob.options: EnqueueOptions,
    RemoteQueue.enqueue: RemoteEnqueueOptions,
    Processors.processor: ProcessorOptions,
    Processors.relay: ProcessorOptions,
    Engines.engine: EngineOptions,
    Engines.send: IdOptions,
    EngineDefinition.send: MessageOptions,
}


@pytest.mark.parametrize("function", GROUPED, ids=lambda function: function.__qualname__)
def test_what_is_typed_is_what_is_taken(function: Callable[..., Any]) -> None:
    code = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]  # its own one
    written = {*code.__code__.co_varnames[: code.__code__.co_argcount + code.__code__.co_kwonlyargcount]}
    shown = inspect.signature(function).parameters
    assert {name for name in shown if name not in written} == set(GROUPED[function].__annotations__)
    assert all(shown[name].default is not inspect.Parameter.empty for name in shown if name not in written)


def test_defaults_are_shown() -> None:
    shown = inspect.signature(Holdfast("sqlite:///no.db").triggers.trigger).parameters
    assert (shown["batch_size"].default, shown["horizon"].default, shown["poll_seconds"].default) == (100, "auto", 1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Holdfast("sqlite:///no.db", batch_size=1),  # type: ignore[call-arg]  # what is tested
        lambda: Holdfast("sqlite:///no.db").trigger("orders", cursor="at", batch_size=1, batchsize=2),  # type: ignore[call-arg]
        lambda: SqlAlchemySource(url="sqlite:///no.db", table="t", cursor_column="c", pk_columns=["id"], horizont="x"),  # type: ignore[call-arg]
    ],
)
def test_an_unknown_keyword_is_refused_by_its_name(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument '(batch_size|batchsize|horizont)'"):
        call()


@dataclass(frozen=True, kw_only=True)
class _Pace:
    seconds: float = 1.0
    tries: int = 3


def test_a_function_shows_its_own_keywords_first() -> None:
    @takes(_Pace, name=None, tries=5)
    def declare(table: str, seconds: float = 2.0, **options: Any) -> _Pace:
        require_known("declare", options, _Pace, others=("name",))
        return picked(_Pace, {"seconds": seconds, "tries": 5, **options})

    assert str(inspect.signature(declare)) == (
        "(table: 'str', seconds: 'float' = 2.0, *, tries: 'int' = 5, name=None) -> '_Pace'"
    )
    assert declare("orders", name="x") == _Pace(seconds=2.0, tries=5)
