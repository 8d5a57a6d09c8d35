"""``holdfast audit``: who changed what by hand, and when."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from ..core.types import JsonObject
from ..records import audit
from ..records.audit import AuditRow, present_user
from ..records.paging import DEFAULT_LIMIT
from ..records.retention import check_configured_days, prune_audit
from ..records.seals import Head, Verified
from ..records.seals import seal as seal_audit
from ..records.seals import verify as verify_audit
from .exits import CommandError, ExitCode
from .filters import AfterOption, LimitOption, age_option
from .options import AppOption, JsonOption, group
from .output import print_answer, print_json, print_line
from .records import app_with_tables, counted, described_fields, in_one_cell, print_page, shown_moment

audit_app = group("See who changed what by hand, and whether that was changed since.")
_SHOWN_FINDINGS = 10
_DAY_SECONDS = 86_400.0

_COLUMNS = ("at", "actor", "action", "target", "details")
_ActionOption = Annotated[str | None, typer.Option("--action", help="Only of this kind, such as 'dlq resolve'.")]
_HeadOption = Annotated[
    str | None, typer.Option("--head", metavar="NUMBER:DIGEST", help="A head kept elsewhere, such as in the log.")
]
_OlderThanOption = Annotated[timedelta | None, age_option("changes that were made longer ago")]
_TargetOption = Annotated[str | None, typer.Option("--target", help="Only of this thing.")]


@audit_app.command("list")
def list_audit(
    app: AppOption = None,
    action: _ActionOption = None,
    target: _TargetOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    after: AfterOption = None,
    as_json: JsonOption = False,
) -> None:
    """List changes made by hand, the newest first."""
    hf = app_with_tables(app)
    page = audit.page(hf.database, action=action, target=target, limit=limit, after=after)
    print_page(page, _COLUMNS, _row, _described, nothing="Nothing was changed by hand that fits.", as_json=as_json)


@audit_app.command("seal")
def seal(app: AppOption = None, as_json: JsonOption = False) -> None:
    """Seal now what workers would seal within a minute, and print the head to be kept elsewhere."""
    hf = app_with_tables(app)
    seal_audit(hf.database)
    head = verify_audit(hf.database).head
    shown = None if head is None else str(head)
    print_answer({"head": shown}, as_json, "Nothing was ever changed by hand." if shown is None else shown)


@audit_app.command("verify")
def verify(app: AppOption = None, head: _HeadOption = None, as_json: JsonOption = False) -> None:
    """Compare the audit with its seals: say which row was changed, removed or inserted behind one.

    Ends with exit code 1 when something was. Without --head, a chain that was made anew as a whole is not noticed.
    """
    hf = app_with_tables(app)
    found = verify_audit(hf.database, None if head is None else Head.parsed(head))
    if as_json:
        print_json({**described_fields(found), "head": None if found.head is None else str(found.head)})
    elif not found.findings:
        print_line(_shown(found))
    if found.findings:
        shown = "; ".join(found.findings[:_SHOWN_FINDINGS])
        more = len(found.findings) - _SHOWN_FINDINGS
        several = f"; and {more:,} more" if more > 0 else ""
        raise CommandError(
            f"The audit is not what was sealed: {shown}{several}. Compare it with a backup.", ExitCode.FAILED
        )


@audit_app.command("prune")
def prune(older_than: _OlderThanOption = None, app: AppOption = None, as_json: JsonOption = False) -> None:
    """Delete sealed changes that are older, at least 7 days. Their seals stay, and the audit tells who did it."""
    if older_than is None:
        raise typer.BadParameter("say from which age on, such as --older-than 400d")
    days = older_than.total_seconds() / _DAY_SECONDS
    check_configured_days(days)
    deleted = prune_audit(app_with_tables(app).database, days, present_user())
    print_answer({"deleted": deleted}, as_json, f"{counted(deleted, 'row')} deleted.")


def _shown(found: Verified) -> str:
    pruned = f", the rows of {counted(found.pruned_seals, 'seal')} pruned" if found.pruned_seals else ""
    return (
        f"As it was sealed: {counted(found.rows, 'row')} under {counted(found.seals, 'seal')}{pruned}; "
        f"{found.unsealed_rows:,} not sealed yet; head {found.head or 'none'}."
    )


def _described(row: AuditRow) -> JsonObject:
    return described_fields(row)


def _row(row: AuditRow) -> tuple[str, ...]:
    details = ", ".join(f"{name}={value}" for name, value in (row.details or {}).items())
    return shown_moment(row.at), row.actor, row.action, row.target, in_one_cell(details)
