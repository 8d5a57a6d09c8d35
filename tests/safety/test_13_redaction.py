"""Issue 13, line 13: secrets are nowhere, personal data is where the role `payload` is needed, and nowhere else."""

from __future__ import annotations

import io
import json
import logging
import re
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import inspect, text
from sqlalchemy.engine import Engine

import holdfast
from holdfast import EngineProvider, Holdfast
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
from tests.api.clients import Office
from tests.runtime.workloads import WORKLOADS
from tests.safety.canaries import CONTROL, LONG, PERSONAL, SECRETS

SOURCE = Path(holdfast.__file__).parent
secrets = st.from_regex(r"[A-Za-z0-9]{11}[0-9][A-Za-z0-9]{12}", fullmatch=True)
names = st.from_regex(r"[A-Z][a-z]{7}", fullmatch=True)
BIDIRECTIONAL = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
MARKS = "\u061c\u200e\u200f"
STEERING = re.compile(
    "["
    + "".join(
        re.escape(chr(each))
        for each in range(0x3000)
        if unicodedata.category(chr(each)) == "Cc" or unicodedata.bidirectional(chr(each)) in BIDIRECTIONAL
    )
    + MARKS
    + "\u2028\u2029\ufeff\ud800-\udfff]"
)  # controls, marks of direction, ends of lines, a mark of byte order, halves of characters
# Where the role `payload` is needed: nothing of these is shown to `read`.
PAYLOAD_COLUMNS = {
    ("holdfast_history", "input"),
    ("holdfast_history", "output"),
    ("holdfast_history", "error"),
    ("holdfast_dead_letters", "original_message"),
    ("holdfast_dead_letters", "error_message"),
    ("holdfast_jobs", "payload"),
    ("holdfast_jobs", "last_error"),
}


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
        assert said.startswith(f"{type(error).__name__} at {__name__}:")
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


class Counted:
    """A metrics back end that keeps every name and label."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def increment(self, name: str, value: float = 1, *, labels: Mapping[str, str] | None = None) -> None:
        self.told.append(f"{name} {dict(labels or {})}")

    observe = set_gauge = increment


class EverythingFormatter(logging.Formatter):
    """Prints every field of a record as JSON, and of its error what tools that report errors send away."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {**vars(record), "exc_info": None, "message": record.getMessage()}
        error = record.exc_info[1] if record.exc_info else None
        return json.dumps({**fields, "error": [*_insides(error)]}, default=str, ensure_ascii=False)


def _insides(error: BaseException | None) -> Iterator[str]:
    """Yield an error, its causes, and the variables of all their frames."""
    while error is not None:
        yield f"{error!r} {vars(error)}"
        yield from (str(frame.tb_frame.f_locals) for frame in _frames(error))
        error = error.__cause__ or error.__context__


def _frames(error: BaseException) -> Iterator[TracebackType]:
    frame = error.__traceback__
    while frame is not None:
        yield frame
        frame = frame.tb_next


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """Collect what any handler would print of any logger, tracebacks and all, as lines and as JSON."""
    stream, root = io.StringIO(), logging.getLogger()
    plain, everything = logging.StreamHandler(stream), logging.StreamHandler(stream)
    plain.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    everything.setFormatter(EverythingFormatter())
    level = logging.getLogger("holdfast").level
    for handler in (plain, everything):
        root.addHandler(handler)
    logging.getLogger("holdfast").setLevel(logging.DEBUG)
    try:
        yield stream
    finally:
        for handler in (plain, everything):
            root.removeHandler(handler)
        logging.getLogger("holdfast").setLevel(level)


def cells_of(engine: Engine) -> Iterator[tuple[tuple[str, str], str]]:
    with engine.connect() as connection:
        for table in inspect(connection).get_table_names():
            for row in connection.execute(text(f"SELECT * FROM {table}")).mappings():
                yield from (((table, column), str(value)) for column, value in row.items())


class RaisedError(Exception):
    """What a handler raises."""


def failing(secret: str, name: str) -> RaisedError:
    said = [form.format(secret) for form in SECRETS] + [form.format(name) for form in PERSONAL]
    return RaisedError(
        f"{name} has no address. {PERSONAL[6].format(name)} {SECRETS[0].format(secret)} {CONTROL} " + "\n".join(said)
    )


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.mark.parametrize("kind", WORKLOADS)
def test_13_13_secrets_are_nowhere_and_personal_data_only_for_payload(
    url: str, kind: str, portal: BlockingPortal, capsys: pytest.CaptureFixture[str]
) -> None:
    provider, metrics, seen = EngineProvider(), Counted(), 0
    workload = WORKLOADS[kind](url, provider)
    workload.app = lambda: Holdfast(url, engine_provider=provider, metrics=metrics)  # type: ignore[method-assign] # its own
    hf = workload.app()
    hf.migrate()

    @settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
    @given(secret=secrets, name=names)
    def check(secret: str, name: str) -> None:
        nonlocal seen
        seen += 1
        item = f"item{seen}"

        def handle(item: str, context: object) -> None:
            raise failing(secret, name)

        with logged() as log:
            workload.add([item])
            workload.run([item], handle)
        office = Office(hf, portal)
        failed = re.findall("^(?:WARNING|ERROR) .*RaisedError.*", log.getvalue(), re.MULTILINE)
        assert failed
        assert [
            each for each in failed if not re.search(r"RaisedError at [\w.]*test_13_redaction[\w.]*:\d", each)
        ] == []
        told_elsewhere = log.getvalue().splitlines() + metrics.told
        assert [line for line in told_elsewhere if secret in line or name in line or "\x1b" in line] == []
        cells = list(cells_of(hf.database))
        assert [column for column, value in cells if secret in value] == []
        assert {column for column, value in cells if name in value} <= PAYLOAD_COLUMNS
        seen_by_reader, seen_by_auditor = answers(office, "reader"), answers(office, "auditor")
        assert [shown for shown in seen_by_reader + seen_by_auditor if secret in shown] == []
        assert [shown for shown in seen_by_reader if name in shown] == []
        if kind in ("job", "engine"):
            assert [shown for shown in seen_by_auditor if name in shown] != []

    check()
    provider.dispose_all()


def answers(office: Office, who: str) -> list[str]:
    """Everything that a caller can be shown of dead letters and history."""
    client = getattr(office, who)
    found: list[str] = []
    for path in ("/api/dlq", "/api/history"):
        for item in client.get(path).items:
            found += [str(item), str(client.get(f"{path}/{item['engine']}/{item['rowKey']}").body)]
    return found


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
    assert f"The handler of 'orders' failed: ValueError at {__name__}:" in log.getvalue()


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
    assert f"ValueError at {__name__}:" in log.getvalue(), "and the place"


def test_13_13_another_librarys_log_of_a_webhooks_address_holds_no_secret() -> None:
    httpx = pytest.importorskip("httpx")
    url = "https://hooks.example/in/swordfish?key=hunter2"
    WebhookSink(url, source="shop")
    with logged() as log:
        logging.getLogger("httpx").warning("HTTP Request: %s %s", "POST", httpx.URL(url))
    assert "POST https://hooks.example/***?***" in log.getvalue()
    assert "swordfish" not in log.getvalue()
    assert without_secrets(url) == "https://hooks.example/***?***"
