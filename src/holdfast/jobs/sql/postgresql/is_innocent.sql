-- Whether the job cannot be what its worker died of: it had not begun, or it was the server that died.
(COALESCE(job.max_attempts, 0) = 1 OR {{is_server_lost.sql}})
