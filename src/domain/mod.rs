//! The rules of the product, as pure functions over rows that were loaded and locked together.
//!
//! In reading order: [`ids`] and [`json`] parse; [`intent`] binds an id to what it means;
//! [`operation`], [`document`], [`lock`], [`delivery`], [`inbox`] and [`audit`] are the rows;
//! [`policy`] holds the clocks and limits; [`world`] is what a batch sees; [`command`] is what can
//! be asked; [`refusal`] and [`standing`] are how "no" and "not known" are said; [`token`] seals
//! positions that callers hand back; [`decide`] is the way in. [`record`] packs what no statement
//! looks into.
//!
//! Not here, ever: I/O, a clock, randomness, SQL, protobuf messages of the API, `async`.

pub mod audit;
mod cancel;
pub mod command;
pub mod consume;
pub mod decide;
mod deliver;
pub mod delivery;
pub mod document;
mod finish;
pub mod ids;
pub mod inbox;
pub mod intent;
pub mod json;
pub mod lock;
pub mod operation;
pub mod policy;
pub mod record;
pub mod refusal;
mod release;
pub mod standing;
mod submit;
mod sweep;
pub mod token;
pub mod world;
