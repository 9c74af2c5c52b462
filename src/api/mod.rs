//! Everything between the gRPC socket and the engine: one file per service.
//!
//! What must stay true: this folder alone knows `tonic` and the protocol's types; a handler reads
//! like a table of contents (caller, convert, run, convert); a mutation is a command of the
//! engine, and never depends on its caller staying. Deliberately not here: any rule.

mod admin;
pub mod auth;
mod by_hand;
pub mod convert;
mod deadline;
mod documents;
mod fields;
mod gate;
pub mod health;
mod inboxes;
mod operation_lists;
mod operations;
mod pages;
mod places;
mod results;
mod sessions;
mod shown;
pub mod shutdown;
pub mod status;
mod submits;
pub mod transport;
mod verify;
mod watch;
mod watch_document;
mod watch_operation;
mod watching;
pub mod web;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

use self::{
    auth::Permission,
    deadline::Call,
    pages::Pages,
    places::{Place, Places},
    status::Refused,
};
use crate::{
    domain::{
        command::Reply,
        ids::Account,
        refusal::{Asked, Refusal, RefusalOutcome},
    },
    engine::Engine,
    stream::StreamSettings,
    telemetry,
};

/// What every service holds; clones share one engine.
#[derive(Clone, Debug)]
pub struct Api(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    engine: Engine,
    streams: StreamSettings,
    places: Places,
    drain: CancellationToken,
    /// Taken by whoever has a pass of the sweeper run: one at a time is as fast as many.
    asked_sweeps: Semaphore,
}

impl Api {
    /// Services in front of `engine`; their streams end when `drain` is cancelled, and an account
    /// has at most `account_streams_max` of them.
    pub fn new(
        engine: Engine,
        streams: StreamSettings,
        account_streams_max: usize,
        drain: CancellationToken,
    ) -> Self {
        let places = Places::new(account_streams_max);
        let asked_sweeps = Semaphore::new(1);
        Api(Arc::new(Parts { engine, streams, places, drain, asked_sweeps }))
    }

    fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Taken first thing for a stream, a session or a watch.
    fn place(&self, caller: &auth::Principal) -> Result<Place, Refused> {
        Ok(self.0.places.take(&caller.account)?)
    }

    fn asked_sweeps(&self) -> &Semaphore {
        &self.0.asked_sweeps
    }

    fn drain(&self) -> &CancellationToken {
        &self.0.drain
    }

    fn pages<'a>(
        &'a self,
        account: &'a Account,
        list: &'static str,
        filter_hash: [u8; 32],
    ) -> Pages<'a> {
        let key = self.engine().store().facts().token_key;
        Pages { key, account, list, filter_hash }
    }

    /// The answer or the refusal of a call that changes something, as tonic sends it.
    fn answer<T>(&self, call: Call, result: Result<T, Refused>) -> Result<Response<T>, Status> {
        self.answer_as(Asked::Change, call, result)
    }

    /// As [`Api::answer`] for a call that opens a stream.
    fn answer_opening<T>(
        &self,
        call: Call,
        result: Result<T, Refused>,
    ) -> Result<Response<T>, Status> {
        self.answer_as(Asked::Read, call, result)
    }

    /// As [`Api::answer`] for a call that changes nothing: it need not end in silence either.
    async fn answer_read<T>(
        &self,
        call: Call,
        answer: impl Future<Output = Result<T, Refused>> + Send,
    ) -> Result<Response<T>, Status> {
        // Boxed: the compiler bounds how deep futures nest in one another.
        let answer: BoxFuture<'_, _> = Box::pin(answer);
        let result = call.answer_by.or_late(RefusalOutcome::NoEffect, answer).await;
        self.answer_as(Asked::Read, call, result)
    }

    /// The one place where an answer or a refusal becomes what tonic sends.
    fn answer_as<T>(
        &self,
        asked: Asked,
        call: Call,
        result: Result<T, Refused>,
    ) -> Result<Response<T>, Status> {
        result.map(Response::new).map_err(|refused| self.status(asked, call.told(refused)))
    }

    /// A refusal as the error of one frame or item.
    fn error(&self, refused: Refused) -> crate::proto::SubmitError {
        telemetry::refused(refused.refusal.reason());
        refused.into_submit_error(self.engine().seams().now())
    }

    fn status(&self, asked: Asked, refused: Refused) -> Status {
        telemetry::refused(refused.refusal.reason());
        // The process's clock only turns a known time into a hint of how long to wait.
        refused.into_status(asked, self.engine().seams().now())
    }
}

/// The verified caller, if it may.
fn caller<T>(
    request: &tonic::Request<T>,
    permission: Permission,
) -> Result<Arc<auth::Principal>, Refused> {
    let caller = auth::principal(request)?;
    caller.may(permission)?;
    Ok(caller)
}

/// A reply of another kind than its command's: a fault of ours.
fn unexpected(reply: &Reply) -> Refusal {
    tracing::error!(reply = ?std::mem::discriminant(reply), "a reply of another kind");
    Refusal::Internal
}
