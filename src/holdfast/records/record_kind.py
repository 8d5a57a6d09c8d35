"""What dead letters and history entries have in common: how they lie in a row of SQL, and how they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Table, or_

from ..core.errors import ConfigurationError
from .failure_text import failure_parts, failure_text, words_contain
from .filters import RecordFilter, allowed
from .storable_text import given, kept, legible

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RecordKind:
    """One kind of record.

    Attributes:
        name: what one is called, with its key's column in braces.
        table: where they are.
        statuses: which a record can have.
        moment: the column that dates are asked about.
        error: the column of the failure: its words and its traceback.
        exact_texts: the columns whose texts come back exactly as they were given.
    """

    name: str
    table: Table
    statuses: type[StrEnum]
    moment: str
    error: str
    exact_texts: tuple[str, ...]

    def row_of(self, fields: Fields) -> Fields:
        """Return the columns of a record."""
        row = {**fields, "status": self.statuses(fields["status"]).value}
        traceback = row.pop("traceback")
        if row[self.error] is not None:
            row[self.error] = legible(failure_text(row[self.error], traceback))
        return self._with_texts(row, kept)

    def fields_in(self, row: Mapping[str, Any]) -> Fields:
        """Return the fields of a record.

        Raises:
            ConfigurationError: a newer version wrote it.
        """
        fields = self._with_texts(dict(row), given)
        if fields[self.error] is not None:
            fields[self.error], fields["traceback"] = failure_parts(fields[self.error])
        try:
            fields["status"] = self.statuses(fields["status"])
        except ValueError as error:
            raise ConfigurationError(
                f"{self.name.format(**fields)} has an unknown status ({error}). It was written by a newer version: "
                "upgrade."
            ) from error
        return fields

    def _with_texts(self, values: Fields, change: Callable[[str], str]) -> Fields:
        changed = {name: change(values[name]) for name in self.exact_texts if values[name] is not None}
        return {**values, **changed}

    def conditions(self, wanted: RecordFilter) -> Iterator[ColumnElement[bool]]:
        """Yield what holds for the rows that are wanted."""
        columns = self.table.c
        for name, values in allowed(wanted):
            yield or_(*(columns[name] == value for value in values))
        if wanted.since is not None:
            yield columns[self.moment] >= wanted.since
        if wanted.until is not None:
            yield columns[self.moment] < wanted.until
        if wanted.error is not None:
            yield words_contain(columns[self.error], wanted.error)

    def is_wanted(self, record: object, wanted: RecordFilter) -> bool:
        """Return whether a record fits everything that is asked for."""
        at, text = getattr(record, self.moment), getattr(record, self.error) or ""
        return (
            all(getattr(record, name) in values for name, values in allowed(wanted))
            and (wanted.since is None or at >= wanted.since)
            and (wanted.until is None or at < wanted.until)
            and (wanted.error is None or wanted.error.casefold() in text.casefold())
        )
