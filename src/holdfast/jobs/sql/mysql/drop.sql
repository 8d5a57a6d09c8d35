-- Remove what has come to its end, in the transaction that records that end [FENCE-2]. Rows: the claims that were ours.
SELECT report.id, report.attempt FROM {{claims.sql}} FOR UPDATE;
DELETE job FROM {{claims.sql}}
