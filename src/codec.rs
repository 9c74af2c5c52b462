//! Messages in small buffers.
//!
//! What must stay true: bytes are prost's own. tonic allocates a buffer for each direction of each
//! call before anything is known of it, 8 KiB by default, and a stream keeps its own for as long as it
//! is open: for an idle one that would be a sixth of all it costs. Buffers grow to what a message
//! needs.

use std::marker::PhantomData;

use tonic::codec::{BufferSettings, Codec};
use tonic_prost::ProstCodec;

/// At the beginning, in bytes: heartbeats, acks and ordinary submits fit.
const BUFFER_BYTES: usize = 512;
/// What is gathered before it is handed on, in bytes; as tonic's own.
const YIELD_BYTES: usize = 32 * 1024;

/// prost's codec with small buffers; `T` goes out, `U` comes in.
#[derive(Debug)]
pub struct SmallBuffers<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallBuffers<T, U> {
    fn default() -> Self {
        SmallBuffers(PhantomData)
    }
}

impl<T, U> Codec for SmallBuffers<T, U>
where
    T: prost::Message + Send + 'static,
    U: prost::Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }
}
