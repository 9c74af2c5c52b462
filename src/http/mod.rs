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

/// Serves until `stop`; `is_ready` says whether the service can answer.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    is_ready: impl Fn() -> bool + Clone + Send + Sync + 'static,
    metrics: PrometheusHandle,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let ready = async move || match is_ready() {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    };
    let router = Router::new()
        .route("/healthz", routing::get(alive))
        .route("/readyz", routing::get(ready))
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

async fn measured(State(metrics): State<PrometheusHandle>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
}
