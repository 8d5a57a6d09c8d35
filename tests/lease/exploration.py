"""A small model checker over the real functions of ``holdfast.lease.document``.

Three owners, a clock that may tick between any two steps, an operator who resets or deletes, and writes whose answer
is lost. Every reachable state up to a given number of steps is visited once and checked. The functions explored are the
product's own; the model only remembers who was told what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.core.errors import LeaseConflictError, LostLeaseError
from holdfast.core.types import FencingToken, OwnerId, SourceDescriptor
from holdfast.lease import document as doc

SOURCE = SourceDescriptor(name="orders", kind="test", fingerprint="sha256:x")

START = datetime(2026, 1, 1, tzinfo=UTC)
TTL = timedelta(seconds=2)
MARGIN = timedelta(seconds=1)
OWNERS = tuple(OwnerId(name) for name in ("anna", "ben", "cleo"))
MOST_SESSIONS = 3


@dataclass(frozen=True)
class Session:
    """What one holder was told: its token, until when it may believe in its lease, and where it thinks it stands."""

    owner: OwnerId
    token: FencingToken
    acquisition: int
    believes_until: int
    position: int


@dataclass(frozen=True)
class World:
    """Everything there is: the time, the stored document, and what each holder believes."""

    now: int = 0
    content: bytes | None = None
    sessions: tuple[Session, ...] = ()
    acquisitions: int = 0
    deleted_after: int = 0
    steps: tuple[str, ...] = field(default=(), compare=False)

    @property
    def document(self) -> doc.Document | None:
        return None if self.content is None else doc.parse(self.content, "explored")

    @property
    def moment(self) -> datetime:
        return START + timedelta(seconds=self.now)


class Violation(AssertionError):  # noqa: N818 - what a model checker finds
    """An invariant does not hold; the message tells the steps that led there."""


def explore(depth: int) -> int:
    """Visit every state reachable in ``depth`` steps; return how many there are.

    Raises:
        Violation: one of them breaks an invariant.
    """
    first = World()
    seen = {first}
    frontier = deque([(first, 0)])
    while frontier:
        world, steps = frontier.popleft()
        check_state(world)
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
    for owner in OWNERS:
        yield from acquire(world, owner)
    for session in world.sessions:
        yield from beat(world, session)
        yield from commit(world, session)
        yield from release(world, session)
    if world.content is not None:
        yield step(world, "operator deletes", content=None, deleted_after=world.acquisitions)
        yield from reset(world)


def step(world: World, name: str, **changes: Any) -> World:
    return replace(world, steps=(*world.steps, name), **changes)


def acquire(world: World, owner: OwnerId) -> Iterator[World]:
    """Take the lease. Owner ids are made new for every session, so one from before a deletion does not come back."""
    if any(session.owner == owner and not is_live_session(world, session) for session in world.sessions):
        return
    try:
        changed = doc.acquire(
            world.document,
            poller_name="explored",
            source=SOURCE,
            owner_id=owner,
            ttl=TTL,
            skew_margin=MARGIN,
            now=world.moment,
        )
    except LeaseConflictError:
        return
    if world.content is None:
        changed["unknown_field"] = "kept"
    token = changed["lease"]["fencing_token"]
    number = world.acquisitions + 1
    session = Session(owner, token, number, believed_until(world), position_of(changed))
    told = (*world.sessions, session)[-MOST_SESSIONS:]
    common = {"content": doc.render(changed), "acquisitions": number}
    yield step(world, f"{owner} acquires token {token}", sessions=told, **common)
    yield step(world, f"{owner} acquires token {token}, answer lost", **common)


def believed_until(world: World) -> int:
    """A holder whose clock runs late by the whole margin believes that much longer."""
    return world.now + int((TTL + MARGIN).total_seconds())


def holder(session: Session) -> doc.Holder:
    return doc.Holder(session.owner, session.token)


def beat(world: World, session: Session) -> Iterator[World]:
    if world.document is None:
        return
    try:
        changed = doc.heartbeat(world.document, holder(session), ttl=TTL, now=world.moment)
    except LostLeaseError:
        return
    told = renewed(world, session, believes_until=believed_until(world))
    name = f"{session.owner}/{session.acquisition} beats"
    require_latest(world, session, name)
    yield step(world, name, content=doc.render(changed), sessions=told)
    yield step(world, f"{name}, answer lost", content=doc.render(changed))


def commit(world: World, session: Session) -> Iterator[World]:
    if world.document is None:
        return
    position = session.position + 1
    try:
        changed = doc.commit(world.document, holder(session), {"position": position}, ttl=TTL, now=world.moment)
    except LostLeaseError:
        return
    name = f"{session.owner}/{session.acquisition} commits {position}"
    require_latest(world, session, name)
    if position < position_of(world.document):
        raise Violation(f"the checkpoint moved back: {story(world, name)}")
    told = renewed(world, session, believes_until=believed_until(world), position=position)
    yield step(world, name, content=doc.render(changed), sessions=told)
    yield step(
        world, f"{name}, answer lost", content=doc.render(changed), sessions=renewed(world, session, position=position)
    )


def release(world: World, session: Session) -> Iterator[World]:
    if world.document is None:
        return
    try:
        changed = doc.release(world.document, holder(session), now=world.moment)
    except LostLeaseError:
        return
    name = f"{session.owner}/{session.acquisition} releases"
    require_latest(world, session, name)
    others = tuple(other for other in world.sessions if other != session)
    yield step(world, name, content=doc.render(changed), sessions=others)
    yield step(
        world,
        f"{name}, answer lost",
        content=doc.render(changed),
        sessions=renewed(world, session, believes_until=world.now),
    )


def reset(world: World) -> Iterator[World]:
    try:
        changed = doc.reset(
            world.document,
            {"position": 0},
            poller_name="explored",
            source=SOURCE,
            reset_id="r",
            skew_margin=MARGIN,
            now=world.moment,
        )
    except LeaseConflictError:
        return
    if any(session.believes_until > world.now and is_latest(world, session) for session in world.sessions):
        raise Violation(f"a reset went through beside a live holder: {story(world, 'operator resets')}")
    yield step(world, "operator resets", content=doc.render(changed), acquisitions=world.acquisitions + 1)


def renewed(world: World, session: Session, **changes: Any) -> tuple[Session, ...]:
    return tuple(replace(other, **changes) if other == session else other for other in world.sessions)


def is_latest(world: World, session: Session) -> bool:
    return session.acquisition == world.acquisitions and world.content is not None


def require_latest(world: World, session: Session, name: str) -> None:
    if not is_latest(world, session):
        raise Violation(f"a stale holder was accepted: {story(world, name)}")


def position_of(document: doc.Document) -> int:
    return int((document.get("checkpoint") or {}).get("position", 0))


def check_state(world: World) -> None:
    document = world.document
    if document is None:
        return
    believers = [s for s in world.sessions if s.believes_until > world.now and is_live_session(world, s)]
    if len(believers) > 1:
        raise Violation(f"two holders at once: {story(world)}")
    if document.get("unknown_field") != "kept":
        raise Violation(f"an unknown field was dropped: {story(world)}")
    lease = doc.lease_of(document)
    if lease is not None and lease.owner_id is None and not list(acquire(world, OwnerId("someone new"))):
        raise Violation(f"a released lease is not free: {story(world)}")


def is_live_session(world: World, session: Session) -> bool:
    """A deletion by hand ends every lease made before it; who holds one then is not the kernel's promise."""
    return session.acquisition > world.deleted_after


def check_step(before: World, after: World) -> None:
    old, new = before.document, after.document
    if old is None or new is None or before.content == after.content:
        return
    if new["revision"] <= old["revision"]:
        raise Violation(f"the revision did not rise: {story(after)}")
    old_lease, new_lease = doc.lease_of(old), doc.lease_of(new)
    if old_lease is None or new_lease is None:
        return
    was_acquired = after.acquisitions > before.acquisitions
    if new_lease.fencing_token != old_lease.fencing_token + was_acquired:
        raise Violation(f"the token did not rise by one on an acquisition only: {story(after)}")
    if "releases" in after.steps[-1] and new_lease.owner_id is not None:
        raise Violation(f"a release left the lease held: {story(after)}")


def story(world: World, last: str = "") -> str:
    return " → ".join((*world.steps, last) if last else world.steps)
