-- [OUTBOX-2] Store a checkpoint if the stored one is the expected one and, when a token is given, the token still holds.
-- 1 stored, 0 ignored (already there), 2 ahead (the stored one is further), 3 behind (it is not as far), 4 not in charge.
-- Checkpoints are pairs and compared as pairs; without an expected one, only a processor without any is moved.
CREATE OR REPLACE FUNCTION holdfast_store_checkpoint(
    p_processor text, p_version integer, p_partition integer, p_token bigint,
    p_expected_transaction xid8, p_expected_position bigint,
    p_transaction xid8, p_position bigint, p_highest bigint
) RETURNS integer LANGUAGE plpgsql AS $body$
DECLARE
    stored record;
BEGIN
    UPDATE holdfast_processor_checkpoints
    SET last_processed_transaction_id = p_transaction, last_processed_position = p_position,
        highest_position = greatest(highest_position, p_highest), updated_at = clock_timestamp()
    WHERE processor_id = p_processor AND version = p_version AND partition_number = p_partition
      AND last_processed_transaction_id IS NOT DISTINCT FROM p_expected_transaction
      AND last_processed_position IS NOT DISTINCT FROM p_expected_position
      AND (p_token IS NULL OR (fencing_token = p_token AND status = 'running' AND role <> 'retired'));
    IF FOUND THEN
        RETURN 1;
    END IF;
    IF p_expected_position IS NULL AND p_token IS NULL THEN
        INSERT INTO holdfast_processor_checkpoints
            (processor_id, version, partition_number, last_processed_transaction_id, last_processed_position,
             highest_position)
        VALUES (p_processor, p_version, p_partition, p_transaction, p_position, p_highest)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN 1;
        END IF;
    END IF;
    SELECT * INTO stored FROM holdfast_processor_checkpoints
    WHERE processor_id = p_processor AND version = p_version AND partition_number = p_partition;
    IF p_token IS NOT NULL
       AND (NOT FOUND OR stored.fencing_token <> p_token OR stored.status <> 'running' OR stored.role = 'retired') THEN
        RETURN 4;
    ELSIF stored.last_processed_position IS NULL THEN
        RETURN 3;
    ELSIF (stored.last_processed_transaction_id, stored.last_processed_position) = (p_transaction, p_position) THEN
        RETURN 0;
    ELSIF p_expected_position IS NULL
       OR (stored.last_processed_transaction_id, stored.last_processed_position)
          > (p_expected_transaction, p_expected_position) THEN
        RETURN 2;
    END IF;
    RETURN 3;
END
$body$;
