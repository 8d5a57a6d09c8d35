"""What became of every accepted job, and every way in which that can be wrong."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Engine

from holdfast.records.failure_text import words_of
from holdfast.runtime.transaction import GONE
from tests.jobs.faults.app import POISON_ATTEMPTS

LEASE_EXPIRED = "worker lease expired"
CONNECTION_BROKE = f"Unavailable: {GONE}"
TOGETHER = frozenset({"together", "together_async", "slow_together", "dies_inside"})
MUST_BE_DEAD = frozenset({"doomed", "poison"})
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Account:
    """The account of a run. Only ``duplicated`` effects of at-least-once jobs and stale reports may be above zero."""

    accepted: int
    done: int
    dead: int
    cancelled: int
    lost: int
    duplicated: int
    duplicated_in_transactions: int
    stale_rejected: int

    def __str__(self) -> str:
        names = [field.name.replace("_", " ") for field in fields(self)]
        widths = [max(8, len(name)) for name in names]
        heads = "  ".join(name.rjust(width) for name, width in zip(names, widths, strict=True))
        figures = "  ".join(str(value).rjust(width) for value, width in zip(astuple(self), widths, strict=True))
        return f"{heads}\n{figures}"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A job as it was enqueued."""

    kind: str
    payload: str
    error: str


class Books:
    """Everything the database says about the jobs of a run, by the number that each carries in its payload."""

    def __init__(self, engine: Engine) -> None:
        with engine.connect() as connection:

            def rows(sql: str) -> list[Row]:
                return [dict(row) for row in connection.execute(text(sql)).mappings()]

            self.jobs = _by_number(rows("SELECT * FROM holdfast_jobs"), "payload")
            history = rows("SELECT * FROM holdfast_history")
            letters = rows("SELECT * FROM holdfast_dead_letters")
            effects = rows("SELECT n, attempt FROM effects")
        self.history = _by_number(history, "input")
        self.letters = _by_number(letters, "original_message")
        self.effects: dict[int, list[int]] = defaultdict(list)
        for effect in effects:
            self.effects[effect["n"]].append(effect["attempt"])

    @property
    def numbers(self) -> set[int]:
        """Return the numbers of the jobs the database knows of."""
        return set(self.jobs) | set(self.history)

    def ends(self, n: int) -> list[str]:
        """Return how a job has ended: exactly one way, if all is well."""
        ends = ["done" for entry in self.history.get(n, ()) if entry["status"] == "Succeeded"]
        return ends + [
            job["status"] if job["status"] in ("dead", "cancelled") else "open" for job in self.jobs.get(n, ())
        ]

    def account(self, accepted: Mapping[int, Accepted], stale_rejected: int) -> Account:
        """Return the figures."""
        ends = {n: self.ends(n) for n in accepted}
        single = Counter(found[0] for found in ends.values() if len(found) == 1)
        again = {n: max(0, len(self.effects.get(n, ())) - 1) for n in accepted}
        together = sum(count for n, count in again.items() if accepted[n].kind in TOGETHER)
        return Account(
            accepted=len(accepted),
            done=single["done"],
            dead=single["dead"],
            cancelled=single["cancelled"],
            lost=sum(found in ([], ["open"]) for found in ends.values()),
            duplicated=sum(again.values()) - together,
            duplicated_in_transactions=together,
            stale_rejected=stale_rejected,
        )

    def problems(self, accepted: Mapping[int, Accepted]) -> list[str]:
        """Return every broken promise, in words."""
        return [f"job n={n} ({job.kind}): {what}" for n, job in accepted.items() for what in self._problems_of(n, job)]

    def _problems_of(self, n: int, job: Accepted) -> Iterable[str]:
        ends = self.ends(n)
        if len(ends) != 1:
            yield f"ended {len(ends)} times: {ends}"
            return
        [end] = ends
        expected = "dead" if job.kind in MUST_BE_DEAD else "cancelled" if job.kind == "waiting" else "done"
        if end != expected:
            yield f"ended {end}, not {expected}"
        yield from self._wrong_history(n, job, end)
        yield from self._wrong_effects(n, job, end)
        yield from self._wrong_letters(n, job, end)

    def _wrong_history(self, n: int, job: Accepted, end: str) -> Iterable[str]:
        entries = self.history.get(n, [])
        attempts = [entry["attempt"] for entry in entries]
        if end != "cancelled" and len(set(attempts)) != len(attempts):
            yield f"an attempt is told twice in the history: {sorted(attempts)}"
        if any(entry["input"] != job.payload for entry in entries):
            yield "the history has another payload"
        last = max(entries, key=lambda entry: entry["attempt"], default=None)
        if last is None or last["status"] != ("Succeeded" if end == "done" else "Failed"):
            yield f"ended {end}, and the history ends with {last and last['status']}"
        if end == "dead":
            [row] = self.jobs[n]
            if (row["attempt"], row["failures"]) != (max(attempts), len(attempts)):
                yield f"attempt {row['attempt']}, failures {row['failures']}, history {sorted(attempts)}"

    def _wrong_effects(self, n: int, job: Accepted, end: str) -> Iterable[str]:
        effects = self.effects.get(n, [])
        if end != "done":
            if effects:
                yield f"ended {end} and has effects"
            return
        last = max(entry["attempt"] for entry in self.history[n])
        if job.kind in TOGETHER and effects != [last]:
            yield f"effects of attempts {effects} in transactions, completed by attempt {last}"
        if job.kind not in TOGETHER and not 1 <= len(effects) <= last:
            yield f"{len(effects)} effects in {last} attempts"
        if len(set(effects)) != len(effects):
            yield f"an attempt has two effects: {effects}"

    def _wrong_letters(self, n: int, job: Accepted, end: str) -> Iterable[str]:
        letters = self.letters.get(n, [])
        if len(letters) != (end == "dead"):
            yield f"ended {end} with {len(letters)} dead letters"
            return
        if not letters:
            return
        [letter] = letters
        [row] = self.jobs[n]
        if letter["original_message"] != job.payload or row["payload"] != job.payload:
            yield "the dead letter has another payload"
        possible = {LEASE_EXPIRED} if job.kind == "poison" else {job.error, LEASE_EXPIRED}
        said = words_of(letter["error_message"])
        if said.startswith(CONNECTION_BROKE) and said.endswith(job.error.split("\n")[0]):
            possible.add(said)  # the last attempt lost its connection, too
        if said not in possible or row["last_error"] != letter["error_message"]:
            yield f"the dead letter's error is {letter['error_message']!r}, the job's {row['last_error']!r}"
        if letter["dequeue_count"] != row["attempt"]:
            yield f"the dead letter counts {letter['dequeue_count']} attempts, the job {row['attempt']}"
        if job.kind == "poison" and row["failures"] != POISON_ATTEMPTS:
            yield f"it took {row['failures']} workers, not {POISON_ATTEMPTS}"


def _by_number(rows: Iterable[Row], column: str) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[json.loads(row[column])["n"]].append(row)
    return dict(found)
