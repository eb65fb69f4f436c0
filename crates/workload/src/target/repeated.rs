//! A target whose requests are all the same.

use super::{Decoder, RequestKind, Target};
use crate::Generator;

/// The same request again and again.
#[derive(Debug, Clone)]
pub(super) struct Repeated {
    request: Vec<u8>,
    decoder: fn() -> Box<dyn Decoder>,
}

impl Repeated {
    /// Creates a target whose requests are these bytes, and whose replies `D` reads.
    pub(super) fn new<D: Decoder + Default + 'static>(request: Vec<u8>) -> Self {
        Self { request, decoder: || Box::<D>::default() }
    }
}

impl Target for Repeated {
    fn encode(&mut self, _: &mut Generator, out: &mut Vec<u8>) -> RequestKind {
        out.extend_from_slice(&self.request);
        RequestKind::Only
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        (self.decoder)()
    }
}
