//! The rules of the product, as pure functions over rows that were loaded and locked together.
//!
//! In reading order: [`ids`], [`spans`] and [`json`] parse; [`intent`] binds an id to what it means;
//! [`operation`], [`document`], [`lock`], [`delivery`], [`inbox`] and [`audit`] are the rows;
//! [`policy`] holds the clocks and limits, and [`settings`] those of an account's own; [`world`] is
//! what a batch sees; [`command`] is what can be asked; [`refusal`], [`standing`] and [`recovery`]
//! are how "no", "not known" and "what next" are said, with the sentences of [`advice`]; [`closing`] is
//! how old ids lose the way in (`floor`: by hand); [`filter`] is what a list shows; [`verify`] is what
//! rows must say of one another; [`token`] seals positions that callers hand back; [`decide`] is
//! the way in. [`record`] packs what no statement looks into.
//!
//! Not here, ever: I/O, a clock, randomness, SQL, protobuf messages of the API, `async`.

pub mod advice;
pub mod attempts;
pub mod audit;
mod cancel;
pub mod closing;
pub mod command;
pub mod consume;
pub mod decide;
mod deliver;
pub mod delivery;
pub mod document;
pub mod epoch;
mod erase;
pub mod failover;
pub mod filter;
mod finish;
mod floor;
pub mod ids;
pub mod inbox;
mod inboxes;
pub mod intent;
pub mod json;
pub mod lock;
pub mod operation;
mod patch;
mod policies;
pub mod policy;
pub mod record;
pub mod recovery;
pub mod redrive;
pub mod refusal;
mod release;
pub mod retire;
#[cfg(test)]
pub(crate) mod sample;
mod seal;
pub mod settings;
pub mod spans;
pub mod standing;
mod submit;
mod sweep;
pub mod token;
pub mod verify;
pub mod world;
