//! InboxService: delivery of results, apart from the operations themselves.

use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::{
    Api,
    auth::{Permission, Principal},
    caller,
    convert::{inboxes as convert, lists, operations},
    deadline::{AnswerBy, Call},
    pages::{unpack_name, unpack_number},
    places::Placed,
    status::Refused,
    unexpected,
};
use crate::{
    domain::{
        command::{Command, Reply},
        delivery::{Delivery, InboxKey},
        ids::{Account, ConsumerId, InboxName, Invalid},
        inbox::{Force, Inbox},
        policy::Policy,
        refusal::{Asked, Refusal, RefusalOutcome},
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
            let found = self.live(&key).await?;
            let inboxes = std::slice::from_ref(&found);
            let mut inboxes = self.with_oldest(&caller.account, inboxes).await?;
            Ok(proto::GetInboxResponse { inbox: inboxes.pop() })
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

    async fn update_inbox(
        &self,
        request: Request<proto::UpdateInboxRequest>,
    ) -> Result<Response<proto::UpdateInboxResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Admin)?;
            self.update(&caller, request.into_inner(), call.answer_by).await
        };
        let result = answer.await;
        self.answer(call, result)
    }

    async fn delete_inbox(
        &self,
        request: Request<proto::DeleteInboxRequest>,
    ) -> Result<Response<proto::DeleteInboxResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Admin)?;
            self.delete(&caller, request.into_inner(), call.answer_by).await
        };
        let result = answer.await;
        self.answer(call, result)
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
        let inbox = InboxName::parse(&request.inbox)?;
        let frames = self.frames(account, Wanted { request, credit: None, end: None }).await?;
        let api = self.clone();
        Ok(Box::pin(frames.map(move |frame| match frame {
            Ok(frame) => Ok(api.frame(&inbox, frame)),
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
            window: convert::window(request.window)?,
            resume_token: request.resume_token,
            credit,
            end,
        };
        Ok(stream::open(engine, open, self.0.streams.clone(), self.drain().clone()).await?)
    }

    /// One frame of an inbox's stream for a caller.
    pub(super) fn frame(&self, inbox: &InboxName, frame: Frame) -> proto::StreamDeliveriesResponse {
        let engine = self.engine();
        convert::frame(frame, inbox, &engine.store().facts().epoch)
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
        let after = self.live(&key).await?.start(Some(after));
        let page = self.engine().store().list_deliveries(&key, after, &states, size).await?;
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
        let page = store.list_inboxes(account, &after.unwrap_or_default(), size).await?;
        let inboxes = self.with_oldest(account, &page.inboxes).await?;
        let next = page.next.as_ref().map(|name| name.as_str().as_bytes());
        Ok(proto::ListInboxesResponse { inboxes, next_page_token: pages.seal(next) })
    }

    async fn update(
        &self,
        caller: &Principal,
        request: proto::UpdateInboxRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::UpdateInboxResponse, Refused> {
        let inbox = request.inbox.unwrap_or_default();
        let command = Command::UpdateInbox {
            inbox: key(&caller.account, &inbox.inbox)?,
            change: convert::inbox_change(&inbox, request.update_mask.as_ref())?,
        };
        // Before the change: nothing that fails after it may turn the answer into an error.
        let policy = self.policy_in_time(&caller.account, answer_by).await?;
        let running = answer_by.or_late(RefusalOutcome::Unknown, self.engine().run(command));
        match running.await? {
            Reply::InboxUpdated(inbox) => {
                let inbox = convert::inbox(&inbox, None, &policy);
                Ok(proto::UpdateInboxResponse { inbox: Some(inbox) })
            }
            other => Err(unexpected(&other).into()),
        }
    }

    async fn delete(
        &self,
        caller: &Principal,
        request: proto::DeleteInboxRequest,
        answer_by: AnswerBy,
    ) -> Result<proto::DeleteInboxResponse, Refused> {
        let generation = match request.generation {
            0 => None,
            generation if generation > 0 => Some(generation),
            _ => {
                let problem = "must not be negative; 0 means whichever it is";
                return Err(Invalid::new("generation", problem).into());
            }
        };
        let command = Command::DeleteInbox {
            inbox: key(&caller.account, &request.inbox)?,
            force: if request.force { Force::WithContent } else { Force::OnlyEmpty },
            generation,
        };
        let policy = self.policy_in_time(&caller.account, answer_by).await?;
        let running = answer_by.or_late(RefusalOutcome::Unknown, self.engine().run(command));
        match running.await? {
            Reply::InboxDeleted(inbox) => {
                // Behind the step that the deletion asked for: the answer comes after the first of
                // what was open has ended. Whatever is left is the sweeper's.
                let sweep = self.engine().run(Command::SweepInbox { key: inbox.key.clone() });
                answer_by.in_time(async { sweep.await.ok() }).await;
                let inbox = convert::inbox(&inbox, None, &policy);
                Ok(proto::DeleteInboxResponse { inbox: Some(inbox) })
            }
            other => Err(unexpected(&other).into()),
        }
    }

    /// The policy of an account, read before a change.
    async fn policy_in_time(
        &self,
        account: &Account,
        answer_by: AnswerBy,
    ) -> Result<Policy, Refused> {
        let read = async { Ok::<_, Refused>(self.engine().policy(account).await?) };
        answer_by.or_late(RefusalOutcome::NoEffect, read).await
    }

    /// An inbox that is not deleted.
    pub(super) async fn live(&self, key: &InboxKey) -> Result<Inbox, Refused> {
        let found = self.engine().store().inbox(key).await?;
        Ok(found.filter(|inbox| !inbox.deleted).ok_or(Refusal::NoSuchInbox)?)
    }

    /// Inboxes as they are shown, each with its oldest open delivery.
    async fn with_oldest(
        &self,
        account: &Account,
        inboxes: &[Inbox],
    ) -> Result<Vec<proto::Inbox>, Refused> {
        let keys: Vec<InboxKey> = inboxes.iter().map(|inbox| inbox.key.clone()).collect();
        let oldest = self.engine().store().oldest_open_of(&keys).await?;
        let policy = self.engine().policy(account).await?;
        let shown = |(inbox, oldest): (&Inbox, &Option<Delivery>)| {
            // Another generation may have begun since the inbox was read.
            let own = oldest.as_ref().filter(|oldest| inbox.owns(&oldest.key));
            convert::inbox(inbox, own, &policy)
        };
        Ok(inboxes.iter().zip(&oldest).map(shown).collect())
    }
}

/// Whether more may follow a page.
pub(super) fn is_full<T>(page: &[T], size: i64) -> bool {
    i64::try_from(page.len()).is_ok_and(|length| length >= size)
}
