"""14.13: what an answer that is no success means: whether to try again, and when."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.outbox.sinks.answers import asked_to_wait, is_permanent

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    "status",
    [300, 301, 302, 303, 304, 307, 308, 400, 402, 404, 405, 406, 410, 411, 412, 413, 414, 415, 416, 417, 422, 428, 499],
)
def test_14_13_permanent_is_what_would_be_answered_to_the_same_request_again(status: int) -> None:
    assert is_permanent(status)


@pytest.mark.parametrize(
    "status", [401, 403, 407, 408, 409, 421, 423, 424, 425, 429, 500, 501, 502, 503, 504, 507, 511, 599]
)
def test_14_13_passing_is_what_may_change_without_the_message(status: int) -> None:
    assert not is_permanent(status)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "30"}, 30.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"retry-after": "999999999"}, 999_999_999.0),
        ({"retry-after": "Wed, 04 Mar 2026 05:07:07 GMT"}, 60.0),
        ({"retry-after": "Wed, 04 Mar 2026 05:05:07 GMT"}, 0.0),
        ({"retry-after": "Wed, 04 Mar 2026 05:07:07 GMT", "date": "Wed, 04 Mar 2026 05:07:00 GMT"}, 7.0),
        ({"retry-after": "Wed, 04 Mar 2026 05:07:07 GMT", "date": "yesterday"}, 60.0),
        ({"retry-after": "Wed, 04 Mar 2026 05:07:07 -0000"}, 60.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "1.5"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "9" * 5000}, None),
        ({"retry-after": "Wed, 04 Mar 99999 05:07:07 GMT"}, None),
        ({}, None),
    ],
)
def test_14_13_retry_after_is_seconds_or_a_date_by_the_receivers_clock(
    status: int, headers: dict[str, str], seconds: float | None
) -> None:
    assert asked_to_wait(status, headers, NOW) == seconds


@pytest.mark.parametrize("status", [301, 400, 401, 500, 502])
def test_14_13_other_answers_do_not_say_when(status: int) -> None:
    assert asked_to_wait(status, {"retry-after": "30"}, NOW) is None
