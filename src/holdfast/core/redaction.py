"""What of a text may be kept, shown and logged: one policy for every workload, log, record and command.

Two levels. **Secrets**, such as the password of a URL, are removed before anything is stored or logged, for everyone.
**Personal data**, such as the value that a database refused, stays in the fields that need the role ``payload``: it is
never logged, and who may only read is shown the text without it.

Nobody can tell by its form whether a sentence of a handler's own names a person. So of an error that is not ours only
its kind is public, and its place where it is known; sentences of ours are. ``TextsByForm`` lets texts through, without
the values that libraries and drivers write in a known form: what is behind the first line (a driver's DETAIL, statement
and parameters), in quotes or braces, rows in parentheses, mail addresses and long numbers.
"""

from __future__ import annotations

import re
from typing import Protocol

from .secret_forms import HIDDEN, without_secret_forms

_MOST_CHARACTERS = 200_000
_LONGEST_SECRET = 8_000

_BEHIND_THE_TEXT = re.compile(r"(?:\bDETAIL:|\bCONTEXT:|\[SQL:|\[parameters:|\[type=|\binput_value=).*", re.DOTALL)
_QUOTES = {"'": "'", '"': '"', "`": "`", "“": "”", "\u2018": "\u2019", "«": "»", "„": "“"}
_OPENING = re.compile(r"(?<!\w)['\"`“\u2018«„]")
_PERSONAL: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\{.*\}|\{.*$"), f"{{{HIDDEN}}}"),
    (re.compile(r"=\s*\([^()]*\)"), f"=({HIDDEN})"),
    (re.compile(r"\([^()*,]*,[^()*]*\)"), f"({HIDDEN})"),
    (re.compile(r"(?<![\w.+%/-])[\w.+%-]+@[\w-]+(?:\.[\w-]+)*"), HIDDEN),
    (re.compile(r"\+?\b\d(?:[ .-]?\d){6,}\b"), HIDDEN),
)
_KIND = re.compile(r"([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Failed|Unavailable)|cancelled)(?=:|$)")
_OURS = re.compile(
    r"worker lease expired|ran longer than max_seconds=[\d.e+-]+|worker lost during attempt \d+|"
    r"the worker stopped(?: before the handler ended)?|the worker gave no reason|"
    r"it was given back after it had begun|discarded|the handler asked for a retry"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


class Redaction(Protocol):
    """A policy: what is taken out of texts. Both must take any text and never fail."""

    def without_secrets(self, text: str) -> str:
        """Return a text as it may be stored."""
        ...

    def without_personal_data(self, text: str) -> str:
        """Return a text without secrets as it may be logged, and shown to those who may not see payloads."""
        ...


class StandardRedaction:
    """The policy unless another is used: secrets are found by their form, and texts that are not ours are hidden."""

    def without_secrets(self, text: str) -> str:
        """Return a text without passwords, keys, signatures, tokens, queries of URLs and secrets in their paths."""
        return without_secret_forms(text)

    def without_personal_data(self, text: str) -> str:
        """Return the kind of an error, such as ``ValueError``, or a sentence that is surely ours."""
        if not text or _OURS.fullmatch(text):
            return text
        kind = _KIND.match(text)
        return HIDDEN if kind is None else kind[0]


class TextsByForm(StandardRedaction):
    """Lets the texts of handlers' errors through: values are found by their form, and a bare name has none."""

    def without_personal_data(self, text: str) -> str:
        """Return the first line of a text without the values in it."""
        first = next(iter(text.strip().splitlines()), "")
        first = _without_quoted(_BEHIND_THE_TEXT.sub("", first).rstrip())
        for pattern, instead in _PERSONAL:
            first = pattern.sub(instead, first)
        return first


_used: Redaction = StandardRedaction()
_known: dict[str, str] = {}


def use_redaction(policy: Redaction) -> Redaction:
    """Use another policy in this process from now on; return the one that was used."""
    global _used
    before, _used = _used, policy
    return before


def hide(secret: str, instead: str) -> None:
    """Have a text that is known to be secret, whatever its form, replaced wherever it stands, by any policy."""
    _known[secret] = instead


def without_secrets(text: str) -> str:
    """Return a text as it may be stored, by the policy in use: of one that is very long the beginning and the end."""
    text = text if len(text) <= _MOST_CHARACTERS else _both_ends(text)
    for secret, instead in tuple(_known.items()):
        text = text.replace(secret, instead)
    return _used.without_secrets(text)


def public(text: str) -> str:
    """Return a text as it may be logged, and shown to those who may not see payloads."""
    return escaped(_used.without_personal_data(without_secrets(text)))


def escaped(text: str) -> str:
    """Return a text whose control characters are written out, so that it cannot steer a terminal or a log.

    Line feeds and tabs stay; whoever needs one line has them written out, too (``one_line``).
    """
    return _CONTROL.sub(_written_out, text)


def escaped_json(document: str) -> str:
    """Return a JSON document whose control characters are written as escapes of JSON: its values stay as they are."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def one_line(text: str) -> str:
    """Return a text with every control character written out, line feeds as well: it cannot look like two lines."""
    return escaped(text).replace("\n", "\\n").replace("\t", "\\t")


def shown(text: str) -> str:
    """Return a text for a person: without secrets, its control characters written out."""
    return escaped(without_secrets(text))


def _both_ends(text: str) -> str:
    """Return the beginning and the end of a text, each cut where no secret is halved: half of one has no known form."""
    half = _MOST_CHARACTERS // 2
    beginning, before_cut = text[: half - _LONGEST_SECRET], text[half - _LONGEST_SECRET : half]
    after_cut, ending = text[-half : _LONGEST_SECRET - half], text[_LONGEST_SECRET - half :]
    return f"{beginning}{before_cut.rpartition(' ')[0]} … {after_cut.partition(' ')[2]}{ending}"


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _without_quoted(text: str) -> str:
    """Hide what is in quotes, from the first to the last of a kind: a value may hold quotes of its own."""
    found = _OPENING.search(text)
    if found is None:
        return text
    start, closing = found.end(), _QUOTES[found[0]]
    ends = list(re.finditer(rf"{closing}(?!\w)", text[start:]))  # not an apostrophe
    if not ends:  # the value goes on behind the line
        return text[:start] + HIDDEN
    end = start + ends[-1].start()
    return f"{text[:start]}{HIDDEN}{text[end]}{_without_quoted(text[end + 1 :])}"
