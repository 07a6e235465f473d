//! The codec of gRPC frames: the one of prost, with buffers of a size that fits.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// First size of a call's buffer, which grows with its message. A report has about 600 bytes, an answer
/// fewer. tonic's 8 KiB, held by every call that waits for its ack, do not fit the processor's cache once
/// some hundred calls wait.
const FIRST_BYTES: usize = 1 << 10;
/// tonic's own default: how many bytes of a stream go into one piece.
const YIELD_BYTES: usize = 32 << 10;

/// The codec of the generated client and server.
#[derive(Debug, Clone, Default)]
pub(crate) struct FittingCodec<T, U>(PhantomData<(T, U)>);

fn settings() -> BufferSettings {
    BufferSettings::new(FIRST_BYTES, YIELD_BYTES)
}

impl<T, U> Codec for FittingCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(settings())
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(settings())
    }
}
