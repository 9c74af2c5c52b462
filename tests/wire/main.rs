//! What travels to callers that stay: the changes of a document and of
//! an operation, and web pages that speak gRPC-Web.

#[path = "../support/mod.rs"]
mod support;

mod documents;
mod operations;
mod web;
