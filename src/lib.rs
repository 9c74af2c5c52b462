//! receiptd: durable operation receipts with resumable result delivery.

/// The generated protocol, package `receiptd.v1`.
pub mod proto {
    #![allow(clippy::all, clippy::allow_attributes, reason = "generated code is not ours to lint")]
    tonic::include_proto!("receiptd.v1");

    /// Everything reflection needs to describe the services.
    pub const DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/receiptd_descriptor.bin"));
}

#[cfg(feature = "client")]
pub mod client;

#[cfg(feature = "server")]
pub mod domain;
#[cfg(feature = "server")]
pub mod engine;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod stream;
#[cfg(feature = "server")]
pub mod sweeper;
#[cfg(feature = "server")]
pub mod wake;

#[cfg(feature = "server")]
pub mod cli;
