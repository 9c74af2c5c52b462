//! Counts everything again from the rows, without the code that wrote them.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use receiptd::domain::{
    audit,
    ids::Timestamp,
    operation::{OperationKey, OperationState},
};
use tokio::time::Instant;
use tokio_postgres::{Client, Row};

/// What is unfinished: name and count. Deliveries and locks are due as long as they hold
/// anything.
const UNFINISHED: &str = "
    SELECT 'operations', count(*) FROM receiptd.operations WHERE end_time IS NULL
    UNION ALL SELECT 'locks', count(*) FROM receiptd.locks
    UNION ALL SELECT 'deliveries', count(*) FROM receiptd.deliveries WHERE due_time IS NOT NULL
    UNION ALL SELECT 'consumers', count(*) FROM receiptd.inboxes WHERE consumers <> ''
    UNION ALL SELECT 'closing', count(*) FROM receiptd.inboxes WHERE closing <> 0";

/// Each line is something that must not be. 3 is APPLIED; 1 to 5 are PENDING, IN_FLIGHT, ACKED,
/// EXPIRED and DEAD, whose totals are histories: what was redriven counts again.
const WRONG: &str = "
    SELECT 'revision ' || d.revision || ' after ' || count(o.target) || ' applied: ' || d.target
      FROM receiptd.documents d LEFT JOIN receiptd.operations o
        ON o.account = d.account AND o.target = d.target AND o.state = 3
      GROUP BY d.account, d.target, d.revision HAVING d.revision <> count(o.target)
    UNION ALL
    SELECT 'a document says it is locked: ' || target FROM receiptd.documents WHERE locked <> 0
    UNION ALL
    SELECT 'a ticket is left: ' || target FROM receiptd.operations WHERE wait_ticket IS NOT NULL
    UNION ALL
    SELECT 'not one delivery of one outcome: ' || convert_from(o.operation_id, 'UTF8')
      FROM receiptd.operations o LEFT JOIN receiptd.deliveries d
        ON d.account = o.account AND d.operation_id = o.operation_id
      GROUP BY o.account, o.operation_id, o.inbox, o.outcome_version, o.delivery_sequence
      HAVING o.outcome_version <> 1
        OR count(d.sequence) <> (CASE WHEN o.inbox IS NULL THEN 0 ELSE 1 END)
        OR o.delivery_sequence IS DISTINCT FROM max(d.sequence)
    UNION ALL
    SELECT 'counters of ' || i.account || ' ' || i.inbox
      FROM receiptd.inboxes i LEFT JOIN receiptd.deliveries d
        ON d.account = i.account AND d.inbox = i.inbox
      GROUP BY i.account, i.inbox, i.next_sequence, i.reserved, i.pending, i.in_flight,
        i.returned, i.acked_total, i.expired_total, i.dead_total, i.first_sequence, i.deleted
      HAVING (i.next_sequence - 1, i.next_sequence - 1) <> (count(d.sequence),
            coalesce(max(d.sequence), 0))
        OR (i.reserved, i.pending, i.in_flight, i.returned) <> (0, 0, 0, 0)
        OR i.acked_total <> count(*) FILTER (WHERE d.state = 3 AND d.sequence >= i.first_sequence)
        OR i.expired_total <
             count(*) FILTER (WHERE d.state = 4 AND d.sequence >= i.first_sequence)
        OR i.dead_total < count(*) FILTER (WHERE d.state = 5 AND d.sequence >= i.first_sequence)
        OR (i.deleted = 1 AND i.first_sequence <> i.next_sequence)
    UNION ALL
    SELECT 'inboxes of ' || a.account FROM receiptd.accounts a LEFT JOIN receiptd.inboxes i
        ON i.account = a.account AND i.deleted = 0
      GROUP BY a.account, a.inboxes HAVING a.inboxes <> count(i.inbox)";

/// Waits until nothing is unfinished; returns what still is.
pub async fn wait_until_ended(client: &Client, bound: Duration) -> Vec<(String, i64)> {
    let end = Instant::now() + bound;
    loop {
        let rows = client.query(UNFINISHED, &[]).await.expect("counts");
        let all = rows.iter().map(|row| (row.get::<_, String>(0), row.get::<_, i64>(1)));
        let left: Vec<_> = all.filter(|(_, count)| *count > 0).collect();
        if left.is_empty() || Instant::now() > end {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Everything that does not add up, one line each.
pub async fn check(client: &Client, told: &BTreeMap<OperationKey, OperationState>) -> Vec<String> {
    let rows = client.query(WRONG, &[]).await.expect("counts");
    let mut wrong: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    wrong.extend(other_lines(client).await);
    wrong.extend(other_states(client, told).await);
    wrong.extend(broken_chains(client).await);
    wrong
}

/// How many operations ended in which state, and deliveries.
pub async fn figures(client: &Client) -> String {
    let text = "SELECT 'operation state ' || state, count(*) FROM receiptd.operations
            GROUP BY state
        UNION ALL SELECT 'delivery state ' || state, count(*) FROM receiptd.deliveries
            GROUP BY state
        UNION ALL SELECT 'audit rows', count(*) FROM receiptd.audit
        UNION ALL SELECT 'documents', count(*) FROM receiptd.documents
        UNION ALL SELECT 'batches', count(*) FROM receiptd.batches
        UNION ALL SELECT 'deadlocks', deadlocks FROM pg_stat_database
            WHERE datname = current_database() ORDER BY 1";
    let rows = client.query(text, &[]).await.expect("counts");
    let line = |row: &Row| format!("\n{}: {}", row.get::<_, String>(0), row.get::<_, i64>(1));
    rows.iter().map(line).collect()
}

/// Documents whose lines are not exactly the ids of what was applied to them.
async fn other_lines(client: &Client) -> Vec<String> {
    let text = "SELECT d.account, d.target, convert_from(d.content, 'UTF8'),
            coalesce(array_agg(convert_from(o.operation_id, 'UTF8'))
                FILTER (WHERE o.operation_id IS NOT NULL), '{}')
        FROM receiptd.documents d LEFT JOIN receiptd.operations o
            ON o.account = d.account AND o.target = d.target AND o.state = 3
        GROUP BY d.account, d.target, d.content";
    let rows = client.query(text, &[]).await.expect("documents");
    let differs = |row: &Row| {
        let content: String = row.get(2);
        let mut found: Vec<&str> = content.lines().collect();
        let applied: Vec<String> = row.get(3);
        let mut expected: Vec<&str> = applied.iter().map(String::as_str).collect();
        found.sort_unstable();
        expected.sort_unstable();
        let place = format!("{} {}", row.get::<_, String>(0), row.get::<_, String>(1));
        (found != expected)
            .then(|| format!("{place}: {} lines for {} applied", found.len(), expected.len()))
    };
    rows.iter().filter_map(differs).collect()
}

/// Operations that ended otherwise than a caller was told.
async fn other_states(
    client: &Client,
    told: &BTreeMap<OperationKey, OperationState>,
) -> Vec<String> {
    let text = "SELECT account, operation_id, state FROM receiptd.operations";
    let rows = client.query(text, &[]).await.expect("operations");
    let states: HashMap<(String, Vec<u8>), i16> =
        rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
    let differs = |(key, state): (&OperationKey, &OperationState)| {
        let stored = (key.account.as_str().to_owned(), key.id.to_stored());
        let found = states.get(&stored);
        (found != Some(&(*state as i16)))
            .then(|| format!("{key:?} was told {state:?} and is {found:?}"))
    };
    told.iter().filter_map(differs).collect()
}

/// Audit chains that do not follow from their rows, or do not end where the operation says.
async fn broken_chains(client: &Client) -> Vec<String> {
    let text = "SELECT o.account, o.operation_id, o.audit_length, o.audit_hash,
            a.number, a.time, a.subject, a.events, a.hash
        FROM receiptd.operations o LEFT JOIN receiptd.audit a
            ON a.bucket = o.bucket AND a.account = o.account AND a.operation_id = o.operation_id
        ORDER BY o.account, o.operation_id, a.number";
    let rows = client.query(text, &[]).await.expect("chains");
    let mut wrong = Vec::new();
    let same = |one: &Row, other: &Row| {
        one.get::<_, &str>(0) == other.get::<_, &str>(0)
            && one.get::<_, &[u8]>(1) == other.get::<_, &[u8]>(1)
    };
    for chain in rows.chunk_by(same) {
        let (mut hash, mut length) = ([0; 32], 0);
        for row in chain {
            let number: Option<i32> = row.get(4);
            length += 1;
            let (time, subject, events) = (Timestamp(row.get(5)), row.get(6), row.get(7));
            hash = audit::row_hash(&hash, length, time, subject, events);
            if number != Some(length) || row.get::<_, &[u8]>(8) != &hash[..] {
                wrong.push(format!("row {number:?} of the chain of {:?}", name(row)));
                break;
            }
        }
        let last = &chain[0];
        if last.get::<_, i32>(2) != length || last.get::<_, &[u8]>(3) != &hash[..] {
            wrong.push(format!("the end of the chain of {:?}", name(last)));
        }
    }
    wrong
}

fn name(row: &Row) -> String {
    String::from_utf8_lossy(row.get(1)).into_owned()
}
