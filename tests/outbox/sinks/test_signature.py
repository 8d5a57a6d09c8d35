"""Signatures: what is signed is believed, anything else is refused."""

from __future__ import annotations

import base64

import pytest

from holdfast.core.errors import ConfigurationError
from holdfast.outbox.sinks import SignatureError, new_secret, verify
from holdfast.outbox.sinks.signature import signature_headers, signing_keys
from tests.clocks import SteppedClock

BODY = b'{"id":"m1"}'
SECRET = new_secret()


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


def signed(clock: SteppedClock, *secrets: str | bytes) -> dict[str, str]:
    return signature_headers(signing_keys(secrets or (SECRET,)), "m1", BODY, clock)


def test_a_request_signed_with_the_secret_is_believed(clock: SteppedClock) -> None:
    headers = signed(clock)
    assert headers["webhook-signature"].startswith("v1,")
    verify(BODY, headers, SECRET, clock=clock)


def test_the_published_example_of_standard_webhooks_verifies(clock: SteppedClock) -> None:
    """The worked example of the specification, so that other libraries understand our signatures."""
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    clock.advance(1614265330 - clock.now().timestamp())
    body, secret = b'{"test": 2432232314}', "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    verify(body, headers, secret, clock=clock)
    assert signature_headers(signing_keys(secret), headers["webhook-id"], body, clock) == headers


def test_a_wrong_secret_is_refused(clock: SteppedClock) -> None:
    with pytest.raises(SignatureError, match="not signed with this secret"):
        verify(BODY, signed(clock), new_secret(), clock=clock)


def test_a_changed_body_is_refused(clock: SteppedClock) -> None:
    with pytest.raises(SignatureError, match="changed on the way"):
        verify(BODY.replace(b"m1", b"m2"), signed(clock), SECRET, clock=clock)


@pytest.mark.parametrize("header", ["webhook-id", "webhook-timestamp"])
def test_a_changed_id_or_time_is_refused(clock: SteppedClock, header: str) -> None:
    headers = signed(clock)
    headers[header] = headers[header][:-1] + ("8" if headers[header][-1] != "8" else "9")
    with pytest.raises(SignatureError, match="not signed with this secret"):
        verify(BODY, headers, SECRET, clock=clock)


@pytest.mark.parametrize("seconds", [301, -301])
def test_a_request_from_too_long_ago_or_from_the_future_is_refused(clock: SteppedClock, seconds: float) -> None:
    headers = signed(clock)
    clock.advance(seconds)
    with pytest.raises(SignatureError, match="301 s away"):
        verify(BODY, headers, SECRET, clock=clock)


def test_the_tolerance_can_be_chosen(clock: SteppedClock) -> None:
    headers = signed(clock)
    clock.advance(301)
    verify(BODY, headers, SECRET, tolerance_seconds=302, clock=clock)
    with pytest.raises(SignatureError, match="at most 300 s"):
        verify(BODY, headers, SECRET, tolerance_seconds=300, clock=clock)


@pytest.mark.parametrize("header", ["webhook-id", "webhook-timestamp", "webhook-signature"])
@pytest.mark.parametrize("value", [None, "", "ü", "\udc80"])
def test_a_missing_header_or_one_that_is_no_text_is_refused(
    clock: SteppedClock, header: str, value: str | None
) -> None:
    headers = {name: given for name, given in signed(clock).items() if name != header}
    if value is not None:
        headers[header] = value
    with pytest.raises(SignatureError, match=header):
        verify(BODY, headers, SECRET, clock=clock)


@pytest.mark.parametrize("timestamp", ["now", "-1", "1.5", "9" * 40, " 5", "٣"])
def test_a_time_that_is_none_is_refused(clock: SteppedClock, timestamp: str) -> None:
    with pytest.raises(SignatureError, match="webhook-timestamp"):
        verify(BODY, {**signed(clock), "webhook-timestamp": timestamp}, SECRET, clock=clock)


@pytest.mark.parametrize("signature", ["v1,", "v1", "v2,abc", "v1,\u007f", "v1,AAAA v1,BBBB", "x" * 10_000])
def test_a_signature_that_is_none_is_refused(clock: SteppedClock, signature: str) -> None:
    with pytest.raises(SignatureError, match="not signed"):
        verify(BODY, {**signed(clock), "webhook-signature": signature}, SECRET, clock=clock)


def test_a_signature_of_another_version_is_not_taken_for_ours(clock: SteppedClock) -> None:
    headers = signed(clock)
    headers["webhook-signature"] = headers["webhook-signature"].replace("v1,", "v2,")
    with pytest.raises(SignatureError, match="not signed"):
        verify(BODY, headers, SECRET, clock=clock)


def test_headers_are_found_however_they_are_written(clock: SteppedClock) -> None:
    headers = {name.title(): value for name, value in signed(clock).items()}
    assert "Webhook-Id" in headers
    verify(BODY, headers, SECRET, clock=clock)


def test_while_secrets_change_both_are_good_on_both_sides(clock: SteppedClock) -> None:
    old, new = new_secret(), new_secret()
    headers = signed(clock, new, old)
    for held in (old, new, [old, new], [new_secret(), old]):
        verify(BODY, headers, held, clock=clock)
    verify(BODY, signed(clock, old), [new, old], clock=clock)
    with pytest.raises(SignatureError):
        verify(BODY, signed(clock, old), new, clock=clock)


def test_new_secrets_are_long_and_all_different() -> None:
    made = {new_secret() for _ in range(20)}
    assert len(made) == 20
    assert all(len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32 for secret in made)


def test_a_secret_may_be_given_with_or_without_prefix_or_as_bytes() -> None:
    key = bytes(range(32))
    text = base64.b64encode(key).decode()
    assert signing_keys(["whsec_" + text, text, key]) == (key, key, key)


@pytest.mark.parametrize("secret", ["", "whsec_", "hunter2 hunter2", "whsec_c2hvcnQ=", "passwörter" * 5, b"short", []])
def test_what_is_no_secret_is_refused_and_not_shown(secret: str | bytes | list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        signing_keys(secret)
    assert "secret" in str(caught.value)
    assert secret in ("", "whsec_", []) or str(secret) not in str(caught.value)
