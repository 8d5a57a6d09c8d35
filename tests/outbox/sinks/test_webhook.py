"""The webhook sink against a real web server: in order, signed, and delivered only when 2xx was answered."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.core.errors import ConfigurationError, DeliveryError, MissingDependencyError, OutboxError
from holdfast.outbox.sinks import SignatureError, WebhookSink, new_secret, verify
from holdfast.outbox.sinks.cloud_events import as_json
from tests.clocks import SteppedClock
from tests.components.ports import HOST, free_port
from tests.outbox.sinks.messages import SOURCE, message, messages
from tests.outbox.sinks.receiver import Answer, Receiver, Request, receiving

NewSink = Callable[..., WebhookSink]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture
def new_sink(receiver: Receiver) -> Iterator[NewSink]:
    """Makes sinks that post to the receiver unless a URL is given, and closes them."""
    made: list[WebhookSink] = []

    def make(url: str | None = None, **options: Any) -> WebhookSink:
        made.append(WebhookSink(url or receiver.url, **{"source": SOURCE, **options}))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


# What is sent


def test_messages_arrive_one_by_one_in_order_with_their_ids(receiver: Receiver, new_sink: NewSink) -> None:
    new_sink().send(messages(20))
    assert receiver.ids == [f"m{number}" for number in range(1, 21)]
    assert [request.event["id"] for request in receiver.requests] == receiver.ids
    assert [request.event["data"]["order"] for request in receiver.requests] == list(range(1, 21))
    assert {request.headers["content-type"] for request in receiver.requests} == {"application/cloudevents+json"}


def test_batched_messages_arrive_in_one_request_in_order(receiver: Receiver, new_sink: NewSink) -> None:
    new_sink(batch=True).send(messages(20))
    [request] = receiver.requests
    assert request.headers["content-type"] == "application/cloudevents-batch+json"
    assert [event["id"] for event in request.event] == [f"m{number}" for number in range(1, 21)]


def test_a_batch_is_split_before_it_grows_too_large(receiver: Receiver, new_sink: NewSink) -> None:
    sent = [*messages(3), message(4, data="x" * 5000), *(message(number) for number in range(5, 9))]
    most = 2 * len(as_json(message(1), SOURCE)) + 50
    new_sink(batch=True, max_batch_bytes=most).send(sent)
    in_requests = [[event["id"] for event in request.event] for request in receiver.requests]
    assert in_requests == [["m1", "m2"], ["m3"], ["m4"], ["m5", "m6"], ["m7", "m8"]]
    assert all(len(request.body) <= most for request in receiver.requests if len(request.event) > 1)
    assert len(set(receiver.ids)) == 5


def test_nothing_to_send_sends_nothing(receiver: Receiver, new_sink: NewSink) -> None:
    new_sink().send([])
    new_sink(batch=True).send([])
    assert receiver.requests == []


@pytest.mark.parametrize("batch", [False, True])
def test_what_is_delivered_again_has_the_same_ids_and_bodies(
    receiver: Receiver, new_sink: NewSink, batch: bool
) -> None:
    clock = SteppedClock()
    new_sink(batch=batch, clock=clock).send(messages(3))
    first, receiver.requests = receiver.requests, []
    clock.advance(3600)
    new_sink(batch=batch, clock=clock).send(messages(3))
    assert [(each.headers["webhook-id"], each.body) for each in first] == [
        (each.headers["webhook-id"], each.body) for each in receiver.requests
    ]
    assert len(first) == (1 if batch else 3)


def test_two_different_batches_have_different_ids(receiver: Receiver, new_sink: NewSink) -> None:
    sink = new_sink(batch=True)
    sink.send(messages(2))
    sink.send(messages(3))
    assert len(set(receiver.ids)) == 2


def test_an_id_that_no_header_can_hold_is_percent_encoded(receiver: Receiver, new_sink: NewSink) -> None:
    secret = new_secret()
    new_sink(secret=secret).send([message(1, message_id="bäcker 7%\r\nx: y")])
    [request] = receiver.requests
    assert request.headers["webhook-id"] == "b%C3%A4cker%207%25%0D%0Ax:%20y"
    assert request.event["id"] == "bäcker 7%\r\nx: y"
    assert "x" not in request.headers
    verify(request.body, request.headers, secret)


def test_own_headers_and_credentials_in_the_url_are_sent(receiver: Receiver, new_sink: NewSink) -> None:
    url = receiver.url.replace("http://", "http://app:s3cret%40@") + "?tenant=blue"
    new_sink(url, headers={"x-shop": "north"}).send(messages(1))
    [request] = receiver.requests
    assert request.headers["x-shop"] == "north"
    assert request.headers["authorization"] == "Basic " + base64.b64encode(b"app:s3cret@").decode()
    assert request.path == "/hook?tenant=blue"


def test_one_connection_serves_many_messages(receiver: Receiver, new_sink: NewSink) -> None:
    receiver.answer = lambda request: Answer(200, body=b"thank you")
    new_sink().send(messages(10))
    assert len({request.connection for request in receiver.requests}) == 1


# Signatures


def test_every_request_is_signed_and_stands_up_to_verification(receiver: Receiver, new_sink: NewSink) -> None:
    secret = new_secret()
    new_sink(secret=secret).send(messages(3))
    new_sink(secret=secret, batch=True).send(messages(3))
    assert len(receiver.requests) == 4
    for request in receiver.requests:
        verify(request.body, request.headers, secret)
        with pytest.raises(SignatureError):
            verify(request.body, request.headers, new_secret())
        with pytest.raises(SignatureError):
            verify(request.body + b" ", request.headers, secret)


def test_the_time_of_sending_is_signed_so_that_old_requests_can_be_refused(
    receiver: Receiver, new_sink: NewSink
) -> None:
    clock, secret = SteppedClock(), new_secret()
    new_sink(secret=secret, clock=clock).send(messages(1))
    [request] = receiver.requests
    verify(request.body, request.headers, secret, clock=clock)
    clock.advance(301)
    with pytest.raises(SignatureError, match="301 s away"):
        verify(request.body, request.headers, secret, clock=clock)


def test_while_secrets_change_receivers_with_either_one_are_served(receiver: Receiver, new_sink: NewSink) -> None:
    old, new = new_secret(), new_secret()
    new_sink(secret=[new, old]).send(messages(1))
    [request] = receiver.requests
    verify(request.body, request.headers, old)
    verify(request.body, request.headers, new)
    assert len(request.headers["webhook-signature"].split(" ")) == 2


def test_without_a_secret_there_is_no_signature(receiver: Receiver, new_sink: NewSink) -> None:
    new_sink().send(messages(1))
    [request] = receiver.requests
    assert "webhook-signature" not in request.headers
    assert request.headers["webhook-timestamp"].isdigit()


# What is not delivered


def third_is(answer: Answer) -> Callable[[Request], Answer]:
    return lambda request: answer if request.headers["webhook-id"] == "m3" else Answer()


@pytest.mark.parametrize("status", [400, 401, 404, 410, 429, 500, 503])
def test_any_other_answer_raises_and_nothing_behind_it_is_sent(
    receiver: Receiver, new_sink: NewSink, status: int
) -> None:
    receiver.answer = third_is(Answer(status, body=b"the secret of the receiver"))
    with pytest.raises(OutboxError) as caught:
        new_sink().send(messages(5))
    assert receiver.ids == ["m1", "m2", "m3"]
    assert f"answered {status} to message 'm3'" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_is_a_delivery(receiver: Receiver, new_sink: NewSink, status: int) -> None:
    receiver.answer = lambda request: Answer(status)
    new_sink().send(messages(2))
    assert receiver.ids == ["m1", "m2"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(receiver: Receiver, new_sink: NewSink, status: int) -> None:
    receiver.answer = lambda request: Answer(status, {"location": "/elsewhere"})
    with pytest.raises(OutboxError, match="Redirects are not followed"):
        new_sink(secret=new_secret()).send(messages(1))
    assert [request.path for request in receiver.requests] == ["/hook"]


def test_a_redirect_is_not_followed_by_a_client_of_ones_own_either(receiver: Receiver, new_sink: NewSink) -> None:
    receiver.answer = lambda request: Answer(307, {"location": "/elsewhere"})
    with httpx.Client(follow_redirects=True) as client, pytest.raises(OutboxError, match="Redirects are not followed"):
        new_sink(client=client).send(messages(1))
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("status", "header", "told"),
    [
        (429, "30", "asks to wait 30 s before the next try (Retry-After)"),
        (503, "Wed, 04 Mar 2020 05:06:07 GMT", "asks to wait 0 s before the next try (Retry-After)"),
        (503, "soon", "Look into the receiver's log"),
        (503, "9" * 5000, "Look into the receiver's log"),
        (400, "30", "Look into the receiver's log"),
    ],
)
def test_when_the_receiver_asks_to_wait_the_error_says_so(
    receiver: Receiver, new_sink: NewSink, status: int, header: str, told: str
) -> None:
    receiver.answer = lambda request: Answer(status, {"retry-after": header})
    with pytest.raises(OutboxError) as caught:
        new_sink().send(messages(1))
    assert told in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_receiver_that_does_not_answer_in_time_raises(receiver: Receiver, new_sink: NewSink) -> None:
    receiver.answer = third_is(Answer(is_silent=True))
    with pytest.raises(OutboxError, match=r"did not answer within 0\.2 s to message 'm3'"):
        new_sink(timeout_seconds=0.2).send(messages(5))
    assert receiver.ids == ["m1", "m2", "m3"]


def test_a_receiver_that_breaks_off_raises(new_sink: NewSink) -> None:
    with socket.create_server((HOST, 0)) as server:
        sink = new_sink(f"http://{HOST}:{server.getsockname()[1]}/hook")
        _break_off_once(server)
        with pytest.raises(OutboxError, match=r"broke off .* at message 'm1'"):
            sink.send(messages(1))


def _break_off_once(server: socket.socket) -> None:
    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 2")

    threading.Thread(target=answer, daemon=True).start()


def test_nobody_there_raises(new_sink: NewSink) -> None:
    with pytest.raises(OutboxError, match="could not be reached"):
        new_sink(f"http://{HOST}:{free_port()}/hook").send(messages(1))


def test_a_failed_batch_names_where_it_begins(receiver: Receiver, new_sink: NewSink) -> None:
    receiver.answer = lambda request: Answer(500)
    with pytest.raises(OutboxError, match="answered 500 to the batch of 4 from message 'm1' on"):
        new_sink(batch=True).send(messages(4))


def test_after_a_failure_the_same_sink_delivers_again(receiver: Receiver, new_sink: NewSink) -> None:
    sink = new_sink()
    receiver.answer = third_is(Answer(503))
    with pytest.raises(OutboxError):
        sink.send(messages(3))
    receiver.answer = lambda request: Answer()
    sink.send(messages(3))
    assert receiver.ids == ["m1", "m2", "m3", "m1", "m2", "m3"]


# What a receiver could do to us


def test_an_endless_answer_is_cut_off_and_still_a_delivery(receiver: Receiver, new_sink: NewSink) -> None:
    receiver.answer = lambda request: Answer(200, is_endless=True)
    new_sink().send(messages(1))
    assert receiver.was_cut_off.wait(10)


def test_an_endless_answer_that_is_no_delivery_is_cut_off_too(receiver: Receiver, new_sink: NewSink) -> None:
    receiver.answer = lambda request: Answer(500, is_endless=True)
    with pytest.raises(OutboxError, match="answered 500"):
        new_sink().send(messages(1))
    assert receiver.was_cut_off.wait(10)


def test_a_certificate_that_nobody_vouches_for_is_refused(new_sink: NewSink, tmp_path: Path) -> None:
    with receiving(_self_signed(tmp_path)) as stranger:
        with pytest.raises(OutboxError, match="CERTIFICATE_VERIFY_FAILED"):
            new_sink(stranger.url).send(messages(1))
        assert stranger.requests == []
        trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
        with httpx.Client(verify=trusting) as client:
            new_sink(stranger.url, client=client).send(messages(1))
        assert stranger.ids == ["m1"]


def _self_signed(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stranger")])
    today = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


# What is shown


def test_no_error_log_or_repr_shows_a_credential_or_a_secret(
    receiver: Receiver, new_sink: NewSink, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = new_secret()
    url = receiver.url.replace("http://", "http://app:hunter2@")
    sink = new_sink(url, secret=secret)
    receiver.answer = lambda request: Answer(500)
    with pytest.raises(OutboxError) as caught:
        sink.send(messages(1))
    shown = [repr(sink), str(caught.value)]
    assert all(receiver.url.replace("/hook", "/***") in text for text in shown)  # a path may be the secret
    logged = [record.getMessage() for record in caplog.records if record.name == "httpx"]
    assert logged
    assert not any("hunter2" in text or secret in text for text in [*shown, *logged])


def test_an_error_does_not_show_the_query(receiver: Receiver, new_sink: NewSink) -> None:
    receiver.answer = lambda request: Answer(500)
    with pytest.raises(OutboxError) as caught:
        new_sink(f"{receiver.url}?token=hunter2#part").send(messages(1))
    assert receiver.requests[0].path == "/hook?token=hunter2"
    assert "hunter2" not in str(caught.value)


# What cannot be declared


@pytest.mark.parametrize(
    "url",
    ["", "shop.example", "ftp://shop.example", "https://", "https://h:port/", "http://h/a b", "http://[::1", None],
)
def test_what_is_no_url_is_refused(url: Any) -> None:
    with pytest.raises(ConfigurationError, match="https://host/path"):
        WebhookSink(url, source=SOURCE)


@pytest.mark.parametrize("name", ["Content-Type", "webhook-id", "Webhook-Signature", "x y", "x\r\ny", ""])
def test_headers_that_cannot_be_sent_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="header"):
        WebhookSink("https://shop.example/hook", source=SOURCE, headers={name: "x"})


@pytest.mark.parametrize("value", ["a\r\nb: c", "ü", "\x00"])
def test_header_values_that_cannot_be_sent_are_refused_and_not_shown(value: str) -> None:
    with pytest.raises(ConfigurationError, match="'x-shop' cannot be sent") as caught:
        WebhookSink("https://shop.example/hook", source=SOURCE, headers={"x-shop": value})
    assert value not in str(caught.value)


def test_a_source_and_a_secret_are_checked_when_the_sink_is_made() -> None:
    with pytest.raises(ConfigurationError, match="URI reference"):
        WebhookSink("https://shop.example/hook", source="my shop")
    with pytest.raises(ConfigurationError, match="webhook secret"):
        WebhookSink("https://shop.example/hook", source=SOURCE, secret="hunter2")


def test_without_httpx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'holdfast\[webhook\]'"):
        WebhookSink("https://shop.example/hook", source=SOURCE)


def test_closing_closes_the_sinks_own_client_and_not_yours(receiver: Receiver) -> None:
    with httpx.Client() as client:
        WebhookSink(receiver.url, source=SOURCE, client=client).close()
        assert not client.is_closed
    sink = WebhookSink(receiver.url, source=SOURCE)
    sink.close()
    with pytest.raises(DeliveryError, match="closed"):
        sink.send(messages(1))
