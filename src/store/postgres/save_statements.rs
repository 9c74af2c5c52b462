//! The statements of a save.
//!
//! What must stay true: every one of them fails by itself when it did not write exactly what it
//! was told (see `guarded`), because the COMMIT is under way before the first reply comes back.

use super::rows::clock;

/// An update or a delete that divides by zero (22012) unless it hit as many rows as expected:
/// the rows are locked and their preconditions repeat what was loaded, so that a smaller number
/// is a bug. Counted by the server, since a check of ours would come after the commit.
macro_rules! guarded {
    ($statement:literal, $expected:literal) => {
        concat!(
            "WITH changed AS (",
            $statement,
            " RETURNING 1) SELECT 1 / (CASE WHEN (SELECT count(*) FROM changed) = ",
            $expected,
            "::bigint THEN 1 ELSE 0 END)"
        )
    };
}

/// Names a batch. Index: batches_pkey.
pub(super) const INSERT_BATCH: &str = "INSERT INTO receiptd.batches
    (bucket, batch, replica, time, settled)
    VALUES ($1::smallint, $2::bytea, $3::bytea, $4::bigint, 0)";

/// Names a batch whose fate is not known: waits for whoever inserts the same name, and returns no
/// row if it was committed. Index: batches_pkey.
pub(super) const CLAIM_BATCH: &str = concat!(
    "INSERT INTO receiptd.batches
    (bucket, batch, replica, time, settled)
    VALUES ($1::smallint, $2::bytea, $3::bytea, ",
    clock!("$4"),
    ", 0) ON CONFLICT DO NOTHING RETURNING 1"
);

/// Marks a batch that did commit: a write, so that the commit that confirms it is as durable as
/// the one it confirms. Index: batches_pkey.
pub(super) const SETTLE_BATCH: &str = guarded!(
    "UPDATE receiptd.batches SET settled = 1
    WHERE bucket = $1::smallint AND batch = $2::bytea",
    "1"
);

/// New rows. Index: operations_pkey.
pub(super) const INSERT_OPERATIONS: &str = "INSERT INTO receiptd.operations (
    bucket, account, operation_id, mint_time, digest_version, digest, part_digests, action,
    target, expected_revision, content_type, arguments, lock_mode, result_kind, inbox, labels,
    accept_time, start_deadline, state, certainty, outcome_version, outcome, end_time, due_time,
    wait_ticket, delivery_sequence, audit_length, audit_hash, replay_count, last_replay_time,
    retained)
    SELECT * FROM UNNEST(
    $1::smallint[], $2::text[], $3::bytea[], $4::bigint[], $5::smallint[], $6::bytea[],
    $7::bytea[], $8::text[], $9::text[], $10::bigint[], $11::text[], $12::bytea[],
    $13::smallint[], $14::smallint[], $15::text[], $16::text[], $17::bigint[], $18::bigint[],
    $19::smallint[], $20::smallint[], $21::integer[], $22::bytea[], $23::bigint[], $24::bigint[],
    $25::bigint[], $26::bigint[], $27::integer[], $28::bytea[], $29::bigint[], $30::bigint[],
    $31::smallint[])";

/// Changed rows; the preconditions repeat what was loaded. Index: operations_pkey.
pub(super) const UPDATE_OPERATIONS: &str = guarded!(
    "UPDATE receiptd.operations o SET
    start_deadline = k.start_deadline, state = k.state, certainty = k.certainty, outcome_version
    = k.outcome_version, outcome = k.outcome, end_time = k.end_time, due_time = k.due_time,
    wait_ticket = k.wait_ticket, delivery_sequence = k.delivery_sequence, audit_length =
    k.audit_length, audit_hash = k.audit_hash, replay_count = k.replay_count, last_replay_time =
    k.last_replay_time, retained = k.retained
    FROM UNNEST(
    $1::smallint[], $2::text[], $3::bytea[], $4::bigint[], $5::smallint[], $6::smallint[],
    $7::integer[], $8::bytea[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
    $13::integer[], $14::bytea[], $15::bigint[], $16::bigint[], $17::smallint[], $18::smallint[],
    $19::integer[], $20::integer[])
    AS k(
    bucket, account, operation_id, start_deadline, state, certainty, outcome_version, outcome,
    end_time, due_time, wait_ticket, delivery_sequence, audit_length, audit_hash, replay_count,
    last_replay_time, retained, state_before, outcome_version_before, audit_length_before)
    WHERE o.bucket = k.bucket AND o.account = k.account AND o.operation_id = k.operation_id AND
        o.state = k.state_before AND o.outcome_version = k.outcome_version_before AND
        o.audit_length = k.audit_length_before",
    "$21"
);

/// Operations that go; the preconditions repeat what was loaded. Index: operations_pkey.
pub(super) const DELETE_OPERATIONS: &str = guarded!(
    "DELETE FROM receiptd.operations o
    USING UNNEST($1::smallint[], $2::text[], $3::bytea[], $4::smallint[], $5::integer[],
        $6::integer[])
        AS k(bucket, account, operation_id, state_before, outcome_version_before,
            audit_length_before)
    WHERE o.bucket = k.bucket AND o.account = k.account AND o.operation_id = k.operation_id AND
        o.state = k.state_before AND o.outcome_version = k.outcome_version_before AND
        o.audit_length = k.audit_length_before",
    "$7"
);

/// What tombstones no longer hold. Index: operations_pkey.
pub(super) const EMPTY_OPERATIONS: &str = guarded!(
    "UPDATE receiptd.operations o SET arguments = ''::bytea, labels = $4::text
    FROM UNNEST($1::smallint[], $2::text[], $3::bytea[]) AS k(bucket, account, operation_id)
    WHERE o.bucket = k.bucket AND o.account = k.account AND o.operation_id = k.operation_id",
    "$5"
);

/// What is kept apart from them; it may be gone already. Index: payloads_pkey.
pub(super) const DELETE_PAYLOADS: &str = "DELETE FROM receiptd.payloads p
    USING UNNEST($1::smallint[], $2::text[], $3::bytea[]) AS k(bucket, account, operation_id)
    WHERE p.bucket = k.bucket AND p.account = k.account AND p.operation_id = k.operation_id";

/// Audit chains that go, with as many rows as there are. Index: audit_pkey.
pub(super) const DELETE_TRAILS: &str = "DELETE FROM receiptd.audit a
    USING UNNEST($1::smallint[], $2::text[], $3::bytea[]) AS k(bucket, account, operation_id)
    WHERE a.bucket = k.bucket AND a.account = k.account AND a.operation_id = k.operation_id";

/// New rows. Index: payloads_pkey.
pub(super) const INSERT_PAYLOADS: &str = "INSERT INTO receiptd.payloads (
    bucket, account, operation_id, kind, body)
    SELECT * FROM UNNEST(
    $1::smallint[], $2::text[], $3::bytea[], $4::smallint[], $5::bytea[])";

/// New rows. Index: accounts_pkey.
pub(super) const INSERT_ACCOUNTS: &str = "INSERT INTO receiptd.accounts (
    bucket, account, create_time, inboxes, closed_before, evidence_floor, due_time, policy)
    SELECT * FROM UNNEST(
    $1::smallint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
    $7::bigint[], $8::bytea[])";

/// Changed rows; the preconditions repeat what was loaded, and that the two times only rise.
/// Index: accounts_pkey.
pub(super) const UPDATE_ACCOUNTS: &str = guarded!(
    "UPDATE receiptd.accounts a SET
    create_time = k.create_time, inboxes = k.inboxes, closed_before = k.closed_before,
    evidence_floor = k.evidence_floor, due_time = k.due_time, policy = k.policy
    FROM UNNEST(
    $1::smallint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
    $7::bigint[], $8::bytea[], $9::bigint[])
    AS k(
    bucket, account, create_time, inboxes, closed_before, evidence_floor, due_time, policy,
    inboxes_before)
    WHERE a.bucket = k.bucket AND a.account = k.account AND a.inboxes = k.inboxes_before AND
        a.closed_before <= k.closed_before AND a.evidence_floor <= k.evidence_floor",
    "$10"
);

/// New rows. Index: documents_pkey.
pub(super) const INSERT_DOCUMENTS: &str = "INSERT INTO receiptd.documents (
    bucket, account, target, revision, generation, present, content_type, content, size,
    content_hash, create_time, update_time, locked)
    SELECT * FROM UNNEST(
    $1::smallint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::smallint[],
    $7::text[], $8::bytea[], $9::bigint[], $10::bytea[], $11::bigint[], $12::bigint[],
    $13::smallint[])";

/// Changed rows; the preconditions repeat what was loaded. Content that
/// was not loaded is left as it is. Index: documents_pkey.
pub(super) const UPDATE_DOCUMENTS: &str = guarded!(
    "UPDATE receiptd.documents d SET
    revision = k.revision, generation = k.generation, present = k.present, content_type =
    k.content_type, content = COALESCE(k.content, d.content), size = k.size, content_hash =
    k.content_hash, create_time = k.create_time, update_time = k.update_time, locked = k.locked
    FROM UNNEST(
    $1::smallint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::smallint[],
    $7::text[], $8::bytea[], $9::bigint[], $10::bytea[], $11::bigint[], $12::bigint[],
    $13::smallint[], $14::bigint[])
    AS k(
    bucket, account, target, revision, generation, present, content_type, content, size,
    content_hash, create_time, update_time, locked, revision_before)
    WHERE d.bucket = k.bucket AND d.account = k.account AND d.target = k.target AND
        d.revision = k.revision_before",
    "$15"
);

/// New rows. Index: locks_pkey.
pub(super) const INSERT_LOCKS: &str = "INSERT INTO receiptd.locks (
    bucket, account, target, holder, acquire_time, release_time, lock_mode, next_ticket,
    waiting, due_time)
    SELECT * FROM UNNEST(
    $1::smallint[], $2::text[], $3::text[], $4::bytea[], $5::bigint[], $6::bigint[],
    $7::smallint[], $8::bigint[], $9::bigint[], $10::bigint[])";

/// Changed rows; the preconditions repeat what was loaded. Index: locks_pkey.
pub(super) const UPDATE_LOCKS: &str = guarded!(
    "UPDATE receiptd.locks l SET
    holder = k.holder, acquire_time = k.acquire_time, release_time = k.release_time, lock_mode =
    k.lock_mode, next_ticket = k.next_ticket, waiting = k.waiting, due_time = k.due_time
    FROM UNNEST(
    $1::smallint[], $2::text[], $3::text[], $4::bytea[], $5::bigint[], $6::bigint[],
    $7::smallint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[])
    AS k(
    bucket, account, target, holder, acquire_time, release_time, lock_mode, next_ticket,
    waiting, due_time, next_ticket_before)
    WHERE l.bucket = k.bucket AND l.account = k.account AND l.target = k.target AND
        l.next_ticket = k.next_ticket_before",
    "$12"
);

/// New rows. Index: inboxes_pkey.
pub(super) const INSERT_INBOXES: &str = "INSERT INTO receiptd.inboxes (
    bucket, account, inbox, generation, next_sequence, offered, reserved, pending, returned,
    in_flight, acked_total, expired_total, dead_total, consumer_epoch, consumers, create_time,
    due_time, first_sequence, kept_from, closing, deleted, slots_limit, in_flight_limit,
    active_time, upkeep_time, skipped)
    SELECT * FROM UNNEST(
    $1::smallint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
    $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
    $13::bigint[], $14::bigint[], $15::bytea[], $16::bigint[], $17::bigint[], $18::bigint[],
    $19::bigint[], $20::bigint[], $21::smallint[], $22::bigint[], $23::bigint[], $24::bigint[],
    $25::bigint[], $26::bytea[])";

/// Changed rows; the preconditions repeat what was loaded. Index: inboxes_pkey.
pub(super) const UPDATE_INBOXES: &str = guarded!(
    "UPDATE receiptd.inboxes i SET
    generation = k.generation, next_sequence = k.next_sequence, offered = k.offered, reserved =
    k.reserved, pending = k.pending, returned = k.returned, in_flight = k.in_flight, acked_total
    = k.acked_total, expired_total = k.expired_total, dead_total = k.dead_total, consumer_epoch
    = k.consumer_epoch, consumers = k.consumers, create_time = k.create_time, due_time =
    k.due_time, first_sequence = k.first_sequence, kept_from = k.kept_from, closing = k.closing,
    deleted = k.deleted, slots_limit = k.slots_limit, in_flight_limit = k.in_flight_limit,
    active_time = k.active_time, upkeep_time = k.upkeep_time, skipped = k.skipped
    FROM UNNEST(
    $1::smallint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
    $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
    $13::bigint[], $14::bigint[], $15::bytea[], $16::bigint[], $17::bigint[], $18::bigint[],
    $19::bigint[], $20::bigint[], $21::smallint[], $22::bigint[], $23::bigint[], $24::bigint[],
    $25::bigint[], $26::bytea[], $27::bigint[], $28::bigint[])
    AS k(
    bucket, account, inbox, generation, next_sequence, offered, reserved, pending, returned,
    in_flight, acked_total, expired_total, dead_total, consumer_epoch, consumers, create_time,
    due_time, first_sequence, kept_from, closing, deleted, slots_limit, in_flight_limit,
    active_time, upkeep_time, skipped, next_sequence_before, consumer_epoch_before)
    WHERE i.bucket = k.bucket AND i.account = k.account AND i.inbox = k.inbox AND
        i.next_sequence = k.next_sequence_before AND
        i.consumer_epoch = k.consumer_epoch_before",
    "$29"
);

/// New rows. Index: deliveries_pkey.
pub(super) const INSERT_DELIVERIES: &str = "INSERT INTO receiptd.deliveries (
    bucket, account, inbox, sequence, operation_id, outcome_version, state, attempt, queue_time,
    available_time, ack_deadline, expire_time, due_time, end_time, last_failure_time, consumer,
    consumer_epoch, returns, lock_target, ack_time, ack_attempt, ack_subject, ack_consumer,
    ack_hash, attempts_before)
    SELECT * FROM UNNEST(
    $1::smallint[], $2::text[], $3::text[], $4::bigint[], $5::bytea[], $6::integer[],
    $7::smallint[], $8::integer[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
    $13::bigint[], $14::bigint[], $15::bigint[], $16::text[], $17::bigint[], $18::integer[],
    $19::text[], $20::bigint[], $21::integer[], $22::text[], $23::text[], $24::bytea[],
    $25::integer[])";

/// Changed rows; the preconditions repeat what was loaded. Index: deliveries_pkey.
pub(super) const UPDATE_DELIVERIES: &str = guarded!(
    "UPDATE receiptd.deliveries d SET
    operation_id = k.operation_id, outcome_version = k.outcome_version, state = k.state, attempt
    = k.attempt, queue_time = k.queue_time, available_time = k.available_time, ack_deadline =
    k.ack_deadline, expire_time = k.expire_time, due_time = k.due_time, end_time = k.end_time,
    last_failure_time = k.last_failure_time, consumer = k.consumer, consumer_epoch =
    k.consumer_epoch, returns = k.returns, lock_target = k.lock_target, ack_time = k.ack_time,
    ack_attempt = k.ack_attempt, ack_subject = k.ack_subject, ack_consumer = k.ack_consumer,
    ack_hash = k.ack_hash, attempts_before = k.attempts_before
    FROM UNNEST(
    $1::smallint[], $2::text[], $3::text[], $4::bigint[], $5::bytea[], $6::integer[],
    $7::smallint[], $8::integer[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
    $13::bigint[], $14::bigint[], $15::bigint[], $16::text[], $17::bigint[], $18::integer[],
    $19::text[], $20::bigint[], $21::integer[], $22::text[], $23::text[], $24::bytea[],
    $25::integer[], $26::smallint[], $27::integer[])
    AS k(
    bucket, account, inbox, sequence, operation_id, outcome_version, state, attempt, queue_time,
    available_time, ack_deadline, expire_time, due_time, end_time, last_failure_time, consumer,
    consumer_epoch, returns, lock_target, ack_time, ack_attempt, ack_subject, ack_consumer,
    ack_hash, attempts_before, state_before, attempt_before)
    WHERE d.bucket = k.bucket AND d.account = k.account AND d.inbox = k.inbox AND
        d.sequence = k.sequence AND d.state = k.state_before AND
        d.attempt = k.attempt_before",
    "$28"
);

/// New rows. Index: audit_pkey.
pub(super) const INSERT_AUDIT: &str = "INSERT INTO receiptd.audit (
    bucket, account, operation_id, number, time, subject, events, hash)
    SELECT * FROM UNNEST(
    $1::smallint[], $2::text[], $3::bytea[], $4::integer[], $5::bigint[], $6::text[],
    $7::bytea[], $8::bytea[])";

/// The store's own row; the precondition repeats what was read. Index: store_facts_pkey.
pub(super) const UPDATE_LIFE: &str = guarded!(
    "UPDATE receiptd.store_facts f SET value = $2::bytea
    WHERE f.bucket = 0 AND f.account = '' AND f.name = 'life' AND f.value = $1::bytea",
    "$3"
);

/// Locks that go; the precondition repeats what was loaded. Index: locks_pkey.
pub(super) const DELETE_LOCKS: &str = guarded!(
    "DELETE FROM receiptd.locks l
    USING UNNEST($1::smallint[], $2::text[], $3::text[], $4::bigint[])
        AS k(bucket, account, target, next_ticket_before)
    WHERE l.bucket = k.bucket AND l.account = k.account AND l.target = k.target
        AND l.next_ticket = k.next_ticket_before",
    "$5"
);

/// Deliveries that go; the preconditions repeat what was loaded. Index: deliveries_pkey.
pub(super) const DELETE_DELIVERIES: &str = guarded!(
    "DELETE FROM receiptd.deliveries d
    USING UNNEST($1::smallint[], $2::text[], $3::text[], $4::bigint[], $5::smallint[],
        $6::integer[])
        AS k(bucket, account, inbox, sequence, state_before, attempt_before)
    WHERE d.bucket = k.bucket AND d.account = k.account AND d.inbox = k.inbox
        AND d.sequence = k.sequence AND d.state = k.state_before
        AND d.attempt = k.attempt_before",
    "$7"
);
