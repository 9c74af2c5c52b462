//! The plans of the hot statements: a search by the whole key or the index that each names.

use super::{
    super::{by_key, due, load, query, save, save_delivery, verify},
    fixtures::{Place, simulated},
};

/// Each plan with the statements that must have it, reviewed like code. A sort is over what has not
/// ended.
const EXPECTED: &[(&str, &[&str])] = &[
    (
        "SEARCH operations USING PRIMARY KEY (bucket=? AND account=? AND operation_id=?)",
        &[
            by_key::OPERATION,
            save::UPDATE_OPERATION,
            save::DELETE_OPERATION,
            save::EMPTY_OPERATION,
            query::GLIMPSE_OPERATION,
        ],
    ),
    (
        "SEARCH payloads USING INDEX sqlite_autoindex_payloads_1 (bucket=? AND account=? AND \
         operation_id=? AND kind=?)",
        &[by_key::PAYLOAD, by_key::SLICE],
    ),
    (
        "SEARCH accounts USING PRIMARY KEY (bucket=? AND account=?)",
        &[by_key::ACCOUNT, save::UPDATE_ACCOUNT, save::DELETE_ACCOUNT],
    ),
    (
        "SEARCH documents USING INDEX sqlite_autoindex_documents_1 (bucket=? AND account=? \
         AND target=?)",
        &[
            by_key::DOCUMENT,
            by_key::DOCUMENT_WITH_CONTENT,
            query::GLIMPSE_DOCUMENT,
            save::UPDATE_DOCUMENT,
            save::DELETE_DOCUMENT,
        ],
    ),
    (
        "SEARCH locks USING PRIMARY KEY (bucket=? AND account=? AND target=?)",
        &[by_key::LOCK, save::UPDATE_LOCK, save::DELETE_LOCK],
    ),
    (
        "SEARCH inboxes USING PRIMARY KEY (bucket=? AND account=? AND inbox=?)",
        &[
            by_key::INBOX,
            save_delivery::UPDATE_INBOX,
            save_delivery::DELETE_INBOX,
            query::GLIMPSE_INBOX,
        ],
    ),
    (
        "SEARCH deliveries USING PRIMARY KEY (bucket=? AND account=? AND inbox=? AND \
         sequence=?)",
        &[by_key::DELIVERY, save_delivery::UPDATE_DELIVERY, save_delivery::DELETE_DELIVERY],
    ),
    (
        "SEARCH operations USING COVERING INDEX operations_waiting (bucket=? AND account=? \
         AND target=? AND wait_ticket>?)",
        &[load::WAITERS],
    ),
    (
        "SEARCH deliveries USING PRIMARY KEY (bucket=? AND account=? AND inbox=? AND \
         sequence>?)",
        &[load::OLDEST_KEPT, query::LIST_DELIVERIES],
    ),
    (
        "SEARCH deliveries USING INDEX deliveries_open (bucket=? AND account=? AND inbox=? AND \
         sequence>?)",
        &[load::FRESH, load::HELD, query::LIST_OPEN_DELIVERIES],
    ),
    (
        "SEARCH deliveries USING INDEX deliveries_lost (bucket=? AND account=? AND inbox=? AND \
         sequence>?)",
        &[query::LIST_LOST_DELIVERIES],
    ),
    (
        "SEARCH deliveries USING INDEX deliveries_returned (bucket=? AND account=? AND \
         inbox=? AND available_time>? AND available_time<?)",
        &[load::RETURNED],
    ),
    (
        "SEARCH deliveries USING INDEX deliveries_open (bucket=? AND account=? AND inbox=?)",
        &[load::OLDEST_OPEN],
    ),
    (
        "SEARCH deliveries USING INDEX deliveries_open (bucket=? AND account=? AND inbox=? AND \
         sequence>?); SCALAR SUBQUERY 1; SEARCH inboxes USING PRIMARY KEY (bucket=? AND account=? \
         AND inbox=?)",
        &[query::OLDEST_OPEN],
    ),
    (
        "SEARCH batches USING PRIMARY KEY (bucket=? AND batch=?)",
        &[save::SETTLE_BATCH, query::DELETE_BATCH],
    ),
    ("SEARCH batches USING COVERING INDEX batches_by_replica (replica>?)", &[query::NEXT_REPLICA]),
    ("SEARCH batches USING COVERING INDEX batches_by_replica (replica=?)", &[query::NEWEST_BATCH]),
    (
        "SEARCH batches USING COVERING INDEX batches_by_replica (replica=? AND time<?)",
        &[query::OLD_BATCHES],
    ),
    ("SEARCH deliveries USING COVERING INDEX deliveries_due (bucket>?)", &[due::DELIVERY_BUCKET]),
    // Not from the index alone: its own condition is looked up once more.
    ("SEARCH operations USING INDEX operations_due (bucket>?)", &[due::OPERATION_BUCKET]),
    ("SEARCH operations USING INDEX operations_aging (bucket>?)", &[due::RECORD_BUCKET]),
    ("SEARCH locks USING COVERING INDEX locks_due (bucket>?)", &[due::LOCK_BUCKET]),
    ("SEARCH inboxes USING COVERING INDEX inboxes_due (bucket>?)", &[due::INBOX_BUCKET]),
    ("SEARCH accounts USING COVERING INDEX accounts_due (bucket>?)", &[due::ACCOUNT_BUCKET]),
    (
        "SEARCH deliveries USING INDEX deliveries_due (bucket=? AND \
         (due_time,account,inbox,sequence)>(?,?,?,?) AND due_time<?)",
        &[due::DELIVERIES],
    ),
    (
        "SEARCH operations USING INDEX operations_due (bucket=? AND \
         (due_time,account,operation_id)>(?,?,?) AND due_time<?)",
        &[due::OPERATIONS],
    ),
    (
        "SEARCH operations USING INDEX operations_aging (bucket=? AND \
         (due_time,account,operation_id)>(?,?,?) AND due_time<?)",
        &[due::RECORDS],
    ),
    (
        "SEARCH locks USING COVERING INDEX locks_due (bucket=? AND \
         (due_time,account,target)>(?,?,?) AND due_time<?)",
        &[due::LOCKS],
    ),
    (
        "SEARCH inboxes USING COVERING INDEX inboxes_due (bucket=? AND \
         (due_time,account,inbox)>(?,?,?) AND due_time<?)",
        &[due::INBOXES],
    ),
    (
        "SEARCH accounts USING COVERING INDEX accounts_due (bucket=? AND \
         (due_time,account)>(?,?) AND due_time<?)",
        &[due::ACCOUNTS],
    ),
    (
        "SEARCH operations USING INDEX operations_by_time (bucket=? AND account=? AND \
         (accept_time,operation_id)<(?,?))",
        &[query::LIST_OPERATIONS],
    ),
    (
        "SEARCH operations USING INDEX operations_unresolved (bucket=? AND account=? AND \
         (accept_time,operation_id)<(?,?))",
        &[query::LIST_UNRESOLVED],
    ),
    (
        "SEARCH audit USING PRIMARY KEY (bucket=? AND account=? AND operation_id=? AND \
         number>?)",
        &[query::LIST_AUDIT],
    ),
    (
        "SEARCH documents USING INDEX sqlite_autoindex_documents_1 (bucket=? AND account=? \
         AND target>? AND target<?)",
        &[query::LIST_DOCUMENTS],
    ),
    (
        "SEARCH inboxes USING PRIMARY KEY (bucket=? AND account=? AND inbox>?)",
        &[query::LIST_INBOXES],
    ),
    (
        "SEARCH deliveries USING INDEX deliveries_lost (bucket=? AND account=? AND inbox=? \
         AND sequence>?)",
        &[query::LIST_LOST],
    ),
    (
        "CO-ROUTINE (subquery-2); CO-ROUTINE (subquery-1); SEARCH deliveries USING PRIMARY KEY \
         (bucket=? AND account=? AND inbox=? AND sequence>?); SCAN (subquery-1); SCAN (subquery-2)",
        &[query::COUNT_ACKED],
    ),
    ("SEARCH locks USING PRIMARY KEY (bucket=? AND account=? AND target>?)", &[query::LIST_LOCKS]),
    (
        "CO-ROUTINE (subquery-16); COMPOUND QUERY; LEFT-MOST SUBQUERY; CO-ROUTINE \
         (subquery-1); SEARCH accounts USING PRIMARY KEY ((bucket,account)>(?,?)); SCAN \
         (subquery-1); UNION ALL; CO-ROUTINE (subquery-3); SEARCH operations USING COVERING \
         INDEX operations_by_time ((bucket,account)>(?,?)); SCAN (subquery-3); UNION ALL; CO-ROUTINE (subquery-5); SEARCH payloads USING COVERING INDEX \
         sqlite_autoindex_payloads_1 ((bucket,account)>(?,?)); SCAN (subquery-5); UNION ALL; \
         CO-ROUTINE (subquery-7); SEARCH documents USING COVERING INDEX \
         sqlite_autoindex_documents_1 ((bucket,account)>(?,?)); SCAN (subquery-7); UNION ALL; \
         CO-ROUTINE (subquery-9); SEARCH locks USING PRIMARY KEY ((bucket,account)>(?,?)); \
         SCAN (subquery-9); UNION ALL; CO-ROUTINE (subquery-11); SEARCH inboxes USING PRIMARY \
         KEY ((bucket,account)>(?,?)); SCAN (subquery-11); UNION ALL; CO-ROUTINE \
         (subquery-13); SEARCH deliveries USING PRIMARY KEY ((bucket,account)>(?,?)); SCAN \
         (subquery-13); UNION ALL; CO-ROUTINE (subquery-15); SEARCH audit USING PRIMARY KEY \
         ((bucket,account)>(?,?)); SCAN (subquery-15); SCAN (subquery-16); USE TEMP B-TREE \
         FOR ORDER BY",
        &[verify::NEXT_ACCOUNT],
    ),
    ("SEARCH inboxes USING PRIMARY KEY (bucket=? AND account=?)", &[verify::COUNT_INBOXES]),
    (
        "SCAN CONSTANT ROW; SCALAR SUBQUERY 1; SEARCH operations USING COVERING INDEX \
         operations_by_time (bucket=? AND account=?); SCALAR SUBQUERY 2; SEARCH payloads \
         USING COVERING INDEX sqlite_autoindex_payloads_1 (bucket=? AND account=?); SCALAR \
         SUBQUERY 3; SEARCH documents USING COVERING INDEX sqlite_autoindex_documents_1 \
         (bucket=? AND account=?); SCALAR SUBQUERY 4; SEARCH locks USING PRIMARY KEY \
         (bucket=? AND account=?); SCALAR SUBQUERY 5; SEARCH inboxes USING PRIMARY KEY \
         (bucket=? AND account=?); SCALAR SUBQUERY 6; SEARCH deliveries USING PRIMARY KEY \
         (bucket=? AND account=?); SCALAR SUBQUERY 7; SEARCH audit USING PRIMARY KEY \
         (bucket=? AND account=?)",
        &[verify::IS_USED],
    ),
    (
        "SEARCH operations USING PRIMARY KEY (bucket=? AND account=? AND operation_id>?)",
        &[verify::OPERATIONS_BY_ID],
    ),
    ("SEARCH inboxes USING PRIMARY KEY (bucket=? AND account=? AND inbox=?)", &[verify::KEPT_FROM]),
    (
        "SEARCH payloads USING COVERING INDEX sqlite_autoindex_payloads_1 (bucket=? AND \
         account=? AND operation_id=?)",
        &[verify::PAYLOAD_KINDS],
    ),
    (
        "CO-ROUTINE e; SEARCH audit USING PRIMARY KEY (bucket=? AND account=? AND \
         operation_id>?); SCAN e; CORRELATED SCALAR SUBQUERY 1; SEARCH o USING PRIMARY KEY \
         (bucket=? AND account=? AND operation_id=?)",
        &[verify::CHAINS],
    ),
    (
        "SEARCH deliveries USING PRIMARY KEY (bucket=? AND account=? AND \
         (inbox,sequence)>(?,?))",
        &[verify::DELIVERIES_BY_KEY],
    ),
    (
        "SEARCH inboxes USING PRIMARY KEY (bucket=? AND account=? AND inbox>?)",
        &[verify::INBOXES_BY_NAME],
    ),
    (
        "SEARCH deliveries USING INDEX deliveries_open (bucket=? AND account=? AND inbox=?)",
        &[verify::COUNT_OPEN],
    ),
    (
        "SEARCH deliveries USING INDEX deliveries_open (bucket=? AND account=? AND inbox=? \
         AND sequence>?); USE TEMP B-TREE FOR GROUP BY",
        &[verify::COUNT_HELD],
    ),
    (
        "SEARCH deliveries USING PRIMARY KEY (bucket=? AND account=? AND inbox=?)",
        &[verify::LAST_DELIVERY],
    ),
    (
        "SEARCH operations USING INDEX operations_unresolved (bucket=? AND account=?); USE \
         TEMP B-TREE FOR GROUP BY",
        &[verify::COUNT_RESERVED],
    ),
    (
        "SEARCH operations USING COVERING INDEX operations_waiting (bucket=? AND account=? \
         AND target=? AND wait_ticket>?)",
        &[verify::COUNT_WAITING],
    ),
    (
        "SEARCH documents USING INDEX sqlite_autoindex_documents_1 (bucket=? AND account=? \
         AND target>?)",
        &[verify::DOCUMENTS_BY_TARGET, verify::REVISIONS],
    ),
    (
        "SEARCH payloads USING INDEX sqlite_autoindex_payloads_1 (bucket=? AND account=? AND \
         (operation_id,kind)>(?,?))",
        &[verify::PAYLOADS_BY_KEY],
    ),
    (
        "SEARCH locks USING PRIMARY KEY (bucket=? AND account=? AND target>?)",
        &[verify::LOCKS_BY_TARGET],
    ),
];

#[test]
fn hot_statements_search_by_the_key_that_they_name() {
    let place = Place::new(simulated(1));
    let store = place.open();
    let connection = place.stranger();
    let mut wrong = Vec::new();
    for (expected, statements) in EXPECTED {
        for statement in *statements {
            let plan = plan(&connection, statement).join("; ");
            if plan != *expected {
                wrong.push(format!("{statement}\n  {plan}\n  instead of\n  {expected}"));
            }
        }
    }
    drop(store);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn plan(connection: &rusqlite::Connection, statement: &str) -> Vec<String> {
    let explain = format!("EXPLAIN QUERY PLAN {statement}");
    let mut statement = connection.prepare(&explain).expect("a good statement");
    // Parameters that are not bound are NULL: the plan does not depend on them.
    let lines = statement.raw_query().mapped(|row| row.get(3)).collect::<Result<_, _>>();
    lines.expect("a plan")
}
