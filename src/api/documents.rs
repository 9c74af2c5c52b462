//! DocumentService: reads and watches the built-in documents.

use sha2::Digest;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{
    Api,
    auth::Permission,
    caller,
    convert::{lists, operations},
    deadline::Call,
    pages::unpack_name,
    places::Placed,
    status::Refused,
};
use crate::{
    domain::{
        ids::{Account, Invalid, TARGET_BYTES_MAX, Target},
        lock::TargetKey,
        refusal::Refusal,
    },
    proto::{self, document_service_server::DocumentService},
};

#[tonic::async_trait]
impl DocumentService for Api {
    async fn get_document(
        &self,
        request: Request<proto::GetDocumentRequest>,
    ) -> Result<Response<proto::GetDocumentResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Read)?;
            let target = Target::parse("target", &request.into_inner().target)?;
            let key = TargetKey { account: caller.account.clone(), target };
            let found = self.engine().store().document(&key).await?;
            let found = found.filter(|document| document.exists);
            let document = found.ok_or(Refusal::NoSuchDocument)?;
            Ok(proto::GetDocumentResponse { document: Some(operations::document(&document)) })
        };
        self.answer_read(call, answer).await
    }

    async fn list_documents(
        &self,
        request: Request<proto::ListDocumentsRequest>,
    ) -> Result<Response<proto::ListDocumentsResponse>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Read)?;
            self.list_documents_of(&caller.account, request.into_inner()).await
        };
        self.answer_read(call, answer).await
    }

    type WatchDocumentStream = Placed<ReceiverStream<Result<proto::WatchDocumentResponse, Status>>>;

    async fn watch_document(
        &self,
        request: Request<proto::WatchDocumentRequest>,
    ) -> Result<Response<Self::WatchDocumentStream>, Status> {
        let call = Call::plain(&request);
        let answer = async {
            let caller = caller(&request, Permission::Read)?;
            let place = self.place(&caller)?;
            let watch = self.watch_document_of(&caller.account, request.into_inner()).await?;
            Ok(place.hold(watch))
        };
        let result = answer.await;
        self.answer_opening(call, result)
    }
}

impl Api {
    async fn list_documents_of(
        &self,
        account: &Account,
        request: proto::ListDocumentsRequest,
    ) -> Result<proto::ListDocumentsResponse, Refused> {
        let size = lists::page_size(request.page_size)?;
        let prefix = request.target_prefix;
        if prefix.len() > TARGET_BYTES_MAX || prefix.chars().any(char::is_control) {
            let problem =
                format!("must be at most {TARGET_BYTES_MAX} bytes without control characters");
            return Err(Invalid::new("target_prefix", problem).into());
        }
        let filter = sha2::Sha256::digest(&prefix).into();
        let pages = self.pages(account, "documents", filter);
        let after = pages.open(&request.page_token)?.map(unpack_name).transpose()?;
        let after = after.map(|target| Target::from_stored(&target));
        let store = self.engine().store();
        let found = store.list_documents(account, &prefix, after.as_ref(), size).await?;
        let next = found.next.as_ref().map(|target| target.as_str().as_bytes());
        Ok(proto::ListDocumentsResponse {
            documents: found.documents.iter().map(operations::document).collect(),
            next_page_token: pages.seal(next),
        })
    }
}
