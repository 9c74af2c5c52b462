//! The one document of the fake.

use futures_util::stream::BoxStream;
use tonic::{Request, Response, Status};

use super::Store;
use crate::proto::{document_service_server::DocumentService, *};

#[tonic::async_trait]
impl DocumentService for Store {
    type WatchDocumentStream = BoxStream<'static, Result<WatchDocumentResponse, Status>>;

    async fn watch_document(
        &self,
        _request: Request<WatchDocumentRequest>,
    ) -> Result<Response<Self::WatchDocumentStream>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn get_document(
        &self,
        _request: Request<GetDocumentRequest>,
    ) -> Result<Response<GetDocumentResponse>, Status> {
        let data = self.data();
        let document = Document {
            revision: data.revision,
            content: Some(document::Content::Text(data.text.iter().collect())),
            ..Document::default()
        };
        Ok(Response::new(GetDocumentResponse { document: Some(document) }))
    }

    async fn list_documents(
        &self,
        _request: Request<ListDocumentsRequest>,
    ) -> Result<Response<ListDocumentsResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}
