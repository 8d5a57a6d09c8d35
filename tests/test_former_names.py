"""What has another name now: the former one works for one release, and is the same thing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast import Holdfast
from holdfast.records import combined_tables

_OLD = """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from holdfast.state.stores.sql import SqlDocumentStore
    from holdfast.state.lease import Lease
    from holdfast.state import document
import holdfast.lease.document, holdfast.lease.held_lease, holdfast.lease.stores.sql
assert SqlDocumentStore is holdfast.lease.stores.sql.SqlDocumentStore
assert Lease is holdfast.lease.held_lease.Lease
assert document is holdfast.lease.document
assert document.__name__ == document.__spec__.name == "holdfast.lease.document"
print([str(each.message) for each in told if each.category is DeprecationWarning])
"""


def test_imports_of_the_former_name_are_of_the_same_modules_and_are_warned_of() -> None:
    told = subprocess.run([sys.executable, "-c", _OLD], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[\"'holdfast.state' is called 'holdfast.lease' now. Import from there.\"]"


def test_what_has_another_name_works_for_one_release_and_is_warned_of() -> None:
    hf = Holdfast("sqlite:///no.db")
    with pytest.warns(DeprecationWarning, match="is called 'redrive' now"):
        assert type(hf.putting_back) is type(hf.redrive)
    with pytest.warns(DeprecationWarning, match="is called 'operator' now"):
        assert type(hf.processors.by_hand) is type(hf.processors.operator)
    with pytest.warns(DeprecationWarning, match="RoutedLetters' is called 'CombinedLetters' now"):
        assert combined_tables.RoutedLetters is combined_tables.CombinedLetters
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        combined_tables.Nothing  # noqa: B018
