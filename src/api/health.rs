//! grpc.health.v1: the empty name says that the process lives, each service's name that it can
//! answer.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tonic_health::{ServingStatus, pb::health_server::HealthServer, server::HealthService};

use crate::proto::{
    admin_service_server, document_service_server, inbox_service_server, operation_service_server,
};

const SERVICES: [&str; 4] = [
    operation_service_server::SERVICE_NAME,
    inbox_service_server::SERVICE_NAME,
    document_service_server::SERVICE_NAME,
    admin_service_server::SERVICE_NAME,
];

/// What probes are told, on both listeners; clones share it.
#[derive(Clone, Debug)]
pub struct Health {
    reporter: tonic_health::server::HealthReporter,
    ready: Arc<AtomicBool>,
}

impl Health {
    /// Alive and not ready yet.
    pub async fn starting() -> Self {
        let health = Health {
            reporter: tonic_health::server::HealthReporter::new(),
            ready: Arc::new(AtomicBool::new(false)),
        };
        health.tell(ServingStatus::NotServing).await;
        health.reporter.set_service_status("", ServingStatus::Serving).await;
        health
    }

    /// Whether the service can answer.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::SeqCst)
    }

    /// The store answers.
    pub async fn set_ready(&self) {
        if !self.ready.swap(true, Ordering::SeqCst) {
            self.tell(ServingStatus::Serving).await;
        }
    }

    /// The store does not answer.
    pub async fn set_not_ready(&self) {
        if self.ready.swap(false, Ordering::SeqCst) {
            self.tell(ServingStatus::NotServing).await;
        }
    }

    /// The process is about to end: nothing new should come here.
    pub async fn set_draining(&self) {
        self.set_not_ready().await;
        self.reporter.set_service_status("", ServingStatus::NotServing).await;
    }

    async fn tell(&self, status: ServingStatus) {
        for service in SERVICES {
            self.reporter.set_service_status(service, status).await;
        }
    }

    /// The service that answers for this.
    pub(super) fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
    }
}
