"""Every public name of azure-functions-db is here, takes the same arguments, and stands in our table."""

import inspect
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from tests.components.processes import REPOSITORY

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import azure_functions_db

PAGE = (REPOSITORY / "docs" / "azure-functions-db.md").read_text()
TABLE = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
NAMES = [name for name in azure_functions_db.__all__ if name != "__version__"]


def callables(name: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield every callable of a public name with ours beside it."""
    theirs, ours = getattr(azure_functions_db, name), getattr(holdfast, name)
    if not isinstance(theirs, type):
        if callable(theirs) and not isinstance(theirs, type(int | str)):
            yield name, theirs, ours
        return
    if not getattr(theirs, "_is_protocol", False) and "__init__" in vars(theirs):
        yield f"{name}()", theirs, ours
    for attribute, value in vars(theirs).items():
        if inspect.isfunction(value) and not attribute.startswith("_"):
            yield f"{name}.{attribute}", value, getattr(ours, attribute)


@pytest.mark.parametrize("name", NAMES)
def test_the_name_is_exported(name: str) -> None:
    assert name in holdfast.__all__
    assert type(getattr(holdfast, name)) is type(getattr(azure_functions_db, name))


@pytest.mark.parametrize("name", NAMES)
def test_everything_takes_the_same_arguments_in_the_same_order(name: str) -> None:
    for label, theirs, ours in callables(name):
        wanted = inspect.signature(theirs).parameters.values()
        has = [one for one in inspect.signature(ours).parameters.values() if not one.name.startswith("_")]
        known = [one.name for one in wanted]
        has.sort(key=lambda one: one.kind is one.KEYWORD_ONLY and known.index(one.name) if one.name in known else 999)
        shown = [(one.name, one.kind, shown_default(one)) for one in has]
        assert shown[: len(wanted)] == [(one.name, one.kind, shown_default(one)) for one in wanted], label
        for added in has[len(wanted) :]:
            assert added.default is not added.empty, f"{label}: {added.name} is new and must be optional"


def shown_default(parameter: inspect.Parameter) -> str:
    """Defaults made anew for each object have no equality; their kind must do."""
    return re.sub(r" at 0x\w+", "", repr(parameter.default))


@pytest.mark.parametrize("name", NAMES)
def test_properties_fields_and_bases_are_there(name: str) -> None:
    theirs, ours = getattr(azure_functions_db, name), getattr(holdfast, name)
    if not isinstance(theirs, type):
        return
    for attribute, value in vars(theirs).items():
        if isinstance(value, property) and not attribute.startswith("_"):
            assert isinstance(inspect.getattr_static(ours, attribute), property)
    assert set(getattr(theirs, "__dataclass_fields__", ())) <= set(getattr(ours, "__dataclass_fields__", ()))
    if issubclass(theirs, Exception):
        assert [base.__name__ for base in theirs.__mro__] == [base.__name__ for base in ours.__mro__]


@pytest.mark.parametrize("name", azure_functions_db.__all__)
def test_the_table_has_the_name_and_everything_public_of_it(name: str) -> None:
    assert name in TABLE
    same = TABLE[name].partition(" | ")[0]
    theirs = getattr(azure_functions_db, name)
    if not isinstance(theirs, type) or "fields" in same:
        return
    public = {attribute for attribute in vars(theirs) if not attribute.startswith("_")}
    assert public <= set(re.findall(r"`(\w+)`", same))


def test_the_table_names_every_addition_and_nothing_that_is_not_there() -> None:
    for name in NAMES:
        theirs, ours = getattr(azure_functions_db, name), getattr(holdfast, name)
        if not isinstance(theirs, type) or issubclass(theirs, Exception) or getattr(theirs, "_is_protocol", False):
            continue
        added = {one for one in inspect.signature(ours).parameters if not one.startswith("_")}
        added |= {one for one in vars(ours) if not one.startswith("_")} - {"document_name"}
        added -= set(inspect.signature(theirs).parameters) | {one for one in dir(theirs) if not one.startswith("_")}
        told = set(re.findall(r"`(\w+)(?:\(\))?`", TABLE[name].partition(" | ")[2]))
        assert added <= told, f"{name}: {added - told} is not in the table"


def test_names_of_submodules_that_the_page_promises_are_exported() -> None:
    paragraph = PAGE.partition("Names that its documentation")[2].partition("\n\n")[0]
    names = re.findall(r"`(\w+)`", paragraph)
    assert len(names) > 10
    assert set(names) - {"holdfast"} <= set(holdfast.__all__)
