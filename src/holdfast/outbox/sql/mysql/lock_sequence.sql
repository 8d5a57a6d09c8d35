-- Let one sequencer at a time give positions, and none that was succeeded [OUTBOX-6]. Rows: 1, none for a stale one.
SELECT last_position FROM holdfast_outbox_sequence WHERE id = 1 AND fencing_token <= :token FOR UPDATE
