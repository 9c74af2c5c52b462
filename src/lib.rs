//! receiptd: durable operation receipts with resumable result delivery.
#[cfg(feature = "server")]
pub mod domain;
