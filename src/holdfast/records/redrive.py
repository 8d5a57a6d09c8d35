"""Putting dead letters back where they came from, whatever the workload: each kind has a redrive that knows how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Protocol

from sqlalchemy.engine import Connection, Engine

from ..core.errors import ConfigurationError, Conflict, JobError, MessageError, NotFoundError
from .database import changing, reading
from .dead_letters import DeadLetter, DeadLetters, LetterFilter, LetterStatus, state_of
from .paging import MAX_LIMIT
from .protocol import LetterTable
from .tables import SqlLetterTable
from .times import database_now

Refusal = ConfigurationError | Conflict


class Redrive(Protocol):
    """Where the letters of one kind of workload go back to."""

    def put_back(self, connection: Connection, letters: Sequence[DeadLetter], actor: str) -> list[Refusal]:
        """Put back what can be, audited, inside the caller's transaction; return why the others cannot."""
        ...


class SteppedRedrive(Protocol):
    """Where letters go back to that no transaction reaches: step by step, each letter on its own."""

    def retry(self, letter: DeadLetter, actor: str) -> str:
        """Put one letter back, audited, or finish a retry of it that was begun; return what it was put back as.

        Raises:
            NotFoundError: there is no such letter.
            ConfigurationError: there is nowhere to put it; nothing was changed.
            Conflict: it is no longer Pending; nothing was changed.
            MessageError: it is too large to be put back; nothing was changed.
            UnfinishedRetry: it was begun, and something does not answer: the next retry or a worker finishes it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of some letters: how many were put back, and a sentence for each that was not."""

    count: int
    refusals: list[str] = field(default_factory=list)


class Redrives:
    """Puts letters back.

    Args:
        engine: the database.
        redrives: by what an engine's name begins with, up to the colon.
        stepped: the redrives that are elsewhere.
        letters: where the letters are; in the database when left out.
    """

    def __init__(
        self,
        engine: Engine,
        redrives: Mapping[str, Redrive],
        *,
        stepped: Mapping[str, SteppedRedrive] | None = None,
        letters: LetterTable | None = None,
    ) -> None:
        self._engine = engine
        self._redrives = redrives
        self._stepped = stepped or {}
        self._letters = letters or SqlLetterTable(engine)

    def retry(self, letter: DeadLetter, actor: str) -> str:
        """Put back what one dead letter is about; return the id that it was put back under.

        Raises:
            ConfigurationError: nothing tells any more what it was, or there is nowhere to put it; nothing was changed.
            Conflict: the letter is no longer Pending, or what it is about is at work; nothing was changed.
            JobError: another job has taken the unique key; nothing was changed.
            MessageError: it is too large to be put back; nothing was changed.
            UnfinishedRetry: it was begun, and something does not answer: the next retry or a worker finishes it.
        """
        stepped = self._stepped.get(_kind(letter))
        if stepped is not None:
            return stepped.retry(letter, actor)
        with changing(self._engine) as connection:
            for refusal in self._put_back(connection, [letter], actor):
                raise refusal
            return self._retried_as(connection, letter)

    def _retried_as(self, connection: Connection, letter: DeadLetter) -> str:
        settled = DeadLetters(self._engine).get(letter.engine, letter.row_key, connection)
        assert settled is not None
        assert settled.retried_as is not None, "a redrive settles what it puts back"
        return settled.retried_as

    def retry_all(self, wanted: LetterFilter, actor: str) -> Iterator[Retried]:
        """Put back all Pending letters that are wanted, a batch at a time; yield what became of each batch.

        Letters that come up meanwhile are left for the next time, so this ends. What cannot be put back stays Pending.
        """
        with reading(self._engine) as connection:
            now = database_now(connection)
        until = now if wanted.until is None else min(now, wanted.until)
        wanted = replace(wanted, status=LetterStatus.PENDING, until=until)
        after: str | None = None
        while True:
            found = self._letters.page(wanted, MAX_LIMIT, after)
            yield self._retried(found.items, actor)
            after = found.continuation_token
            if after is None:
                return

    def _retried(self, letters: Sequence[DeadLetter], actor: str) -> Retried:
        together = [letter for letter in letters if _kind(letter) not in self._stepped]
        batch = self._retried_batch(together, actor)
        count, refusals = batch.count, list(batch.refusals)
        for letter in letters:
            if _kind(letter) in self._stepped:
                try:
                    self.retry(letter, actor)
                    count += 1
                except (ConfigurationError, Conflict, NotFoundError, MessageError) as error:
                    refusals.append(f"{letter.engine} {letter.row_key}: {error}")
        return Retried(count, refusals)

    def _retried_batch(self, letters: Sequence[DeadLetter], actor: str) -> Retried:
        if not letters:
            return Retried(0)
        try:
            with changing(self._engine) as connection:
                refusals = self._put_back(connection, letters, actor)
            return Retried(len(letters) - len(refusals), [str(refusal) for refusal in refusals])
        except JobError as error:  # one of them spoils the batch; nothing of it was changed
            if len(letters) == 1:
                return Retried(0, [f"{letters[0].engine} {letters[0].row_key}: {error}"])
        alone = [self._retried_batch([letter], actor) for letter in letters]
        return Retried(sum(one.count for one in alone), [refusal for one in alone for refusal in one.refusals])

    def _put_back(self, connection: Connection, letters: Sequence[DeadLetter], actor: str) -> list[Refusal]:
        refusals: list[Refusal] = []
        for kind, of_kind in groupby(sorted(letters, key=_kind), _kind):
            redrive = self._redrives.get(kind)
            found = list(of_kind)
            refusals += (
                [_homeless(letter) for letter in found]
                if redrive is None
                else redrive.put_back(connection, found, actor)
            )
        return refusals


def no_longer_pending(letter: DeadLetter | None, engine_name: str, row_key: str) -> Refusal:
    """Return why a letter that was found Pending a moment ago cannot be put back."""
    if letter is None:
        return ConfigurationError(f"There is no dead letter '{row_key}' of engine '{engine_name}'.")
    return Conflict(f"{state_of(letter)}; nothing was changed.")


def _kind(letter: DeadLetter) -> str:
    kind, colon, _ = letter.engine.partition(":")
    return f"{kind}:" if colon else ""


def _homeless(letter: DeadLetter) -> ConfigurationError:
    return ConfigurationError(
        f"The dead letter '{letter.row_key}' of engine '{letter.engine}' cannot be put back: nothing here knows where "
        "it came from. Deal with it, then use 'holdfast dlq resolve'."
    )
