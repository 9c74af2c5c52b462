//! InboxService: delivery of results, apart from the operations themselves.

use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::{
    Api,
    auth::Permission,
    caller,
    convert::{inboxes as convert, lists, operations},
    deadline::Call,
    pages::{unpack_name, unpack_number},
    places::Placed,
    status::Refused,
};
use crate::{
    domain::{
        delivery::InboxKey,
        ids::{Account, ConsumerId, InboxName},
        refusal::{Asked, Refusal},
    },
    proto::{self, inbox_service_server::InboxService},
    stream::{self, Frame, Frames, Granted, OpenStream},
};

type DeliveryStream =
    Pin<Box<dyn Stream<Item = Result<proto::StreamDeliveriesResponse, Status>> + Send>>;

#[tonic::async_trait]
impl InboxService for Api {
    type StreamDeliveriesStream = Placed<DeliveryStream>;

    async fn stream_deliveries(
        &self,
        request: Request<proto::StreamDeliveriesRequest>,
    ) -> Result<Response<Self::StreamDeliveriesStream>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Receive)?;
            let place = self.place(&caller)?;
            Ok(place.hold(self.stream(&caller.account, request.into_inner()).await?))
        };
        let result = answer.await;
        self.answer_opening(call, result)
    }

    async fn ack_deliveries(
        &self,
        request: Request<proto::AckDeliveriesRequest>,
    ) -> Result<Response<proto::AckDeliveriesResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Ack)?;
            self.ack(&caller, request.into_inner(), call.answer_by).await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn extend_deliveries(
        &self,
        request: Request<proto::ExtendDeliveriesRequest>,
    ) -> Result<Response<proto::ExtendDeliveriesResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Ack)?;
            self.extend(&caller, request.into_inner(), call.answer_by).await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn defer_deliveries(
        &self,
        request: Request<proto::DeferDeliveriesRequest>,
    ) -> Result<Response<proto::DeferDeliveriesResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Ack)?;
            self.defer(&caller, request.into_inner(), call.answer_by).await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn redrive_deliveries(
        &self,
        request: Request<proto::RedriveDeliveriesRequest>,
    ) -> Result<Response<proto::RedriveDeliveriesResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Receive)?;
            self.redrive(&caller, request.into_inner(), call.answer_by).await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn pull_deliveries(
        &self,
        request: Request<proto::PullDeliveriesRequest>,
    ) -> Result<Response<proto::PullDeliveriesResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Receive)?;
            self.pull(&caller.account, request.into_inner(), call.answer_by).await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn list_deliveries(
        &self,
        request: Request<proto::ListDeliveriesRequest>,
    ) -> Result<Response<proto::ListDeliveriesResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Read)?;
            self.list_deliveries_of(&caller.account, request.into_inner()).await
        };
        self.answer_read(call, answer).await
    }

    async fn get_inbox(
        &self,
        request: Request<proto::GetInboxRequest>,
    ) -> Result<Response<proto::GetInboxResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Read)?;
            let key = key(&caller.account, &request.into_inner().inbox)?;
            let found = self.engine().store().inbox(&key).await?;
            let found = found.ok_or(Refusal::NoSuchInbox)?;
            let oldest = self.engine().store().oldest_open_of(&[key]).await?;
            let oldest = oldest.first().and_then(Option::as_ref);
            let inbox = convert::inbox(&found, oldest, self.engine().policy());
            Ok(proto::GetInboxResponse { inbox: Some(inbox) })
        };
        self.answer_read(call, answer).await
    }

    async fn list_inboxes(
        &self,
        request: Request<proto::ListInboxesRequest>,
    ) -> Result<Response<proto::ListInboxesResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Read)?;
            self.list_inboxes_of(&caller.account, request.into_inner()).await
        };
        self.answer_read(call, answer).await
    }
}

/// A stream that a caller asks for, on its own or in a session.
#[derive(Debug)]
pub(super) struct Wanted {
    /// What it names.
    pub(super) request: proto::StreamDeliveriesRequest,
    /// What it lets the stream send.
    pub(super) credit: Option<Granted>,
    /// When the session that it belongs to ends.
    pub(super) end: Option<Instant>,
}

pub(super) fn key(account: &Account, name: &str) -> Result<InboxKey, Refused> {
    Ok(InboxKey { account: account.clone(), inbox: InboxName::parse(name)? })
}

impl Api {
    async fn stream(
        &self,
        account: &Account,
        request: proto::StreamDeliveriesRequest,
    ) -> Result<DeliveryStream, Refused> {
        let frames = self.frames(account, Wanted { request, credit: None, end: None }).await?;
        let api = self.clone();
        Ok(Box::pin(frames.map(move |frame| match frame {
            Ok(frame) => Ok(api.frame(frame)),
            Err(refusal) => Err(api.status(Asked::Stream, refusal.into())),
        })))
    }

    /// Opens a stream: the same for a call of its own and for a session.
    pub(super) async fn frames(
        &self,
        account: &Account,
        wanted: Wanted,
    ) -> Result<Frames, Refused> {
        let Wanted { request, credit, end } = wanted;
        let engine = self.engine();
        let open = OpenStream {
            inbox: key(account, &request.inbox)?,
            consumer: self.consumer(&request.consumer_id)?,
            window: convert::window(request.window, engine.policy())?,
            resume_token: request.resume_token,
            credit,
            end,
        };
        Ok(stream::open(engine, open, self.0.streams.clone(), self.drain().clone()).await?)
    }

    /// One frame for a caller.
    pub(super) fn frame(&self, frame: Frame) -> proto::StreamDeliveriesResponse {
        let engine = self.engine();
        convert::frame(frame, &engine.store().facts().epoch, engine.policy())
    }

    /// The caller's consumer, or one for this stream only.
    pub(super) fn consumer(&self, id: &str) -> Result<ConsumerId, Refused> {
        if !id.is_empty() {
            return Ok(ConsumerId::parse(id)?);
        }
        let [high, low] = [self.engine().seams().random(), self.engine().seams().random()];
        Ok(ConsumerId::parse(&format!("c-{high:016x}{low:016x}"))?)
    }

    async fn list_deliveries_of(
        &self,
        account: &Account,
        request: proto::ListDeliveriesRequest,
    ) -> Result<proto::ListDeliveriesResponse, Refused> {
        use sha2::Digest;
        let size = lists::page_size(request.page_size)?;
        let states = lists::delivery_states("states", &request.states)?;
        let key = key(account, &request.inbox)?;
        let filter = sha2::Sha256::digest(format!("{:?} {states:?}", key.inbox)).into();
        let pages = self.pages(account, "deliveries", filter);
        let after = pages.open(&request.page_token)?;
        let after = after.map(|packed| unpack_number(&packed)).transpose()?.unwrap_or(0);
        let store = self.engine().store();
        if store.inbox(&key).await?.is_none() {
            return Err(Refusal::NoSuchInbox.into());
        }
        let page = store.list_deliveries(&key, after, &states, size).await?;
        let next = page.next.map(i64::to_be_bytes);
        Ok(proto::ListDeliveriesResponse {
            deliveries: page.deliveries.iter().map(operations::delivery).collect(),
            next_page_token: pages.seal(next.as_ref().map(<[u8; 8]>::as_slice)),
        })
    }

    async fn list_inboxes_of(
        &self,
        account: &Account,
        request: proto::ListInboxesRequest,
    ) -> Result<proto::ListInboxesResponse, Refused> {
        let size = lists::page_size(request.page_size)?;
        let pages = self.pages(account, "inboxes", [0; 32]);
        let after = pages.open(&request.page_token)?.map(unpack_name).transpose()?;
        let store = self.engine().store();
        let found = store.list_inboxes(account, &after.unwrap_or_default(), size).await?;
        let keys: Vec<InboxKey> = found.iter().map(|inbox| inbox.key.clone()).collect();
        let oldest = store.oldest_open_of(&keys).await?;
        let policy = self.engine().policy();
        let shown = found.iter().zip(&oldest);
        let inboxes =
            shown.map(|(inbox, oldest)| convert::inbox(inbox, oldest.as_ref(), policy)).collect();
        let next = is_full(&found, size).then(|| found.last()).flatten();
        let next = next.map(|inbox| inbox.key.inbox.as_str().as_bytes());
        Ok(proto::ListInboxesResponse { inboxes, next_page_token: pages.seal(next) })
    }
}

/// Whether more may follow a page.
pub(super) fn is_full<T>(page: &[T], size: i64) -> bool {
    i64::try_from(page.len()).is_ok_and(|length| length >= size)
}
