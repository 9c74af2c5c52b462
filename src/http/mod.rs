//! The admin listener: probes and metrics, in plain HTTP.
//!
//! What must stay true: it tells nothing about anybody's data, so that it needs no credentials; it
//! answers while the service drains, until the very end.

use axum::{
    Router, extract::State, http::StatusCode, http::header, response::IntoResponse, routing,
};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::api::health::Health;

/// Serves until `stop`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    health: Health,
    metrics: PrometheusHandle,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/healthz", routing::get(alive))
        .route("/readyz", routing::get(ready).with_state(health))
        .route("/metrics", routing::get(measured).with_state(metrics));
    tokio::select! {
        biased;
        // Connections kept open by scrapers do not hold the end: nothing here can be lost.
        () = stop.cancelled() => Ok(()),
        served = axum::serve(listener, router) => served,
    }
}

async fn alive() -> &'static str {
    "alive\n"
}

async fn ready(State(health): State<Health>) -> (StatusCode, &'static str) {
    match health.is_ready() {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    }
}

async fn measured(State(metrics): State<PrometheusHandle>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
}
