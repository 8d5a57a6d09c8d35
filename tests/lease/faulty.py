"""A document store that fails on cue, in front of a real one.

What a network does to a store, made repeatable: an error before the write, an error after it landed, a read from a
replica that lags, and something else happening at the worst moment (a hook). The inner store does the real work, so
what a test sees afterwards is what would have been stored.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Literal, TypeVar

from holdfast.core.errors import Ambiguous, Unavailable
from holdfast.lease.documents import DocumentStore, ETag, Snapshot, Written

Verb = Literal["read", "create", "replace", "delete", "list"]
Kind = Literal["refused", "landed", "vanished", "stale", "before", "after"]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the `nth` call of `verb`, counted from when the fault was armed."""

    kind: Kind
    verb: Verb
    nth: int = 1
    hook: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        assert self.nth >= 1
        assert self.kind != "stale" or self.verb == "read"


def unavailable(verb: Verb, nth: int = 1) -> Fault:
    """Raise `Unavailable` instead of calling the inner store."""
    return Fault("refused", verb, nth)


def ambiguous_after_landing(verb: Verb, nth: int = 1) -> Fault:
    """Call the inner store, then raise `Ambiguous` as if its answer had been lost."""
    return Fault("landed", verb, nth)


def ambiguous_without_landing(verb: Verb, nth: int = 1) -> Fault:
    """Raise `Ambiguous` without calling the inner store, as if the request had been lost."""
    return Fault("vanished", verb, nth)


def stale_read(nth: int = 1) -> Fault:
    """Return the version before the present one, as a replica that lags would; None when none was seen."""
    return Fault("stale", "read", nth)


def before(verb: Verb, hook: Callable[[], object], nth: int = 1) -> Fault:
    """Call `hook`, then the inner store: whatever the hook does has happened before the call arrives."""
    return Fault("before", verb, nth, hook)


def after(verb: Verb, hook: Callable[[], object], nth: int = 1) -> Fault:
    """Call the inner store, then `hook`, then return: whatever the hook does happens before the answer arrives."""
    return Fault("after", verb, nth, hook)


class FaultyDocumentStore:
    """Passes every call to `inner`, except where `script` says otherwise. Safe between threads.

    Several faults may meet on one call: hooks run around it, and an error wins over the answer. Each fault happens
    once; `pending` shows the ones that have not happened, so a test can tell that its faults were real.
    """

    def __init__(self, inner: DocumentStore, script: Iterable[Fault] = ()) -> None:
        self.inner = inner
        self._armed: list[tuple[int, Fault]] = []
        self._versions: dict[str, list[Snapshot]] = {}
        self._lock = Lock()
        self._is_throttling: Callable[[], bool] = lambda: False
        self.arm(*script)

    @property
    def skew_margin_seconds(self) -> float | None:
        return self.inner.skew_margin_seconds

    @property
    def pending(self) -> Sequence[Fault]:
        """The faults that have not happened yet, with `nth` counted from now."""
        with self._lock:
            return [replace(fault, nth=left) for left, fault in self._armed]

    def arm(self, *faults: Fault) -> None:
        """Add faults; their `nth` counts from now."""
        with self._lock:
            self._armed.extend((fault.nth, fault) for fault in faults)

    def throttle(self, while_true: Callable[[], bool]) -> None:
        """Take no call at all while something is so."""
        self._is_throttling = while_true

    def disarm(self) -> None:
        """Forget the faults that have not happened."""
        with self._lock:
            self._armed.clear()

    def read(self, name: str) -> Snapshot | None:
        faults = self._due("read")
        snapshot = _apply(faults, "read", name, lambda: self.inner.read(name))
        if any(fault.kind == "stale" for fault in faults):
            return self._previous(name, snapshot)
        if snapshot is not None:
            self._remember(name, snapshot)
        return snapshot

    def create(self, name: str, content: bytes) -> Written:
        return self._write("create", name, content, lambda: self.inner.create(name, content))

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        return self._write("replace", name, content, lambda: self.inner.replace(name, content, if_match))

    def delete(self, name: str, if_match: ETag) -> None:
        _apply(self._due("delete"), "delete", name, lambda: self.inner.delete(name, if_match))

    def list(self, prefix: str) -> Iterator[str]:
        return _apply(self._due("list"), "list", prefix, lambda: self.inner.list(prefix))

    def _write(self, verb: Verb, name: str, content: bytes, call: Callable[[], Written]) -> Written:
        def remembered() -> Written:
            written = call()
            self._remember(name, Snapshot(content, written.etag, written.store_time))
            return written

        return _apply(self._due(verb), verb, name, remembered)

    def _due(self, verb: Verb) -> Sequence[Fault]:
        """Count this call, and take out the faults that happen on it."""
        if self._is_throttling():
            raise Unavailable(f"scripted: too many requests, the {verb} was not taken")
        with self._lock:
            counted = [(left - (fault.verb == verb), fault) for left, fault in self._armed]
            self._armed = [(left, fault) for left, fault in counted if left > 0]
            return [fault for left, fault in counted if left == 0]

    def _remember(self, name: str, snapshot: Snapshot) -> None:
        with self._lock:
            versions = self._versions.setdefault(name, [])
            if not versions or versions[-1].etag != snapshot.etag:
                versions.append(snapshot)

    def _previous(self, name: str, present: Snapshot | None) -> Snapshot | None:
        with self._lock:
            seen = self._versions.get(name, [])
            older = [version for version in seen if present is None or version.etag != present.etag]
        if not older:
            return None
        return replace(older[-1], store_time=older[-1].store_time if present is None else present.store_time)


def _apply(faults: Sequence[Fault], verb: Verb, name: str, call: Callable[[], Result]) -> Result:
    """Run `call` with `faults` around it."""
    kinds = {fault.kind for fault in faults}
    _run_hooks(faults, "before")
    if "refused" in kinds:
        raise Unavailable(f"scripted: the {verb} of '{name}' was not taken")
    if "vanished" in kinds:
        raise Ambiguous(f"scripted: the {verb} of '{name}' was lost on the way")
    result = call()
    _run_hooks(faults, "after")
    if "landed" in kinds:
        raise Ambiguous(f"scripted: the answer to the {verb} of '{name}' was lost")
    return result


def _run_hooks(faults: Sequence[Fault], kind: Kind) -> None:
    for fault in faults:
        if fault.kind == kind and fault.hook is not None:
            fault.hook()
