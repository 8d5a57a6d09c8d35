-- End jobs that succeeded: they become history in the same transaction [FENCE-2]. Rows: the claims that were ours.
SELECT report.id, report.attempt FROM {{claims.sql}} FOR UPDATE;
{{success_history.sql}};
DELETE job FROM {{claims.sql}}
