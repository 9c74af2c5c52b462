//! receiptd: durable operation receipts with resumable result delivery.
//!
//! In reading order: [`proto`] is what callers see; [`domain`] holds every rule; [`store`] loads
//! and saves, [`verify`] checks what is saved; [`engine`] batches commands; [`epochs`] ends a life of a
//! store and begins the next; [`stream`], [`sweeper`] and [`wake`] are what goes on
//! without a caller; [`api`] and [`http`] are the two listeners; [`server`] puts them together;
//! [`config`] and [`cli`] start it.

/// The generated protocol, package `receiptd.v1`.
pub mod proto {
    #![allow(clippy::all, clippy::allow_attributes, reason = "generated code is not ours to lint")]
    tonic::include_proto!("receiptd.v1");

    /// Everything reflection needs to describe the services.
    pub const DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/receiptd_descriptor.bin"));
}

mod codec;

#[cfg(feature = "client")]
pub mod client;

#[cfg(feature = "server")]
pub mod domain;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod verify;

#[cfg(feature = "server")]
pub mod engine;
#[cfg(feature = "server")]
pub mod epochs;

#[cfg(feature = "server")]
pub mod stream;
#[cfg(feature = "server")]
pub mod sweeper;
#[cfg(feature = "server")]
pub mod telemetry;
#[cfg(feature = "server")]
pub mod wake;

#[cfg(feature = "server")]
pub mod api;
#[cfg(feature = "server")]
pub mod http;
#[cfg(feature = "server")]
pub mod server;

#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod config;
