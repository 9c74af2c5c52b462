//! Every metric of the service by name, and one function for each thing that is worth counting.
//!
//! What must stay true: a name is written once, here; no label names an account, an operation, an
//! inbox or anything else that a caller chooses, so that the number of series stays bounded.
//!
//! Deliberately not here: where metrics and logs go ([`process`]). Without a recorder every call
//! does nothing.

pub mod process;

use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

/// Commands that share one commit.
pub const BATCH_COMMANDS: &str = "receiptd_batch_commands";
/// Time from the start of a batch's transaction to its end.
pub const BATCH_SECONDS: &str = "receiptd_batch_seconds";
/// Commits that wrote something.
pub const COMMITS_TOTAL: &str = "receiptd_commits_total";
/// Batches that were run again as a whole after a conflict.
pub const BATCHES_RERUN_TOTAL: &str = "receiptd_batches_rerun_total";
/// Batches that were halved after an error.
pub const BATCHES_HALVED_TOTAL: &str = "receiptd_batches_halved_total";
/// Commits whose answer was lost, by how they were settled.
pub const COMMITS_AMBIGUOUS_TOTAL: &str = "receiptd_commits_ambiguous_total";
/// Claims that found their id in the hands of another transaction.
pub const HELD_IDS_TOTAL: &str = "receiptd_held_ids_total";
/// Commands put off to the next batch, by reason.
pub const DEFERRALS_TOTAL: &str = "receiptd_deferrals_total";
/// Keys sent in loads, and rows that searches found.
pub const ROWS_LOADED_TOTAL: &str = "receiptd_rows_loaded_total";
/// Rows sent in saves.
pub const ROWS_SAVED_TOTAL: &str = "receiptd_rows_saved_total";
/// Round trips to the store.
pub const ROUND_TRIPS_TOTAL: &str = "receiptd_store_round_trips_total";
/// Submits of committed batches, by what they came to.
pub const SUBMITS_TOTAL: &str = "receiptd_submits_total";
/// Operations that became APPLIED in a commit.
pub const EFFECTS_TOTAL: &str = "receiptd_effects_total";
/// Submits that found a record.
pub const DUPLICATES_PREVENTED_TOTAL: &str = "receiptd_duplicates_prevented_total";
/// Operations of the store that have not ended.
pub const UNRESOLVED: &str = "receiptd_operations_unresolved";
/// Age of the oldest unacked result of the store.
pub const OLDEST_UNACKED_SECONDS: &str = "receiptd_oldest_unacked_seconds";
/// Commands that wait in the lanes now.
pub const QUEUE_COMMANDS: &str = "receiptd_queue_commands";
/// Answers to commands, by reason; `OK` for a good one.
pub const REPLIES_TOTAL: &str = "receiptd_replies_total";
/// Deliveries handed to a stream right after the commit, by whether the stream took them.
pub const HANDED_TOTAL: &str = "receiptd_deliveries_handed_total";
/// Replays that were not counted because too many ids were waiting for their count.
pub const REPLAYS_DROPPED_TOTAL: &str = "receiptd_replays_dropped_total";
/// Calls that were refused, by reason: of the form, of credentials and of the engine.
pub const REFUSALS_TOTAL: &str = "receiptd_refusals_total";
/// TLS handshakes that failed or took too long.
pub const TLS_HANDSHAKES_FAILED_TOTAL: &str = "receiptd_tls_handshakes_failed_total";

/// Streams that are open now.
pub const STREAMS: &str = "receiptd_streams";
/// Streams that ended, by cause.
pub const STREAM_ENDS_TOTAL: &str = "receiptd_stream_ends_total";
/// Results put into frames.
pub const STREAM_RESULTS_TOTAL: &str = "receiptd_stream_results_total";
/// Frames with results.
pub const STREAM_BATCHES_TOTAL: &str = "receiptd_stream_batches_total";
/// Sessions that are open now.
pub const SESSIONS: &str = "receiptd_sessions";
/// Sessions that ended, by cause.
pub const SESSION_ENDS_TOTAL: &str = "receiptd_session_ends_total";
/// Frames that sessions received, by kind.
pub const SESSION_FRAMES_TOTAL: &str = "receiptd_session_frames_total";
/// Results pulled without a stream.
pub const PULLED_RESULTS_TOTAL: &str = "receiptd_pulled_results_total";
/// Deliveries extended, deferred or redriven by hand, by call and outcome.
pub const BY_HAND_TOTAL: &str = "receiptd_deliveries_by_hand_total";
/// Rows settled by the sweep, by result.
pub const SWEPT_TOTAL: &str = "receiptd_swept_total";
/// Rows of the sweep whose command was refused, by reason.
pub const SWEEP_REFUSALS_TOTAL: &str = "receiptd_sweep_refusals_total";
/// Searches of the sweep that failed.
pub const SWEEP_FAILURES_TOTAL: &str = "receiptd_sweep_failures_total";
/// How long passes of the sweep take.
pub const SWEEP_SECONDS: &str = "receiptd_sweep_seconds";
/// How long the oldest delivery or operation that the last pass met was overdue.
pub const SWEEP_OVERDUE_SECONDS: &str = "receiptd_sweep_overdue_seconds";
/// What is watched now: operations, inboxes and documents together.
pub const WATCHED: &str = "receiptd_watched";
/// Bulk re-reads of what is watched that failed.
pub const REREAD_FAILURES_TOTAL: &str = "receiptd_reread_failures_total";
/// Hints sent to other replicas.
pub const HINTS_SENT_TOTAL: &str = "receiptd_hints_sent_total";
/// Hints of other replicas that arrived.
pub const HINTS_RECEIVED_TOTAL: &str = "receiptd_hints_received_total";
/// Hints that could not be sent, and times at which listening ended or did not begin.
pub const HINTS_FAILED_TOTAL: &str = "receiptd_hints_failed_total";
/// 1 while this replica hears the others, 0 while only the bulk re-read tells of their changes.
pub const HINTS_LISTENING: &str = "receiptd_hints_listening";

/// Tells the recorder what each metric means. Called once, after the recorder is installed.
pub fn describe() {
    let counters = [
        (COMMITS_TOTAL, "Commits that wrote something."),
        (BATCHES_RERUN_TOTAL, "Batches run again as a whole after a conflict."),
        (BATCHES_HALVED_TOTAL, "Batches halved after an error."),
        (COMMITS_AMBIGUOUS_TOTAL, "Commits whose answer was lost, by how they were settled."),
        (HELD_IDS_TOTAL, "Claims that found their id held by another transaction."),
        (DEFERRALS_TOTAL, "Commands put off to the next batch, by reason."),
        (ROWS_LOADED_TOTAL, "Keys sent in loads, and rows that searches found."),
        (ROWS_SAVED_TOTAL, "Rows sent in saves."),
        (ROUND_TRIPS_TOTAL, "Round trips to the store."),
        (SUBMITS_TOTAL, "Submits that were taken, by what they came to."),
        (EFFECTS_TOTAL, "Operations that became APPLIED in a commit."),
        (DUPLICATES_PREVENTED_TOTAL, "Submits that found a record, and had no effect again."),
        (REPLIES_TOTAL, "Answers to commands, by reason."),
        (HANDED_TOTAL, "Deliveries handed to a stream after the commit, by outcome."),
        (REPLAYS_DROPPED_TOTAL, "Replays that were not counted."),
        (REFUSALS_TOTAL, "Calls that were refused, by reason."),
        (TLS_HANDSHAKES_FAILED_TOTAL, "TLS handshakes that failed or took too long."),
        (STREAM_ENDS_TOTAL, "Streams that ended, by cause."),
        (STREAM_RESULTS_TOTAL, "Results put into frames."),
        (STREAM_BATCHES_TOTAL, "Frames with results."),
        (SESSION_ENDS_TOTAL, "Sessions that ended, by cause."),
        (SESSION_FRAMES_TOTAL, "Frames that sessions received, by kind."),
        (PULLED_RESULTS_TOTAL, "Results pulled without a stream."),
        (BY_HAND_TOTAL, "Deliveries extended, deferred or redriven, by call and outcome."),
        (SWEPT_TOTAL, "Rows settled by the sweep, by result."),
        (SWEEP_REFUSALS_TOTAL, "Rows of the sweep whose command was refused, by reason."),
        (SWEEP_FAILURES_TOTAL, "Searches of the sweep that failed."),
        (REREAD_FAILURES_TOTAL, "Bulk re-reads that failed."),
        (HINTS_SENT_TOTAL, "Hints sent to other replicas."),
        (HINTS_RECEIVED_TOTAL, "Hints of other replicas that arrived."),
        (HINTS_FAILED_TOTAL, "Hints not sent, and ends of listening, by what failed."),
    ];
    for (name, text) in counters {
        describe_counter!(name, text);
    }
    describe_gauge!(QUEUE_COMMANDS, "Commands that wait in the lanes now.");
    describe_gauge!(UNRESOLVED, "Operations of the store that have not ended.");
    describe_gauge!(
        OLDEST_UNACKED_SECONDS,
        Unit::Seconds,
        "Age of the oldest result of the store that nobody acked."
    );
    describe_gauge!(STREAMS, "Streams that are open now.");
    describe_gauge!(SESSIONS, "Sessions that are open now.");
    describe_gauge!(WATCHED, "Operations, inboxes and documents that are watched now.");
    describe_gauge!(HINTS_LISTENING, "1 while other replicas are heard.");
    describe_gauge!(SWEEP_OVERDUE_SECONDS, Unit::Seconds, "Delay of the oldest row swept.");
    describe_histogram!(BATCH_COMMANDS, "Commands that share one commit.");
    describe_histogram!(BATCH_SECONDS, Unit::Seconds, "Time of a batch's transaction.");
    describe_histogram!(SWEEP_SECONDS, Unit::Seconds, "Time of a pass of the sweep.");
}

/// Why a command was put off to the next batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deferral {
    /// It needs rows that were not loaded.
    RowsMissing,
    /// It stays behind a command that was put off.
    Behind,
    /// Another transaction holds its id.
    IdHeld,
    /// Its batch computed long enough before it came to it.
    OutOfTime,
}

impl Deferral {
    fn word(self) -> &'static str {
        match self {
            Deferral::RowsMissing => "rows_missing",
            Deferral::Behind => "behind",
            Deferral::IdHeld => "id_held",
            Deferral::OutOfTime => "out_of_time",
        }
    }
}

/// How a commit whose answer was lost was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// It had committed.
    Committed,
    /// It had not, and was run again.
    RunAgain,
    /// It could not be settled in time.
    Unknown,
}

impl Settlement {
    fn word(self) -> &'static str {
        match self {
            Settlement::Committed => "committed",
            Settlement::RunAgain => "run_again",
            Settlement::Unknown => "unknown",
        }
    }
}

/// Whether an attached stream took a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandOver {
    /// It did.
    Taken,
    /// It was gone; closing the stream returns the delivery.
    Gone,
}

impl HandOver {
    fn word(self) -> &'static str {
        match self {
            HandOver::Taken => "taken",
            HandOver::Gone => "gone",
        }
    }
}

/// A batch's transaction ended well.
pub fn batch_committed(commands: usize, took: Duration) {
    histogram!(BATCH_COMMANDS).record(commands as f64);
    histogram!(BATCH_SECONDS).record(took.as_secs_f64());
}

/// What a batch cost the store.
pub fn store_touched(loaded: usize, saved: usize, round_trips: usize, commits: usize) {
    counter!(ROWS_LOADED_TOTAL).increment(loaded as u64);
    counter!(ROWS_SAVED_TOTAL).increment(saved as u64);
    counter!(ROUND_TRIPS_TOTAL).increment(round_trips as u64);
    counter!(COMMITS_TOTAL).increment(commits as u64);
}

/// A batch is run again as a whole.
pub fn batch_rerun() {
    counter!(BATCHES_RERUN_TOTAL).increment(1);
}

/// A batch is halved.
pub fn batch_halved() {
    counter!(BATCHES_HALVED_TOTAL).increment(1);
}

/// A lost commit was settled, or given up.
pub fn commit_settled(how: Settlement) {
    counter!(COMMITS_AMBIGUOUS_TOTAL, "settled" => how.word()).increment(1);
}

/// Ids of a batch were in the hands of other transactions.
pub fn ids_held(count: usize) {
    counter!(HELD_IDS_TOTAL).increment(count as u64);
}

/// A command was put off.
pub fn deferred(why: Deferral) {
    counter!(DEFERRALS_TOTAL, "reason" => why.word()).increment(1);
}

/// Commands joined a lane's queue.
pub fn queue_grew(commands: usize) {
    gauge!(QUEUE_COMMANDS).increment(commands as f64);
}

/// Commands left a lane's queue.
pub fn queue_shrank(commands: usize) {
    gauge!(QUEUE_COMMANDS).decrement(commands as f64);
}

/// A command was answered; `reason` is `OK` or the refusal's stable reason.
pub fn replied(reason: &'static str) {
    counter!(REPLIES_TOTAL, "reason" => reason).increment(1);
}

/// Submits of a committed batch came to this.
pub fn submits(origin: &'static str, count: u64) {
    counter!(SUBMITS_TOTAL, "origin" => origin).increment(count);
}

/// A batch was committed with so many effects, and so many submits that found a record.
pub fn effects(effects: u64, duplicates_prevented: u64) {
    counter!(EFFECTS_TOTAL).increment(effects);
    counter!(DUPLICATES_PREVENTED_TOTAL).increment(duplicates_prevented);
}

/// What the store has that is not over: unended operations, and the age of the oldest unacked result;
/// bounded counts, see [`crate::store::usage`].
pub fn unresolved(operations: i64, oldest_unacked: Duration) {
    gauge!(UNRESOLVED).set(operations as f64);
    gauge!(OLDEST_UNACKED_SECONDS).set(oldest_unacked.as_secs_f64());
}

/// A delivery was handed to its stream.
pub fn handed(outcome: HandOver) {
    counter!(HANDED_TOTAL, "outcome" => outcome.word()).increment(1);
}

/// A replay was not counted.
pub fn replay_dropped() {
    counter!(REPLAYS_DROPPED_TOTAL).increment(1);
}

/// A call was refused.
pub fn refused(reason: &'static str) {
    counter!(REFUSALS_TOTAL, "reason" => reason).increment(1);
}

/// A TLS handshake failed or took too long.
pub fn tls_handshake_failed() {
    counter!(TLS_HANDSHAKES_FAILED_TOTAL).increment(1);
}

/// A stream began.
pub fn stream_began() {
    gauge!(STREAMS).increment(1.0);
}

/// A stream ended.
pub fn stream_ended(cause: &'static str) {
    gauge!(STREAMS).decrement(1.0);
    counter!(STREAM_ENDS_TOTAL, "cause" => cause).increment(1);
}

/// A session began.
pub fn session_began() {
    gauge!(SESSIONS).increment(1.0);
}

/// A session ended.
pub fn session_ended(cause: &'static str) {
    gauge!(SESSIONS).decrement(1.0);
    counter!(SESSION_ENDS_TOTAL, "cause" => cause).increment(1);
}

/// A session received a frame.
pub fn session_frame(kind: &'static str) {
    counter!(SESSION_FRAMES_TOTAL, "frame" => kind).increment(1);
}

/// A stream put results into a frame.
pub fn results_sent(results: usize) {
    counter!(STREAM_BATCHES_TOTAL).increment(1);
    counter!(STREAM_RESULTS_TOTAL).increment(results as u64);
}

/// A page was pulled.
pub fn results_pulled(results: usize) {
    counter!(PULLED_RESULTS_TOTAL).increment(results as u64);
}

/// A delivery was named by hand: in which call, and how that ended.
pub fn by_hand(call: &'static str, outcome: &'static str) {
    counter!(BY_HAND_TOTAL, "call" => call, "outcome" => outcome).increment(1);
}

/// A pass of the sweep settled rows.
pub fn swept(result: &'static str, rows: u64) {
    counter!(SWEPT_TOTAL, "result" => result).increment(rows);
}

/// A pass of the sweep left rows to the next one.
pub fn sweep_refused(reason: &'static str, rows: u64) {
    counter!(SWEEP_REFUSALS_TOTAL, "reason" => reason).increment(rows);
}

/// A search of the sweep failed.
pub fn sweep_failed() {
    counter!(SWEEP_FAILURES_TOTAL).increment(1);
}

/// A pass of the sweep ended.
pub fn sweep_passed(took: Duration) {
    histogram!(SWEEP_SECONDS).record(took.as_secs_f64());
}

/// How long the oldest row that a pass met was overdue.
pub fn sweep_overdue(overdue: Duration) {
    gauge!(SWEEP_OVERDUE_SECONDS).set(overdue.as_secs_f64());
}

/// How much is watched now.
pub fn watched(keys: usize) {
    gauge!(WATCHED).set(keys as f64);
}

/// A bulk re-read of what is watched failed.
pub fn reread_failed() {
    counter!(REREAD_FAILURES_TOTAL).increment(1);
}

/// What about hints failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintFault {
    /// One could not be sent.
    Send,
    /// Listening ended, or did not begin.
    Listen,
}

impl HintFault {
    fn word(self) -> &'static str {
        match self {
            HintFault::Send => "send",
            HintFault::Listen => "listen",
        }
    }
}

/// A hint was sent.
pub fn hint_sent() {
    counter!(HINTS_SENT_TOTAL).increment(1);
}

/// A hint of another replica arrived.
pub fn hint_received() {
    counter!(HINTS_RECEIVED_TOTAL).increment(1);
}

/// Hints were lost.
pub fn hints_failed(what: HintFault) {
    counter!(HINTS_FAILED_TOTAL, "what" => what.word()).increment(1);
}

/// Whether other replicas are heard now.
pub fn listens(yes: bool) {
    gauge!(HINTS_LISTENING).set(if yes { 1.0 } else { 0.0 });
}
