"""The forms that secrets have in texts of libraries, drivers and tools, and what takes them out.

Any text may come here, also one that somebody has made to keep us busy: each pattern looks at a text once, in a time
that grows with its length and no faster. While one is matched no other thread runs, not even one that extends a lease.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class _Form:
    """A pattern, what is written instead, and words (in small letters) of which every text that it matches has one."""

    words: tuple[str, ...]
    pattern: re.Pattern[str]
    instead: str


def _form(words: str, pattern: str, instead: str = rf"\1{HIDDEN}", flags: re.RegexFlag = re.IGNORECASE) -> _Form:
    return _Form(tuple(words.split()), re.compile(pattern, flags), instead)


_KEYS_OF = "(?:access|account|api|secret|private|signing|encryption|master|auth|functions?|subscription)"
_KEY = (
    rf"[\w.-]*(?:password|passwd|passphrase|pwd|secret|sharedaccesskey|sharedaccesssignature|{_KEYS_OF}[_-]?key|"
    r"credential)|(?:[\w.-]*[_.-])?pass|(?:[\w-]+[_-])?token|(?:[\w-]+-)?signature|sig"
)
_HEADER = (
    r"x-[\w-]*(?:key|token|secret|signature[\w-]{0,20})|[\w-]*(?:api|access|subscription)[_-]?key|"
    r"[\w-]+[_-](?:token|secret|password)|[\w-]+-signature"
)
_NOT_YET = r"(?!\*\*\*)"  # so that a text that went through it once stays as it is
_IS = r"[\"']?\s*[:=]\s*[\"']?"
_HAS = r"\\?[\"']?\s*=\s*|\\?[\"']\s*[:,]\s*"
_PARAMETER = r"[\w-]+=(?:\"[^\"]*\"?|[^\s,\"']*)"
_CREDENTIALS = rf"[^\s\"',;]+(?:\s+(?:{_PARAMETER}(?:[\s,]\s*{_PARAMETER})*|[^\s\"',;]+))?"
_IN_DOUBLE = r"[bru]{0,2}\"(?:\\.|\"\"|[^\"\\])*\"?"
_IN_SINGLE = r"[bru]{0,2}'(?:\\.|''|[^'\\])*'?"
_IN_BRACES = r"\{(?:\}\}|[^}])*\}?"  # as ODBC quotes a value
_LISTED = r"[(\[][^)\]]*[)\]]?"
_VALUE = rf"(?:{_IN_DOUBLE}|{_IN_SINGLE}|{_IN_BRACES}|{_LISTED}|[^\s;&\"'][^\s;&]*)"
_FORMS = (
    _form("private", r"-----BEGIN [^-]*PRIVATE KEY-----.*?(?:-----END[^-]*-----|\Z)", HIDDEN, re.DOTALL),
    _form("%2f%2f", r"(%3A%2F%2F[^\s%]*%3A)[^\s@]*?(%40|@|(?=\s)|\Z)", rf"\1{HIDDEN}\2"),
    _form("authorization", rf"\b(authorization{_IS}){_NOT_YET}{_CREDENTIALS}"),
    _form("bearer", rf"\b(bearer\s+){_NOT_YET}[\w.~+/=-]{{8,}}"),
    _form("cookie", rf"\b(cookie{_IS}){_NOT_YET}[^\s\"'][^\r\n\"']*"),
    _form(
        "pass pwd secret key credential token sig",
        rf"(?<![\w.-])({_KEY})({_HAS}){_NOT_YET}{_VALUE}",
        rf"\1\2{HIDDEN}",
        re.IGNORECASE | re.DOTALL,
    ),
    _form("key token secret signature password", rf"(?<![\w-])((?:{_HEADER})\s*:\s*){_NOT_YET}[^\s;&]+"),
    _form(
        "password passwd passphrase pwd secret",
        rf"\b((?:password|passwd|passphrase|pwd|secret)\s*:\s*){_NOT_YET}[^\s;&]+",
    ),
    _form("token", rf"\b(token\s*:\s*){_NOT_YET}(?=\S{{0,99}}\d)(?=\S{{0,99}}[A-Za-z])\S{{8,}}"),
    _form("--", rf"(--[\w-]*(?:password|passwd|secret|token|api-key)\s+){_NOT_YET}[^\s-]\S*"),
    _form("identified password", rf"\b((?:identified\s+by|password)\s+){_NOT_YET}{_IN_SINGLE}"),
    _form("code= key= auth=", rf"([?&](?:code|key|auth)=){_NOT_YET}[^\s&\"'<>]+"),
    _form("hf_ whsec_", r"\b((?:hf|whsec)_)[\w+/=-]{8,}", flags=re.NOFLAG),
    _form("gh github npm", r"\b(gh[a-z]_|github_pat_|npm_)[\w-]{16,}", flags=re.NOFLAG),
    _form("glpat- pypi- xox sk-", r"\b(glpat-|pypi-|xox[a-z]-|sk-)[\w-]{16,}", flags=re.NOFLAG),
    _form("_live_ _test_ hvs.", r"\b([sr]k_live_|[sr]k_test_|hvs\.)[\w-]{16,}", flags=re.NOFLAG),
    _form("akia asia aiza", r"\b(AKIA|ASIA|AIza)[\w-]{16,}", flags=re.NOFLAG),
    _form("eyj", r"\beyJ[\w-]{5,}\.[\w-]+\.[\w-]*", HIDDEN, re.NOFLAG),
)
_WORD = re.compile(r"\S+")
_USER = re.compile(r"://[^\s:@/]*:")
_TOKEN_AS_USER = re.compile(r"(https?://)(?!\*\*\*)[^\s/@:'\"?#<>]+(?=@)")
_URL = re.compile(r"((?:https?|wss?)://[^\s?#'\"<>]*)(\?[^\s'\"<>]*)?")
_IN_SEGMENT = r"[\w.~:@!+=%-]"
_LONG_SEGMENT = re.compile(
    rf"(?<=/)(?:(?={_IN_SEGMENT}*\d)(?={_IN_SEGMENT}*[A-Za-z]){_IN_SEGMENT}{{20,}}|[\w~-]{{24,}})(?=/|$)"
)


def without_secret_forms(text: str) -> str:
    """Return a text without passwords, keys, signatures, tokens, queries of URLs and secrets in their paths."""
    if "://" in text:
        text = _WORD.sub(_without_password, text)
        text = _URL.sub(_without_query, _TOKEN_AS_USER.sub(rf"\1{HIDDEN}", text))
    small = text.lower()
    for form in _FORMS:
        if any(word in small for word in form.words):
            text = form.pattern.sub(form.instead, text)
    return text


def _without_password(word: re.Match[str]) -> str:
    """Hide the password of a URL, up to the last @ of the word: an unencoded one may itself hold "@", ":" and "/"."""
    text = word[0]
    at = text.rfind("@")
    user = _USER.search(text, 0, max(at, 0))
    return text if user is None else f"{text[: user.end()]}{HIDDEN}{text[at:]}"


def _without_query(url: re.Match[str]) -> str:
    """Hide the query of a URL, and what in its path is long and random."""
    place = _LONG_SEGMENT.sub(HIDDEN, url[1])
    return place if url[2] is None else f"{place}?{HIDDEN}"
