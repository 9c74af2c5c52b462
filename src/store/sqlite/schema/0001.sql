-- The first schema. Every key begins with (bucket, account); times are microseconds since 1970,
-- enums are the numbers pinned in domain/. NULL means "absent" exactly where a comment says so.

CREATE TABLE store_facts (
    bucket  INTEGER NOT NULL,          -- 0
    account TEXT NOT NULL,             -- ''
    name    TEXT NOT NULL,
    value   BLOB NOT NULL,
    PRIMARY KEY (bucket, account, name)
) STRICT, WITHOUT ROWID;

-- The one table without account: names batches, so that a lost commit can be settled.
CREATE TABLE batches (
    bucket  INTEGER NOT NULL,
    batch   BLOB NOT NULL,
    replica BLOB NOT NULL,
    time    INTEGER NOT NULL,
    settled INTEGER NOT NULL,
    PRIMARY KEY (bucket, batch)
) STRICT, WITHOUT ROWID;

-- The sweeper keeps each replica's newest.
CREATE INDEX batches_by_replica ON batches (replica, time, batch);

CREATE TABLE accounts (
    bucket         INTEGER NOT NULL,
    account        TEXT NOT NULL,
    create_time    INTEGER NOT NULL,
    inboxes        INTEGER NOT NULL,
    closed_before  INTEGER NOT NULL, -- this and the floor only rise
    evidence_floor INTEGER NOT NULL,
    due_time       INTEGER NOT NULL, -- when closed_before may rise by a step
    policy         BLOB,             -- NULL: as the server says, and never changed
    PRIMARY KEY (bucket, account)
) STRICT, WITHOUT ROWID;
-- Changes with closed_before alone: some 24 times in an admission window.
CREATE INDEX accounts_due ON accounts (bucket, due_time, account);

CREATE TABLE operations (
    bucket            INTEGER NOT NULL,
    account           TEXT NOT NULL,
    operation_id      BLOB NOT NULL,
    mint_time         INTEGER NOT NULL,  -- milliseconds
    digest_version    INTEGER NOT NULL,  -- 0: sealed, without intent
    digest            BLOB NOT NULL,
    part_digests      BLOB NOT NULL,
    action            TEXT NOT NULL,
    target            TEXT NOT NULL,
    expected_revision INTEGER,           -- NULL: any
    content_type      TEXT NOT NULL,
    arguments         BLOB,              -- NULL: kept in payloads
    lock_mode         INTEGER NOT NULL,  -- 1 until final, 2 until acked
    result_kind       INTEGER NOT NULL,  -- 1 receipt only, 2 content
    inbox             TEXT,              -- NULL: no delivery
    labels            TEXT NOT NULL,     -- JSON object, sorted keys
    accept_time       INTEGER NOT NULL,
    start_deadline    INTEGER NOT NULL,
    state             INTEGER NOT NULL,
    certainty         INTEGER NOT NULL,
    outcome_version   INTEGER NOT NULL,
    outcome           BLOB,              -- NULL: none yet
    end_time          INTEGER,           -- NULL: not ended
    due_time          INTEGER,           -- NULL: nothing can become overdue, nor ages
    wait_ticket       INTEGER,           -- NULL: does not wait
    delivery_sequence INTEGER,           -- NULL: none yet
    audit_length      INTEGER NOT NULL,
    audit_hash        BLOB NOT NULL,
    replay_count      INTEGER NOT NULL,
    last_replay_time  INTEGER,           -- NULL: never replayed
    retained          INTEGER NOT NULL,  -- 1 whole, 2 tombstone, 3 tombstone without its trail
    PRIMARY KEY (bucket, account, operation_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX operations_by_time ON operations (bucket, account, accept_time, operation_id);
CREATE INDEX operations_unresolved ON operations (bucket, account, accept_time, operation_id)
    WHERE end_time IS NULL;
CREATE INDEX operations_waiting ON operations (bucket, account, target, wait_ticket)
    WHERE wait_ticket IS NOT NULL;
CREATE INDEX operations_due ON operations (bucket, due_time, account, operation_id)
    WHERE due_time IS NOT NULL AND end_time IS NULL;
-- What has ended and ages; apart, so that it never holds up what waits.
CREATE INDEX operations_aging ON operations (bucket, due_time, account, operation_id)
    WHERE due_time IS NOT NULL AND end_time IS NOT NULL;

-- Apart from the narrow rows. kind 1: arguments above 1 KiB; 2: the body of the result.
CREATE TABLE payloads (
    bucket       INTEGER NOT NULL,
    account      TEXT NOT NULL,
    operation_id BLOB NOT NULL,
    kind         INTEGER NOT NULL,
    body         BLOB NOT NULL,
    PRIMARY KEY (bucket, account, operation_id, kind)
) STRICT;

CREATE TABLE documents (
    bucket       INTEGER NOT NULL,
    account      TEXT NOT NULL,
    target       TEXT NOT NULL,
    revision     INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    present      INTEGER NOT NULL,  -- 0: a marker of a deleted document
    content_type TEXT NOT NULL,
    size         INTEGER NOT NULL,
    content_hash BLOB NOT NULL,
    create_time  INTEGER NOT NULL,
    update_time  INTEGER NOT NULL,
    locked       INTEGER NOT NULL,  -- 1: locks has a row for it
    content      BLOB NOT NULL,  -- last: what follows a large value costs a walk over it
    PRIMARY KEY (bucket, account, target)
) STRICT;

CREATE TABLE locks (
    bucket           INTEGER NOT NULL,
    account          TEXT NOT NULL,
    target           TEXT NOT NULL,
    holder           BLOB,     -- NULL: released, waiters being started; then the next four are NULL
    acquire_time     INTEGER,
    release_time     INTEGER,
    lock_mode        INTEGER,
    next_ticket      INTEGER NOT NULL,
    waiting          INTEGER NOT NULL,
    due_time         INTEGER NOT NULL,
    PRIMARY KEY (bucket, account, target)
) STRICT, WITHOUT ROWID;
CREATE INDEX locks_due ON locks (bucket, due_time, account, target);

CREATE TABLE inboxes (
    bucket         INTEGER NOT NULL,
    account        TEXT NOT NULL,
    inbox          TEXT NOT NULL,
    generation     INTEGER NOT NULL,
    next_sequence  INTEGER NOT NULL,
    offered        INTEGER NOT NULL,
    reserved       INTEGER NOT NULL,
    pending        INTEGER NOT NULL,
    returned       INTEGER NOT NULL,
    in_flight      INTEGER NOT NULL,
    acked_total    INTEGER NOT NULL,
    expired_total  INTEGER NOT NULL,
    dead_total     INTEGER NOT NULL,
    consumer_epoch INTEGER NOT NULL,
    consumers      BLOB NOT NULL,
    create_time    INTEGER NOT NULL,
    due_time       INTEGER,          -- NULL: a marker without kept rows
    first_sequence  INTEGER NOT NULL,  -- of this generation
    kept_from       INTEGER NOT NULL,  -- what is below was purged
    closing         INTEGER NOT NULL,  -- open deliveries of deleted generations
    deleted         INTEGER NOT NULL,  -- 1: a marker of a deleted inbox
    slots_limit     INTEGER,  -- NULL: as the policy says
    in_flight_limit INTEGER,  -- NULL: as the policy says
    active_time     INTEGER NOT NULL,
    upkeep_time     INTEGER,  -- NULL: a marker without kept rows
    skipped         BLOB,     -- NULL: no number was passed over by a mark
    PRIMARY KEY (bucket, account, inbox)
) STRICT, WITHOUT ROWID;
CREATE INDEX inboxes_due ON inboxes (bucket, due_time, account, inbox) WHERE due_time IS NOT NULL;

CREATE TABLE deliveries (
    bucket            INTEGER NOT NULL,
    account           TEXT NOT NULL,
    inbox             TEXT NOT NULL,
    sequence          INTEGER NOT NULL,
    operation_id      BLOB NOT NULL,
    outcome_version   INTEGER NOT NULL,
    state             INTEGER NOT NULL,
    attempt           INTEGER NOT NULL,
    queue_time        INTEGER NOT NULL,
    available_time    INTEGER,          -- NULL: not returned or redriven
    ack_deadline      INTEGER,          -- NULL: not in flight
    expire_time       INTEGER NOT NULL,
    due_time          INTEGER,          -- NULL: ended
    end_time          INTEGER,          -- NULL: not ended
    last_failure_time INTEGER,          -- NULL: no attempt failed
    consumer          TEXT,             -- NULL: not in flight
    consumer_epoch    INTEGER,          -- NULL: not in flight
    returns           INTEGER NOT NULL,
    attempts_before   INTEGER NOT NULL,
    lock_target       TEXT,             -- NULL: holds no lock
    ack_time          INTEGER,          -- NULL: never acked; then the next four are NULL
    ack_attempt       INTEGER,
    ack_subject       TEXT,
    ack_consumer      TEXT,
    ack_hash          BLOB,
    PRIMARY KEY (bucket, account, inbox, sequence)
) STRICT, WITHOUT ROWID;
CREATE INDEX deliveries_due ON deliveries (bucket, due_time, account, inbox, sequence)
    WHERE due_time IS NOT NULL;
CREATE INDEX deliveries_returned ON deliveries (bucket, account, inbox, available_time, sequence)
    WHERE available_time IS NOT NULL;
CREATE INDEX deliveries_lost ON deliveries (bucket, account, inbox, sequence)
    WHERE state IN (4, 5);
-- An inbox's own open deliveries, by number: what is fresh or held costs nothing for its history,
-- nor for other inboxes.
CREATE INDEX deliveries_open ON deliveries (bucket, account, inbox, sequence)
    WHERE due_time IS NOT NULL;

CREATE TABLE audit (
    bucket       INTEGER NOT NULL,
    account      TEXT NOT NULL,
    operation_id BLOB NOT NULL,  -- no bytes: the account's own chain
    number       INTEGER NOT NULL,
    time         INTEGER NOT NULL,
    subject      TEXT NOT NULL,
    events       BLOB NOT NULL,
    hash         BLOB NOT NULL,
    PRIMARY KEY (bucket, account, operation_id, number)
) STRICT, WITHOUT ROWID;
