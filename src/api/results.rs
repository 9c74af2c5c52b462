//! ReadResult, and the bodies that stand in answers.
//!
//! What must stay true: a chunk is read when the one before was taken, so that a stream holds one
//! chunk and one in its channel; nothing is skipped, and a body whose end does not come is a
//! fault, not a shorter body; every wait ends by the reader, its stall, the stream's age or a
//! shutdown. Deliberately not here: what is kept (the rules decide).

use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{
    Api,
    auth::{Permission, Principal},
    convert::{self, operations},
    deadline::AnswerBy,
    status::Refused,
};
use crate::{
    domain::{
        ids::{Invalid, OperationId, Span},
        operation::{Operation, OperationKey, OperationState, PayloadKind, ResultInfo},
        policy::INLINE_PAYLOAD_BYTES_LIMIT,
        refusal::{Asked, Refusal},
    },
    proto,
    store::query::SLICE_BYTES_MAX,
};

/// A chunk whose size the caller leaves open: as large as the largest body in an answer.
const CHUNK_BYTES: i64 = 64 * 1024;
/// Chunks that wait for the reader: one keeps the connection busy while the next is read.
const CHUNKS_BUFFERED: usize = 1;
/// When to read on after a shutdown or an old stream.
const RESUME_AFTER: Span = Span::seconds(1);

type Chunks = mpsc::Sender<Result<proto::ReadResultResponse, Status>>;

/// A body on its way.
struct Reading {
    key: OperationKey,
    info: ResultInfo,
    offset: i64,
    chunk: i64,
    end: Instant,
}

impl Api {
    /// The body of a result from an offset on.
    pub(super) async fn read_body(
        &self,
        caller: &Principal,
        request: proto::ReadResultRequest,
    ) -> Result<ReceiverStream<Result<proto::ReadResultResponse, Status>>, Refused> {
        let identity = convert::identity(&request.operation_id, request.mint_time.as_ref())?;
        let key = identity.key(&caller.account);
        let named = key.id.clone();
        let about = Refused::about(&named);
        let chunk = chunk(request.chunk_bytes).map_err(Refusal::Invalid).map_err(&about)?;
        let Some(shown) = self.look_up(&key).await? else {
            return Err(self.absent(&identity, &caller.account).await);
        };
        let info = kept(&shown.operation).map_err(&about)?;
        if !(0..=info.size).contains(&request.offset) {
            let problem = format!("must be 0 to the body's size of {} bytes", info.size);
            return Err(about(Refusal::Invalid(Invalid::new("offset", problem))));
        }
        let streams = &self.0.streams;
        let end = Instant::now() + streams.age(self.engine().seams().random());
        let reading = Reading { key, info, offset: request.offset, chunk, end };
        let (chunks, receiver) = mpsc::channel(CHUNKS_BUFFERED);
        let api = self.clone();
        self.engine().seams().spawn(async move {
            let id = reading.key.id.clone();
            if let Err(refusal) = api.send_body(reading, &chunks).await {
                let status = api.status(Asked::Stream, Refused::about(&id)(refusal));
                // A reader that has not even room for the reason is let go without it.
                let stall = api.0.streams.write_stall_max.to_std();
                let _ = chunks.send_timeout(Err(status), stall).await;
            }
        });
        Ok(ReceiverStream::new(receiver))
    }

    /// Sends chunks until the last, or until the reader is gone.
    async fn send_body(&self, reading: Reading, chunks: &Chunks) -> Result<(), Refusal> {
        let Reading { key, info, mut offset, chunk, end } = reading;
        let stall = self.0.streams.write_stall_max.to_std();
        let mut described = Some(operations::result_info(&info));
        loop {
            let place = tokio::select! {
                biased;
                () = self.drain().cancelled() => return Err(draining()),
                () = tokio::time::sleep_until(end) => return Err(draining()),
                place = tokio::time::timeout(stall, chunks.reserve()) => match place {
                    Ok(Ok(place)) => place,
                    Ok(Err(_)) => return Ok(()),
                    Err(_) => return Err(Refusal::SlowConsumer),
                },
            };
            let wanted = chunk.min(info.size - offset);
            let data = tokio::select! {
                biased;
                () = self.drain().cancelled() => return Err(draining()),
                () = chunks.closed() => return Ok(()),
                data = self.slice(&key, &info, offset, wanted) => data?,
            };
            let (begins, last) = (offset, offset + wanted == info.size);
            offset += wanted;
            place.send(Ok(proto::ReadResultResponse {
                offset: begins,
                data,
                result: described.take(),
                last,
            }));
            if last {
                return Ok(());
            }
        }
    }

    /// Exactly the bytes asked for.
    async fn slice(
        &self,
        key: &OperationKey,
        info: &ResultInfo,
        offset: i64,
        length: i64,
    ) -> Result<Vec<u8>, Refusal> {
        if length == 0 {
            return Ok(Vec::new());
        }
        let store = self.engine().store();
        let read = store.read_payload(key, PayloadKind::Result, offset, length).await;
        match read.map_err(|error| super::status::read_failed(&error))? {
            Some(data) if i64::try_from(data.len()) == Ok(length) => Ok(data.into()),
            Some(_) => {
                tracing::error!(operation.id = %key.id, "a stored result is shorter than its receipt says");
                Err(Refusal::Internal)
            }
            // It was deleted while it was read.
            None => Err(not_kept(OperationState::Applied, info)),
        }
    }

    /// The body of a result where it may stand in an answer: nothing, where this caller may not
    /// read, the answer would be late, or the store can't tell; the answer is certain without it.
    pub(super) async fn inline_body(
        &self,
        caller: &Principal,
        operation: Option<&proto::Operation>,
        answer_by: AnswerBy,
    ) -> Option<Vec<u8>> {
        let info = operation?.receipt.as_ref()?.result.as_ref()?;
        let size = usize::try_from(info.size_bytes).ok()?;
        // What no account lets travel costs no look at the account.
        if !info.kept || size > INLINE_PAYLOAD_BYTES_LIMIT {
            return None;
        }
        caller.may(Permission::Read).ok()?;
        let id = OperationId::parse(&operation?.operation_id).ok()?;
        let keys = [OperationKey { account: caller.account.clone(), id }];
        let read = async {
            let policy = self.engine().policy(&caller.account).await.ok()?;
            if size > policy.inline_payload_bytes_max {
                return None;
            }
            let found = self.engine().store().payloads(&keys, PayloadKind::Result).await;
            found.unwrap_or_default().pop().flatten()
        };
        answer_by.in_time(read).await.map(Vec::from)
    }
}

fn chunk(bytes: i32) -> Result<i64, Invalid> {
    match i64::from(bytes) {
        0 => Ok(CHUNK_BYTES),
        bytes if (1..=SLICE_BYTES_MAX).contains(&bytes) => Ok(bytes),
        _ => Err(Invalid::new(
            "chunk_bytes",
            format!("must be 1 to {SLICE_BYTES_MAX}; 0 means {CHUNK_BYTES}"),
        )),
    }
}

/// What is said of a body that can be read, or why there is none.
fn kept(operation: &Operation) -> Result<ResultInfo, Refusal> {
    match (operation.body(), &operation.result) {
        (Some(info), _) => Ok(info.clone()),
        (None, Some(info)) => Err(not_kept(operation.state, info)),
        (None, None) if operation.state.is_final() => {
            Err(Refusal::ResultNotKept { state: operation.state, size: None })
        }
        (None, None) => Err(Refusal::ResultNotReady { state: operation.state }),
    }
}

fn not_kept(state: OperationState, info: &ResultInfo) -> Refusal {
    Refusal::ResultNotKept { state, size: Some(info.size) }
}

fn draining() -> Refusal {
    Refusal::Draining { retry: RESUME_AFTER }
}
