"""A small model checker over the real functions of ``holdfast.engines.registry_document``.

Two jobs, of which each may run more than once, an operator who looks and unlocks, a clock that may tick between any two
steps, and a writer that pauses between its read and its write. Every reachable state up to a given number of steps is
visited once. Beside the document the model keeps, in plain numbers, who really has the lock and until when, and demands
of every command that it is accepted exactly when it should be.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.core.errors import RegistryLocked
from holdfast.engines import registry_document as doc
from holdfast.engines.registry_document import Holder
from holdfast.engines.registry_shape import Document, EngineTablesConfig, LockView, lock_of, parse
from holdfast.lease.document import render

START = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = 2
MARGIN = 1
JOBS = ("anna", "ben")
MOST_RUNS = 3
UNKNOWN: dict[str, dict[str, Any]] = {
    "field": {"kept": [1]},
    "instanceLock": {"fromElsewhere": True},
    "engineTablesConfig": {"region": "west"},
}


@dataclass(frozen=True)
class Run:
    """One run of a job that was told it has the lock: which acquisition, its token, and how long it may believe it.

    Without an acquisition it is a step of an operation that knows its job only.
    """

    job: str
    acquisition: int | None
    holder: Holder
    believes_until: int


BY_NAME = tuple(Run(job, None, Holder(job), 0) for job in JOBS)


@dataclass(frozen=True)
class Held:
    """Who has the lock, in truth."""

    job: str
    acquisition: int
    until: int


@dataclass(frozen=True)
class Paused:
    """A write that was prepared on a version and has not been sent."""

    run: Run
    version: int
    content: bytes


@functools.lru_cache(maxsize=1000)
def parsed(content: bytes) -> Document:
    return parse(content, "explored")


@dataclass(frozen=True)
class World:
    """Everything there is: the time, the stored document, the truth about the lock, and what everybody believes."""

    content: bytes
    now: int = 0
    held: Held | None = None
    acquisitions: int = 0
    runs: tuple[Run, ...] = ()
    seen: tuple[LockView, int] | None = None
    paused: Paused | None = None
    steps: tuple[str, ...] = field(default=(), compare=False)

    @property
    def document(self) -> Document:
        return parsed(self.content)

    @property
    def moment(self) -> datetime:
        return START + timedelta(seconds=self.now)

    def has_valid_lock(self, run: Run) -> bool:
        return self.has_lock(run) and self.held is not None and self.now < self.held.until

    def has_lock(self, run: Run) -> bool:
        return self.held is not None and self.held.job == run.job and run.acquisition in (None, self.held.acquisition)


class Violation(AssertionError):  # noqa: N818 - what a model checker finds
    """An invariant does not hold; the message tells the steps that led there."""


def beginning() -> World:
    document = doc.initial(state={"field": UNKNOWN["field"], "position": 0})
    for part in ("instanceLock", "engineTablesConfig"):
        document[part] = {**document[part], **UNKNOWN[part]}
    return World(render(document))


def explore(depth: int, look: Callable[[World], object] = lambda world: None) -> int:
    """Visit every state reachable in ``depth`` steps, show each to ``look``, and return how many there are.

    Raises:
        Violation: one of them breaks an invariant.
    """
    first = beginning()
    seen = {first}
    frontier = deque([(first, 0)])
    while frontier:
        world, steps = frontier.popleft()
        check_state(world)
        look(world)
        if steps == depth:
            continue
        for successor in successors(world):
            check_step(world, successor)
            if successor not in seen:
                seen.add(successor)
                frontier.append((successor, steps + 1))
    return len(seen)


def successors(world: World) -> Iterator[World]:
    """Return every world one step away."""
    yield step(world, "tick", now=world.now + 1)
    for job in JOBS:
        yield from acquire(world, job)
    for run in (*world.runs, *BY_NAME):
        yield from change(world, run)
        yield from configure(world, run)
        yield from extend(world, run)
        yield from release(world, run)
        yield from pause(world, run)
    yield from wake(world)
    yield from look_and_unlock(world)


def step(world: World, name: str, **changes: Any) -> World:
    return replace(world, steps=(*world.steps, name), **changes)


def attempt(world: World, name: str, command: Callable[[], Document], *, is_right: bool) -> Document | None:
    """Run a command and compare its outcome with the truth; None when it was refused."""
    try:
        changed = command()
    except RegistryLocked as refused:
        if is_right:
            raise Violation(f"refused although it should not be ({refused}): {story(world, name)}") from refused
        return None
    if not is_right:
        raise Violation(f"accepted although it should not be: {story(world, name)}")
    return changed


def acquire(world: World, job: str) -> Iterator[World]:
    held, name = world.held, f"{job} acquires"
    is_own = held is not None and held.job == job
    changed = attempt(
        world,
        name,
        lambda: doc.acquire_lock(
            world.document,
            job,
            now=world.moment,
            duration_seconds=SECONDS,
            skew_margin=timedelta(seconds=MARGIN),
        ),
        is_right=held is None or is_own or world.now >= held.until + MARGIN,
    )
    if changed is None:
        return
    is_joined = held is not None and is_own and world.now < held.until
    number = held.acquisition if held is not None and is_joined else world.acquisitions + 1
    until = world.now + SECONDS
    run = Run(job, number, Holder(job, lock_of(changed).fencing_token), until + MARGIN)
    require_end(changed, until, world, name)
    told = tuple(other for other in world.runs if other.acquisition != number)
    common = {
        "content": render(changed),
        "acquisitions": max(world.acquisitions, number),
        "held": Held(job, number, until),
    }
    yield step(world, name, runs=(*told, run)[-MOST_RUNS:], **common)
    if not is_joined:
        yield step(world, f"{name}, answer lost", **common)


def change(world: World, run: Run) -> Iterator[World]:
    changed = attempt(world, told(run, "changes"), lambda: moved(world, run.holder), is_right=world.has_valid_lock(run))
    if changed is not None:
        yield step(world, told(run, "changes"), content=render(changed))


def moved(world: World, holder: Holder) -> Document:
    document = world.document
    position = document["position"] + 1
    changed = doc.change(document, holder, {"position": position, "by": holder.job_id}, now=world.moment)
    if changed["position"] != position or changed["instanceLock"] != document["instanceLock"]:
        raise Violation(f"a change did not do what it says: {story(world)}")
    return changed


def configure(world: World, run: Run) -> Iterator[World]:
    tables = EngineTablesConfig(retention_days=30)
    changed = attempt(
        world,
        told(run, "configures"),
        lambda: doc.configure_tables(world.document, run.holder, tables, now=world.moment),
        is_right=world.has_valid_lock(run),
    )
    if changed is not None:
        yield step(world, told(run, "configures"), content=render(changed))


def extend(world: World, run: Run) -> Iterator[World]:
    name = told(run, "extends")
    changed = attempt(
        world,
        name,
        lambda: doc.extend_lock(world.document, run.holder, now=world.moment, duration_seconds=SECONDS),
        is_right=world.has_valid_lock(run),
    )
    if changed is None or world.held is None:
        return
    until = world.now + SECONDS
    require_end(changed, until, world, name)
    told_so = replace(run, believes_until=until + MARGIN)
    common = {"content": render(changed), "held": replace(world.held, until=until)}
    yield step(world, name, runs=tuple(told_so if other == run else other for other in world.runs), **common)


def release(world: World, run: Run) -> Iterator[World]:
    """Give the lock back. It was the job's, so another run of the same job has lost it too."""
    name = told(run, "releases")
    changed = attempt(
        world,
        name,
        lambda: doc.release_lock(world.document, run.holder),
        is_right=world.held is None or world.has_lock(run),
    )
    if changed is None:
        return
    if world.held is None and changed != world.document:
        raise Violation(f"a second release was not harmless: {story(world, name)}")
    yield step(world, name, content=render(changed), held=None, runs=over(world, run.job))


def over(world: World, job: str) -> tuple[Run, ...]:
    """Return the runs, those of a job whose lock was given up no longer believing in it."""
    return tuple(replace(run, believes_until=world.now) if run.job == job else run for run in world.runs)


def pause(world: World, run: Run) -> Iterator[World]:
    """Prepare a change, and do not send it yet."""
    if world.paused is None and run.acquisition is not None and world.has_valid_lock(run):
        content = render(moved(world, run.holder))
        yield step(world, told(run, "pauses"), paused=Paused(run, world.document["registryVersion"], content))


def wake(world: World) -> Iterator[World]:
    """Send what was prepared: the store takes it only on the version it was made on."""
    paused = world.paused
    if paused is None:
        return
    name = told(paused.run, "wakes")
    if not is_still(world.document, paused.version):
        yield step(world, name, paused=None)
        return
    if not world.has_lock(paused.run):
        raise Violation(f"a late holder has changed something: {story(world, name)}")
    yield step(world, name, content=paused.content, paused=None)


def is_still(document: Document, version: int) -> bool:
    """The store's condition."""
    return bool(document["registryVersion"] == version)


def look_and_unlock(world: World) -> Iterator[World]:
    lock = lock_of(world.document)
    if lock.job_id and world.held is not None:
        yield step(world, "operator looks", seen=(lock, world.held.acquisition))
    if world.seen is None:
        return
    seen, acquisition = world.seen
    changed = attempt(
        world,
        "operator unlocks",
        lambda: doc.force_unlock(world.document, seen),
        is_right=world.held is None or world.held.acquisition == acquisition,
    )
    if changed is None:
        return
    yield step(world, "operator unlocks", content=render(changed), held=None, seen=None, runs=over(world, seen.job_id))


def check_state(world: World) -> None:
    believers = {run.job for run in world.runs if run.believes_until > world.now}
    if len(believers) > 1:
        raise Violation(f"two holders at once: {story(world)}")
    document, lock = world.document, lock_of(world.document)
    if document.get("field") != UNKNOWN["field"]:
        raise Violation(f"an unknown field was dropped: {story(world)}")
    for part in ("instanceLock", "engineTablesConfig"):
        if not UNKNOWN[part].items() <= document[part].items():
            raise Violation(f"an unknown field of {part} was dropped: {story(world)}")
    if (lock.job_id or None) != (world.held and world.held.job):
        raise Violation(f"the document names another holder: {story(world)}")


def check_step(before: World, after: World) -> None:
    old, new = before.document, after.document
    if old != new and new["registryVersion"] <= old["registryVersion"]:
        raise Violation(f"the version did not rise: {story(after)}")


def require_end(changed: Document, until: int, world: World, name: str) -> None:
    if lock_of(changed).until != START + timedelta(seconds=until):
        raise Violation(f"the lock has another end: {story(world, name)}")


def told(run: Run, act: str) -> str:
    return f"{run.job}{'' if run.acquisition is None else f'/{run.acquisition}'} {act}"


def story(world: World, last: str = "") -> str:
    return " → ".join((*world.steps, last) if last else world.steps)
