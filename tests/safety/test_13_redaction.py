"""Issue 13, line 13: secrets are nowhere, personal data is where the role `payload` is needed, and nowhere else."""

from __future__ import annotations

import json
import logging
import re
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.api.envelope import EscapedJson
from holdfast.cli.output import print_fields, print_json, print_line, print_table
from holdfast.core.redaction import (
    Redaction,
    StandardRedaction,
    TextsByForm,
    escaped,
    escaped_json,
    one_line,
    public,
    use_redaction,
    without_secrets,
)
from holdfast.database.error_text import error_text, public_error_text
from holdfast.outbox.sinks.webhook import WebhookSink
from holdfast.runtime.logs import LOGGERS
from tests.safety.canaries import CONTROL, LONG, PERSONAL, SECRETS
from tests.safety.told import STEERING, logged, names, secrets

SOURCE = Path(holdfast.__file__).parent


@pytest.mark.parametrize("form", SECRETS)
@given(secret=secrets, before=st.text(max_size=20), behind=st.text(max_size=20))
def test_13_13_a_secret_in_any_form_is_removed(form: str, secret: str, before: str, behind: str) -> None:
    for text_of in (form.format(secret), f"{before}\n{form.format(secret)} {behind}"):
        assert secret not in without_secrets(text_of)
        assert secret not in error_text(RuntimeError(text_of))
        assert without_secrets(without_secrets(text_of)) == without_secrets(text_of)


@pytest.mark.parametrize("form", PERSONAL)
@given(name=names)
def test_13_13_a_value_in_any_form_is_not_public(form: str, name: str) -> None:
    error = ValueError(form.format(name))
    assert name in error_text(error)
    assert name not in public(error_text(error))
    assert name not in public_error_text(error)


@given(words=st.text())
def test_13_13_no_control_character_is_shown(words: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", escaped(words))
    assert not STEERING.search(one_line(words))
    assert not STEERING.search(public(words).replace("\n", "").replace("\t", ""))
    document = escaped_json(json.dumps([words], ensure_ascii=False))
    assert not STEERING.search(document)
    assert json.loads(document) == [words]


@pytest.mark.timeout(120)  # each takes well below a second, unless a pattern looks at the same text again and again
@pytest.mark.parametrize("piece", LONG)
@pytest.mark.parametrize("policy", [StandardRedaction(), TextsByForm()], ids=["standard", "by form"])
def test_13_13_no_text_keeps_a_worker_busy(piece: str, policy: Redaction) -> None:
    """Nothing else runs in a process meanwhile, not even what extends its leases."""
    long = f"x{piece * (1_000_000 // len(piece))}x"
    before = use_redaction(policy)
    try:
        assert len(error_text(ValueError(long))) <= len(without_secrets(long)) + len("ValueError: ")
        assert len(public(long)) <= 300_000
    finally:
        use_redaction(before)


@settings(max_examples=20)
@given(secret=secrets, length=st.integers(0, 40))
def test_13_13_what_is_left_out_of_a_long_text_leaves_no_half_of_a_secret(secret: str, length: int) -> None:
    for form in SECRETS[:3]:
        said = without_secrets(f"{'x ' * 99_960}{'y' * length} {form.format(secret)} {'z' * length}{' x' * 99_960}")
        assert secret[:6] not in said
        assert secret[-6:] not in said


def test_13_13_what_holds_no_secret_stays_as_it_is() -> None:
    for words in (
        "fencing_token 7 is not 8",
        "The token file /etc/tokens cannot be read: No such file or directory.",
        "postgresql://app@host:5432/db",
        "https://host:8080/path",
        "the sign: x",
        "RuntimeError: boom",
        "Give --tls-cert, --tls-key and --token-file, or insist with --insecure.",
        "columns: id, token, password_changed_at",
        "bypass=3; compass: north; the key: 7; fencing token: 7",
        "shop@example.com",
    ):
        assert without_secrets(words) == words


@given(name=names)
def test_13_13_a_bare_name_in_a_handlers_sentence_is_not_public(name: str) -> None:
    for error in (ValueError(f"{name} has no address"), ValueError(f"{name}: none"), holdfast.HandlerError(name)):
        try:
            raise error
        except Exception as raised:
            said = public_error_text(raised)
        assert said.startswith(f"{type(error).__name__} at {Path(__file__).name}:")
        assert name not in said
        assert name not in public(error_text(error))
        assert name not in public(str(error))


def test_13_13_sentences_of_ours_are_public() -> None:
    assert public("worker lease expired") == "worker lease expired"
    assert public("cancelled: Anne asked for it") == "cancelled"


@given(name=names)
def test_13_13_another_policy_can_be_used(name: str) -> None:
    before = use_redaction(TextsByForm())
    try:
        assert public(error_text(ValueError(f"could not mail '{name}'"))) == "ValueError: could not mail '***'"
    finally:
        use_redaction(before)


def test_13_13_every_logger_goes_through_the_policy() -> None:
    sources = [path.read_text() for path in SOURCE.rglob("*.py")]
    used = {name for source in sources for name in re.findall(r'getLogger\("(holdfast[^"]*)"\)', source)}
    assert used <= set(LOGGERS)


def test_13_13_a_command_shows_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    shows = [
        partial(print_table, ["error"], [[CONTROL]]),
        partial(print_fields, [("error", CONTROL)]),
        partial(print_line, CONTROL),
    ]
    for show in shows:
        show()
        printed = capsys.readouterr().out
        assert "\\x1b[31m" in printed
        assert not STEERING.search(printed.replace("\n", ""))


def test_13_13_json_of_commands_and_answers_steers_nothing_and_says_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = {"error": [f"{CONTROL}ü\ud800"]}
    print_json(value)
    printed = capsys.readouterr().out
    for document in (printed, bytes(EscapedJson(value).body).decode()):
        assert not STEERING.search(document.replace("\n", ""))
        assert json.loads(document) == value
        assert "ü" in document


def test_13_13_the_traceback_of_an_error_of_ours_repeats_no_value() -> None:
    value, secret = "Anneliese", "hunter2"
    with logged() as log:
        try:
            raise ValueError(f"'{value}' is not a number, Password={secret}")
        except ValueError as cause:
            error = holdfast.HandlerError(f"The handler of 'orders' failed: {error_text(cause)}")
            error.__cause__ = cause
            logging.getLogger("holdfast.jobs").error("failed: %s", error, exc_info=error)
    assert "Anneliese" not in log.getvalue()
    assert "hunter2" not in log.getvalue()
    assert f"The handler of 'orders' failed: ValueError at {Path(__file__).name}:" in log.getvalue()


def test_13_13_what_a_tool_finds_in_a_logged_error_is_public() -> None:
    value, secret = "Anneliese", "hunter2"

    def handler() -> None:
        raise ValueError(f"'{value}' is not a number, Password={secret}")

    with logged() as log:
        try:
            try:
                handler()
            except ValueError as cause:
                raise holdfast.HandlerError(f"The handler of 'orders' failed: {error_text(cause)}") from cause
        except holdfast.HandlerError as error:
            logger = logging.getLogger("holdfast.trigger")
            logger.error("failed: %s", error, exc_info=True, extra={"details": {"text": [f"Password={secret}"]}})
            logger.error("failed: %(text)s", {"text": f"Password={secret}"})
    for canary in (value, secret):
        assert canary not in log.getvalue()
    assert "HandlerError(" in log.getvalue(), "a tool sees the kind"
    assert f"ValueError at {Path(__file__).name}:" in log.getvalue(), "and the place"


def test_13_13_another_librarys_log_of_a_webhooks_address_holds_no_secret() -> None:
    httpx = pytest.importorskip("httpx")
    url = "https://hooks.example/in/swordfish?key=hunter2"
    WebhookSink(url, source="shop")
    with logged() as log:
        logging.getLogger("httpx").warning("HTTP Request: %s %s", "POST", httpx.URL(url))
    assert "POST https://hooks.example/***?***" in log.getvalue()
    assert "swordfish" not in log.getvalue()
    assert without_secrets(url) == "https://hooks.example/***?***"
