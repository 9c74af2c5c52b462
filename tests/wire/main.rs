//! What travels to callers that stay: the changes of a document, and web pages that speak gRPC-Web.

#[path = "../support/mod.rs"]
mod support;

mod documents;
mod web;
