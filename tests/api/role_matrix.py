"""Which role every route of the HTTP API needs. A route without a row fails a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.api import Role

TABLES = {
    "storageAccountName": "",
    "dlqTableName": "engineDlq",
    "historyTableName": "engineHistory",
    "retentionDays": 30,
}
SETTLED = {"status": "Resolved", "resolutionNotes": "by hand"}
CHANGE = {"jobId": "job-7", "changes": {}}


@dataclass(frozen=True)
class Row:
    """What a request needs: one row for each route, and one more for each part of it that needs another role."""

    method: str
    path: str
    role: Role
    body: dict[str, Any] | None = field(default=None, hash=False)
    query: str = ""

    @property
    def address(self) -> str:
        return self.address_of("key")

    def address_of(self, row_key: str) -> str:
        return self.path.format(engine="hmac", rowKey=row_key) + self.query

    def __str__(self) -> str:
        return f"{self.method} {self.path}{self.query} {self.role}"


MATRIX = [
    Row("GET", "/api/openapi.json", Role.READ),
    Row("GET", "/api/dlq", Role.READ),
    Row("GET", "/api/dlq", Role.PAYLOAD, query="?error=boom"),
    Row("GET", "/api/dlq/{engine}/{rowKey}", Role.READ),
    Row("PATCH", "/api/dlq/{engine}/{rowKey}", Role.OPERATE, SETTLED),
    Row("PATCH", "/api/dlq/{engine}/{rowKey}", Role.ADMIN, {**SETTLED, "force": True}),
    Row("POST", "/api/dlq/{engine}/{rowKey}/retry", Role.OPERATE),
    Row("POST", "/api/dlq/expire", Role.OPERATE, {"olderThanDays": 1}),
    Row("GET", "/api/history", Role.READ),
    Row("GET", "/api/history", Role.PAYLOAD, query="?error=boom"),
    Row("GET", "/api/history/{engine}/{rowKey}", Role.READ),
    Row("GET", "/api/engines", Role.READ),
    Row("POST", "/api/engines/{engine}/messages", Role.OPERATE, {"payload": 1}),
    Row("GET", "/api/registry", Role.READ),
    Row("GET", "/api/audit", Role.READ),
    Row("POST", "/api/registry", Role.ADMIN, {}),
    Row("POST", "/api/registry/lock", Role.OPERATE, {"jobId": "job-7"}),
    Row("POST", "/api/registry/unlock", Role.OPERATE, {"jobId": "job-7"}),
    Row("POST", "/api/registry/unlock", Role.ADMIN, {"jobId": "job-7", "force": True}),
    Row("PATCH", "/api/registry", Role.OPERATE, CHANGE),
    Row("PATCH", "/api/registry", Role.ADMIN, {"jobId": "job-7", "engineTablesConfig": TABLES}),
]
FOR_EVERYBODY = {"/health/live", "/health/ready"}
"""What is answered at the middleware, without a token."""

MAY = {
    Role.READ: {Role.READ},
    Role.PAYLOAD: {Role.READ, Role.PAYLOAD},
    Role.OPERATE: {Role.READ, Role.OPERATE},
    Role.ADMIN: set(Role),
}
