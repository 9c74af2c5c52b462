-- The first schema. Every key begins with (bucket, account); times are microseconds since 1970,
-- enums are the numbers pinned in domain/. NULL means "absent" exactly where a comment says so.

CREATE TABLE receiptd.store_facts (
    bucket  SMALLINT NOT NULL,          -- 0
    account TEXT COLLATE "C" NOT NULL,             -- ''
    name    TEXT COLLATE "C" NOT NULL,  -- life, token_key, or replica: and its name
    value   BYTEA NOT NULL,
    PRIMARY KEY (bucket, account, name)
);

-- The one table without account: names batches, so that a lost commit can be settled.
CREATE TABLE receiptd.batches (
    bucket  SMALLINT NOT NULL,
    batch   BYTEA NOT NULL,
    replica BYTEA NOT NULL,
    time    BIGINT NOT NULL,
    settled SMALLINT NOT NULL,
    PRIMARY KEY (bucket, batch)
);
-- For the sweep of old rows, which goes replica by replica. One entry per batch, not per command.
CREATE INDEX batches_by_replica ON receiptd.batches (replica, time, batch);

CREATE TABLE receiptd.accounts (
    bucket         SMALLINT NOT NULL,
    account        TEXT COLLATE "C" NOT NULL,
    create_time    BIGINT NOT NULL,
    inboxes        BIGINT NOT NULL,
    closed_before  BIGINT NOT NULL, -- this and the floor only rise
    evidence_floor BIGINT NOT NULL,
    due_time       BIGINT NOT NULL, -- when closed_before may rise by a step
    policy         BYTEA,           -- NULL: as the server says, and never changed
    PRIMARY KEY (bucket, account)
) WITH (fillfactor = 50);
-- Changes with closed_before alone: some 24 times in an admission window.
CREATE INDEX accounts_due ON receiptd.accounts (bucket, due_time, account);

CREATE TABLE receiptd.operations (
    bucket            SMALLINT NOT NULL,
    account           TEXT COLLATE "C" NOT NULL,
    operation_id      BYTEA NOT NULL,
    mint_time         BIGINT NOT NULL,  -- milliseconds
    digest_version    SMALLINT NOT NULL,  -- 0: sealed, without intent
    digest            BYTEA NOT NULL,
    part_digests      BYTEA NOT NULL,
    action            TEXT COLLATE "C" NOT NULL,
    target            TEXT COLLATE "C" NOT NULL,
    expected_revision BIGINT,           -- NULL: any
    content_type      TEXT COLLATE "C" NOT NULL,
    arguments         BYTEA,              -- NULL: kept in payloads
    lock_mode         SMALLINT NOT NULL,  -- 1 until final, 2 until acked
    result_kind       SMALLINT NOT NULL,  -- 1 receipt only, 2 content
    inbox             TEXT COLLATE "C",              -- NULL: no delivery
    labels            TEXT COLLATE "C" NOT NULL,     -- JSON object, sorted keys
    accept_time       BIGINT NOT NULL,
    start_deadline    BIGINT NOT NULL,
    state             SMALLINT NOT NULL,
    certainty         SMALLINT NOT NULL,
    outcome_version   INTEGER NOT NULL,
    outcome           BYTEA,              -- NULL: none yet
    end_time          BIGINT,           -- NULL: not ended
    due_time          BIGINT,           -- NULL: nothing can become overdue
    wait_ticket       BIGINT,           -- NULL: does not wait
    delivery_sequence BIGINT,           -- NULL: none yet
    audit_length      INTEGER NOT NULL,
    audit_hash        BYTEA NOT NULL,
    replay_count      BIGINT NOT NULL,
    last_replay_time  BIGINT,           -- NULL: never replayed
    retained          SMALLINT NOT NULL -- 1 whole, 2 tombstone, 3 tombstone without its trail
) WITH (fillfactor = 90);
CREATE INDEX operations_by_time ON receiptd.operations (bucket, account, accept_time, operation_id);
CREATE INDEX operations_unresolved ON receiptd.operations (bucket, account, accept_time, operation_id)
    WHERE end_time IS NULL;
CREATE INDEX operations_waiting ON receiptd.operations (bucket, account, target, wait_ticket)
    WHERE wait_ticket IS NOT NULL;
CREATE INDEX operations_due ON receiptd.operations (bucket, due_time, account, operation_id)
    WHERE due_time IS NOT NULL AND end_time IS NULL;
-- What has ended and ages; apart, so that it never holds up what waits.
CREATE INDEX operations_aging ON receiptd.operations (bucket, due_time, account, operation_id)
    WHERE due_time IS NOT NULL AND end_time IS NOT NULL;
-- The last index: while the table is empty all cost the same, and the planner takes the youngest.
ALTER TABLE receiptd.operations ADD PRIMARY KEY (bucket, account, operation_id);

-- Apart from the narrow rows. kind 1: arguments above 1 KiB; 2: the body of the result.
CREATE TABLE receiptd.payloads (
    bucket       SMALLINT NOT NULL,
    account      TEXT COLLATE "C" NOT NULL,
    operation_id BYTEA NOT NULL,
    kind         SMALLINT NOT NULL,
    body         BYTEA NOT NULL,
    PRIMARY KEY (bucket, account, operation_id, kind)
);
-- Not compressed: a slice is read without what stands before it.
ALTER TABLE receiptd.payloads ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE receiptd.documents (
    bucket       SMALLINT NOT NULL,
    account      TEXT COLLATE "C" NOT NULL,
    target       TEXT COLLATE "C" NOT NULL,
    revision     BIGINT NOT NULL,
    generation   BIGINT NOT NULL,
    present      SMALLINT NOT NULL,  -- 0: a marker of a deleted document
    content_type TEXT COLLATE "C" NOT NULL,
    size         BIGINT NOT NULL,
    content_hash BYTEA NOT NULL,
    create_time  BIGINT NOT NULL,
    update_time  BIGINT NOT NULL,
    locked       SMALLINT NOT NULL,  -- 1: locks has a row for it
    content      BYTEA NOT NULL,  -- last: what follows a large value costs a walk over it
    PRIMARY KEY (bucket, account, target)
) WITH (fillfactor = 60);

CREATE TABLE receiptd.locks (
    bucket           SMALLINT NOT NULL,
    account          TEXT COLLATE "C" NOT NULL,
    target           TEXT COLLATE "C" NOT NULL,
    holder           BYTEA,     -- NULL: released, waiters being started; then the next four are NULL
    acquire_time     BIGINT,
    release_time     BIGINT,
    lock_mode        SMALLINT,
    next_ticket      BIGINT NOT NULL,
    waiting          BIGINT NOT NULL,
    due_time         BIGINT NOT NULL,
    PRIMARY KEY (bucket, account, target)
);
CREATE INDEX locks_due ON receiptd.locks (bucket, due_time, account, target);

CREATE TABLE receiptd.inboxes (
    bucket         SMALLINT NOT NULL,
    account        TEXT COLLATE "C" NOT NULL,
    inbox          TEXT COLLATE "C" NOT NULL,
    generation     BIGINT NOT NULL,
    next_sequence  BIGINT NOT NULL,
    offered        BIGINT NOT NULL,
    reserved       BIGINT NOT NULL,
    pending        BIGINT NOT NULL,
    returned       BIGINT NOT NULL,
    in_flight      BIGINT NOT NULL,
    acked_total    BIGINT NOT NULL,
    expired_total  BIGINT NOT NULL,
    dead_total     BIGINT NOT NULL,
    consumer_epoch BIGINT NOT NULL,
    consumers      BYTEA NOT NULL,
    create_time    BIGINT NOT NULL,
    due_time       BIGINT,          -- NULL: a marker without kept rows
    first_sequence  BIGINT NOT NULL,  -- of this generation
    kept_from       BIGINT NOT NULL,  -- what is below was purged
    closing         BIGINT NOT NULL,  -- open deliveries of deleted generations
    deleted         SMALLINT NOT NULL,  -- 1: a marker of a deleted inbox
    slots_limit     BIGINT,  -- NULL: as the policy says
    in_flight_limit BIGINT,  -- NULL: as the policy says
    active_time     BIGINT NOT NULL,
    upkeep_time     BIGINT,  -- NULL: a marker without kept rows
    skipped         BYTEA,   -- NULL: no number was passed over by a mark
    PRIMARY KEY (bucket, account, inbox)
) WITH (fillfactor = 50);
CREATE INDEX inboxes_due ON receiptd.inboxes (bucket, due_time, account, inbox) WHERE due_time IS NOT NULL;

CREATE TABLE receiptd.deliveries (
    bucket            SMALLINT NOT NULL,
    account           TEXT COLLATE "C" NOT NULL,
    inbox             TEXT COLLATE "C" NOT NULL,
    sequence          BIGINT NOT NULL,
    operation_id      BYTEA NOT NULL,
    outcome_version   INTEGER NOT NULL,
    state             SMALLINT NOT NULL,
    attempt           INTEGER NOT NULL,
    queue_time        BIGINT NOT NULL,
    available_time    BIGINT,          -- NULL: not returned or redriven
    ack_deadline      BIGINT,          -- NULL: not in flight
    expire_time       BIGINT NOT NULL,
    due_time          BIGINT,          -- NULL: ended
    end_time          BIGINT,          -- NULL: not ended
    last_failure_time BIGINT,          -- NULL: no attempt failed
    consumer          TEXT COLLATE "C",             -- NULL: not in flight
    consumer_epoch    BIGINT,          -- NULL: not in flight
    returns           INTEGER NOT NULL,
    attempts_before   INTEGER NOT NULL,
    lock_target       TEXT COLLATE "C",             -- NULL: holds no lock
    ack_time          BIGINT,          -- NULL: never acked; then the next four are NULL
    ack_attempt       INTEGER,
    ack_subject       TEXT COLLATE "C",
    ack_consumer      TEXT COLLATE "C",
    ack_hash          BYTEA,
    PRIMARY KEY (bucket, account, inbox, sequence)
) WITH (fillfactor = 55);
CREATE INDEX deliveries_due ON receiptd.deliveries (bucket, due_time, account, inbox, sequence)
    WHERE due_time IS NOT NULL;
CREATE INDEX deliveries_returned ON receiptd.deliveries (bucket, account, inbox, available_time, sequence)
    WHERE available_time IS NOT NULL;
CREATE INDEX deliveries_lost ON receiptd.deliveries (bucket, account, inbox, sequence)
    WHERE state IN (4, 5);
-- An inbox's own open deliveries, by number: what is fresh or held costs nothing for its history,
-- nor for other inboxes. The last index, so that an empty table is read by it as well.
CREATE INDEX deliveries_open ON receiptd.deliveries (bucket, account, inbox, sequence)
    WHERE due_time IS NOT NULL;

CREATE TABLE receiptd.audit (
    bucket       SMALLINT NOT NULL,
    account      TEXT COLLATE "C" NOT NULL,
    operation_id BYTEA NOT NULL,  -- no bytes: the account's own chain
    number       INTEGER NOT NULL,
    time         BIGINT NOT NULL,
    subject      TEXT COLLATE "C" NOT NULL,
    events       BYTEA NOT NULL,
    hash         BYTEA NOT NULL,
    PRIMARY KEY (bucket, account, operation_id, number)
);
