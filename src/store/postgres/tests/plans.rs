//! The plans of the hot statements: by the primary key or the index that each names.

use super::{super::hot_statements, server::Database};

/// What each statement's plan must use.
const EXPECTED: &[(&str, &[&str])] = &[
    ("lock_operations", &["operations_pkey"]),
    ("operations", &["operations_pkey"]),
    ("arguments", &["payloads_pkey"]),
    ("lock_accounts", &["accounts_pkey"]),
    ("accounts", &["accounts_pkey"]),
    ("lock_documents", &["documents_pkey"]),
    ("lock_locks", &["locks_pkey", "documents_pkey"]),
    ("lock_inboxes", &["inboxes_pkey"]),
    ("deliveries", &["deliveries_pkey"]),
    ("waiters", &["operations_waiting"]),
    ("fresh", &["inboxes_pkey", "deliveries_open"]),
    ("returned", &["inboxes_pkey", "deliveries_returned"]),
    ("held", &["inboxes_pkey", "deliveries_open"]),
    ("load_oldest_open", &["deliveries_open"]),
    ("load_oldest_kept", &["inboxes_pkey", "deliveries_pkey"]),
    ("update_operations", &["operations_pkey"]),
    ("delete_operations", &["operations_pkey"]),
    ("empty_operations", &["operations_pkey"]),
    ("delete_payloads", &["payloads_pkey"]),
    ("update_accounts", &["accounts_pkey"]),
    ("update_documents", &["documents_pkey"]),
    ("update_locks", &["locks_pkey"]),
    ("delete_locks", &["locks_pkey"]),
    ("update_inboxes", &["inboxes_pkey"]),
    ("update_deliveries", &["deliveries_pkey"]),
    ("delete_deliveries", &["deliveries_pkey"]),
    ("delete_trails", &["audit_pkey"]),
    ("look_up_deliveries", &["operations_pkey", "deliveries_pkey"]),
    ("look_up_documents", &["operations_pkey", "documents_pkey"]),
    ("look_up_locks", &["operations_pkey", "locks_pkey"]),
    ("payloads", &["payloads_pkey"]),
    ("payload_slice", &["payloads_pkey"]),
    ("glimpse_operations", &["operations_pkey"]),
    ("glimpse_inboxes", &["inboxes_pkey"]),
    ("glimpse_documents", &["documents_pkey"]),
    ("list_operations", &["operations_by_time"]),
    ("list_unresolved", &["operations_unresolved"]),
    ("list_documents", &["documents_pkey"]),
    ("list_inboxes", &["inboxes_pkey"]),
    ("list_deliveries", &["deliveries_pkey"]),
    ("list_open_deliveries", &["deliveries_open"]),
    ("list_lost_deliveries", &["deliveries_lost"]),
    ("list_lost", &["deliveries_lost"]),
    ("count_acked", &["deliveries_pkey"]),
    ("oldest_open", &["inboxes_pkey", "deliveries_open"]),
    ("due_deliveries", &["deliveries_due"]),
    ("due_operations", &["operations_due"]),
    ("due_locks", &["locks_due"]),
    ("due_inboxes", &["inboxes_due"]),
    ("due_accounts", &["accounts_due"]),
    ("due_records", &["operations_aging"]),
    ("sweep_batches", &["batches_by_replica", "batches_pkey"]),
    (
        "check_next_account",
        &[
            "accounts_pkey",
            "operations_pkey",
            "payloads_pkey",
            "documents_pkey",
            "locks_pkey",
            "inboxes_pkey",
            "deliveries_pkey",
            "audit_pkey",
        ],
    ),
    ("check_count_inboxes", &["inboxes_pkey"]),
    (
        "check_is_used",
        &["payloads_pkey", "documents_pkey", "locks_pkey", "inboxes_pkey", "audit_pkey"],
    ),
    ("check_operations_by_id", &["operations_pkey"]),
    ("check_chains_of_page", &["operations_pkey", "audit_pkey"]),
    ("check_deliveries_of_page", &["operations_pkey", "deliveries_pkey"]),
    ("check_inboxes_of_page", &["operations_pkey", "inboxes_pkey"]),
    ("check_documents_of_page", &["operations_pkey", "documents_pkey"]),
    ("check_locks_of_page", &["operations_pkey", "locks_pkey"]),
    ("check_payloads_of_page", &["operations_pkey", "payloads_pkey"]),
    ("check_chains", &["audit_pkey", "operations_pkey"]),
    ("check_deliveries_by_key", &["deliveries_pkey"]),
    ("check_operations_of_deliveries", &["deliveries_pkey", "operations_pkey"]),
    ("check_inboxes_by_name", &["inboxes_pkey"]),
    ("check_count_deliveries", &["inboxes_pkey", "deliveries_open", "deliveries_pkey"]),
    ("check_count_held", &["inboxes_pkey", "deliveries_open"]),
    ("check_count_reserved", &["inboxes_pkey", "operations_unresolved"]),
    ("check_locks_by_target", &["locks_pkey"]),
    ("check_holders", &["locks_pkey", "operations_pkey"]),
    ("check_holders_deliveries", &["locks_pkey", "operations_pkey", "deliveries_pkey"]),
    ("check_count_waiting", &["locks_pkey", "operations_waiting", "documents_pkey"]),
    ("check_documents_by_target", &["documents_pkey", "locks_pkey"]),
    ("check_payloads_by_key", &["payloads_pkey"]),
    ("check_operations_of_payloads", &["payloads_pkey", "operations_pkey"]),
    ("check_revisions", &["documents_pkey"]),
];

/// One account with a long history and few open rows, which is what plans go wrong on.
const SEED: &str = "
    INSERT INTO receiptd.accounts SELECT n % 50, 'account-' || n, 1, 1, 0, 0, n
        FROM generate_series(1, 3000) n;
    INSERT INTO receiptd.operations
        SELECT n % 50, 'account-' || n % 50, decode(lpad(to_hex(n), 32, '0'), 'hex'), n, 1, '\\x00',
            '\\x00', 'document.put', 'target-' || n % 500, NULL, 'text/plain', '\\x00', 1, 1, 'main',
            '{}', n, n, CASE WHEN n % 40 = 0 THEN 1 ELSE 3 END, 1, 1, NULL,
            CASE WHEN n % 40 = 0 THEN NULL ELSE n END, n,
            CASE WHEN n % 40 = 0 THEN n END, n / 50, 1, '\\x00', 0, NULL, 1
        FROM generate_series(1, 20000) n;
    INSERT INTO receiptd.payloads SELECT bucket, account, operation_id, 1, '\\x00'
        FROM receiptd.operations WHERE replay_count = 0;
    INSERT INTO receiptd.audit SELECT bucket, account, operation_id, 1, 1, 'me', '\\x00', '\\x00'
        FROM receiptd.operations;
    INSERT INTO receiptd.documents SELECT n % 50, 'account-' || n % 50, 'target-' || n, 1, 1, 1,
            'text/plain', 1, '\\x00', 1, 1, CASE WHEN n % 10 = 0 THEN 1 ELSE 0 END, '\\x00'
        FROM generate_series(1, 5000) n;
    INSERT INTO receiptd.locks SELECT n % 50, 'account-' || n % 50, 'target-' || n, NULL, NULL,
            NULL, NULL, 1, 1, n FROM generate_series(10, 5000, 10) n;
    INSERT INTO receiptd.inboxes SELECT n % 50, 'account-' || n % 50, 'inbox-' || n, 1, 1, 0, 0, 0,
            0, 0, 0, 0, 0, 0, '\\x', 1, CASE WHEN n % 2 = 0 THEN n END, 1, 1, 0,
            CASE WHEN n % 3 = 0 THEN 1 ELSE 0 END, NULL, NULL, 1, NULL
        FROM generate_series(1, 3000) n;
    INSERT INTO receiptd.deliveries
        SELECT n % 50, 'account-' || n % 50, 'inbox-' || n % 50, n / 50, '\\x00', 1,
            CASE WHEN n > 59000 THEN 1 + n % 2 WHEN n % 100 = 0 THEN 5 ELSE 3 END, 1, n,
            CASE WHEN n > 59000 AND n % 2 = 0 THEN n END, NULL, n,
            CASE WHEN n > 59000 THEN n END, NULL, NULL,
            CASE WHEN n > 59000 AND n % 2 = 1 THEN 'consumer-' || n % 3 END, NULL, 0, 0, NULL,
            NULL, NULL, NULL, NULL, NULL
        FROM generate_series(1, 60000) n;
    INSERT INTO receiptd.batches SELECT n % 50, decode(lpad(to_hex(n), 32, '0'), 'hex'),
            decode(lpad(to_hex(n % 3), 32, '0'), 'hex'), n, 0 FROM generate_series(1, 5000) n;
    ANALYZE";

/// As every transaction of the store sets it.
const PINNED: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off;
    SET enable_hashjoin = off; SET enable_mergejoin = off;
    SET join_collapse_limit = 1";

#[tokio::test]
async fn hot_statements_use_the_index_that_they_name() {
    let Some(database) = Database::new().await else { return };
    database.open().await;
    let client = database.client().await;
    let names: Vec<&str> = hot_statements().iter().map(|(name, _)| *name).collect();
    assert_eq!(names, EXPECTED.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    // On empty tables as well: a plan that is made then is kept.
    client.batch_execute(PINNED).await.expect("set");
    let mut wrong = check(&client, "empty").await;
    client.batch_execute(SEED).await.expect("seeded");
    wrong.extend(check(&client, "filled").await);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

async fn check(client: &tokio_postgres::Client, tables: &str) -> Vec<String> {
    let generic = "SET plan_cache_mode = force_generic_plan; DEALLOCATE ALL";
    client.batch_execute(generic).await.expect("set");
    let mut wrong = Vec::new();
    for ((name, sql), (_, indexes)) in hot_statements().iter().zip(EXPECTED) {
        client.batch_execute(&format!("PREPARE {name} AS {sql}")).await.expect("prepared");
        let count = "SELECT array_length(parameter_types, 1) FROM pg_prepared_statements
            WHERE name = $1";
        let row = client.query_one(count, &[name]).await.expect("a count");
        let nulls = vec!["NULL"; row.get::<_, Option<i32>>(0).unwrap_or(0).unsigned_abs() as usize];
        let arguments = match nulls.is_empty() {
            true => String::new(),
            false => format!("({})", nulls.join(", ")),
        };
        let explain = format!("EXPLAIN (COSTS OFF) EXECUTE {name}{arguments}");
        let rows = client.query(&explain, &[]).await.expect("a plan");
        let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        let used = indexes.iter().all(|index| plan.contains(&format!("{index} ")));
        // A whole index read from end to end is a scan of the table by another name.
        let lines: Vec<&str> = plan.lines().collect();
        let whole = lines.iter().enumerate().any(|(number, line)| {
            let next = lines.get(number + 1).is_some_and(|next| next.contains("Index Cond"));
            line.contains(" using ") && !next && !line.contains("batches_by_replica")
        });
        if plan.contains("Seq Scan") || whole || !used {
            wrong.push(format!("{name} on {tables} tables should use {indexes:?}:\n{plan}"));
        }
    }
    wrong
}
