"""Engine messages: one form, what is left out is filled in the same way each time, what is unknown is kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.errors import MessageError
from holdfast.engines.messages import Defaults, EngineMessage, json_schema, parse

DEFAULTS = Defaults(message_id="q-1", engine="hmac", operation="rotate")


def test_everything_a_message_says_is_taken() -> None:
    moment = "2026-01-31T12:00:00.250000Z"
    given = {
        "messageId": "m-1",
        "correlationId": "c-1",
        "engine": "tls",
        "operation": "renew",
        "instanceId": "i-7",
        "payload": {"days": 30},
        "enqueuedAtUtc": moment,
        "causationId": "c-0",
        "somethingElse": [1, {"two": None}],
    }
    message = parse(json.dumps(given), DEFAULTS)
    assert message == EngineMessage(
        message_id="m-1",
        correlation_id="c-1",
        engine="tls",
        operation="renew",
        payload={"days": 30},
        instance_id="i-7",
        enqueued_at=datetime(2026, 1, 31, 12, 0, 0, 250000, UTC),
        causation_id="c-0",
        others={"somethingElse": [1, {"two": None}]},
    )
    assert json.loads(message.rendered()) == given


def test_what_is_left_out_is_the_same_at_every_delivery() -> None:
    message = parse('{"payload": 1}', DEFAULTS)
    assert (message.message_id, message.engine, message.operation) == ("q-1", "hmac", "rotate")
    assert (message.instance_id, message.enqueued_at, message.causation_id) == ("publisher", None, None)
    assert message.correlation_id == parse('{"payload": 1}', DEFAULTS).correlation_id
    other = Defaults(message_id="q-2", engine="hmac", operation="rotate")
    assert message.correlation_id != parse('{"payload": 1}', other).correlation_id


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"payload": NaN}', "not JSON"),
        ("[]", "a JSON list"),
        ('"text"', "a JSON str"),
        ("[" * 100_000, "nested too deeply|not JSON"),
        ('{"messageId": 7}', "messageId 7 cannot be used: it must be text"),
        ('{"messageId": ""}', "messageId '' cannot be used: it is empty"),
        (
            '{"correlationId": "' + "x" * 201 + '"}',
            "correlationId .* cannot be used: it has 201 characters",
        ),
        ('{"engine": "No Engine"}', "may hold a-z"),
        ('{"operation": null, "instanceId": []}', "instanceId .* cannot be used: it must be text, not list"),
        ('{"enqueuedAtUtc": "yesterday"}', "is not a time"),
        ('{"enqueuedAtUtc": 7}', "is not a time"),
        ('{"messageId": "a\\u0000b"}', "messageId .* cannot be used: it holds a NUL character"),
    ],
)
def test_what_is_no_message_is_told_in_one_sentence(body: str, told: str) -> None:
    with pytest.raises(MessageError, match=told) as caught:
        parse(body, DEFAULTS)
    assert "\n" not in str(caught.value)


def test_the_schema_names_the_fields_of_the_form() -> None:
    schema: dict[str, Any] = json_schema()
    rendered = parse('{"payload": 1, "enqueuedAtUtc": "2026-01-01T00:00:00Z", "causationId": "c"}', DEFAULTS).rendered()
    assert set(json.loads(rendered)) == set(schema["properties"])
    assert schema["additionalProperties"] is True


TIMES = ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.25+01:00", "yesterday", "", "2026-02-30T12:00:00Z"]
ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just([]), st.just({}))
TEXTS = st.one_of(
    ANYTHING,
    st.text(st.characters(exclude_categories=[]), max_size=4),  # also NUL and halves of surrogate pairs
    st.sampled_from([150, 151, 200, 201]).map("x".__mul__),
    st.sampled_from(["hmac", "tls-2", "Hmac", "hmac\n", "\n", "🦀" * 200]),
)
MESSAGES = st.one_of(
    ANYTHING,
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("messageId", "correlationId", "engine", "operation", "instanceId", "causationId"), TEXTS),
            "enqueuedAtUtc": st.one_of(ANYTHING.filter(lambda value: type(value) is not str), st.sampled_from(TIMES)),
            "payload": ANYTHING,
            "other": ANYTHING,
        },
    ),
)


def validator() -> Any:
    jsonschema: Any = pytest.importorskip("jsonschema")
    checker = jsonschema.FormatChecker(formats=())
    checker.checks("date-time", raises=ValueError)(is_time)
    return jsonschema.Draft202012Validator(json_schema(), format_checker=checker)


def is_time(value: object) -> bool:
    """Texts only: what else a field may be is the schema's to say."""
    return not isinstance(value, str) or datetime.fromisoformat(value) is not None


@given(message=MESSAGES)
@settings(max_examples=400, deadline=None, derandomize=True)
@example(message={})
@example(message={"causationId": ""})
@example(message={"messageId": None, "engine": None, "enqueuedAtUtc": None, "causationId": None})
@example(message={"engine": "hmac\n"})
@example(message={"messageId": "a\ud800"})
def test_the_schema_takes_exactly_what_is_taken(message: Any) -> None:
    try:
        parse(json.dumps(message), DEFAULTS)
        is_taken = True
    except MessageError:
        is_taken = False
    assert validator().is_valid(message) is is_taken
