//! A compact encoding of sampled requests: a few bytes for each request instead of fifty.
//!
//! Each request is three LEB128 numbers: the difference of its due time to that of the previous
//! request in nanoseconds (zigzag, because answers arrive out of order), the wait in the client,
//! and the rest of the latency.

use lull_measure::{Nanos, SampledRequest};

/// Encodes requests.
pub(super) fn pack(requests: &[SampledRequest]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(requests.len() * 10);
    let mut before = 0_u64;
    for request in requests {
        let step = request.due_ns.0.wrapping_sub(before).cast_signed();
        before = request.due_ns.0;
        put(&mut bytes, ((step << 1) ^ (step >> 63)).cast_unsigned());
        put(&mut bytes, request.wait_ns.0);
        put(&mut bytes, request.latency_ns.0.wrapping_sub(request.wait_ns.0));
    }
    bytes
}

/// Decodes the bytes of `pack`; `None` if they are invalid.
pub fn unpack(mut bytes: &[u8]) -> Option<Vec<SampledRequest>> {
    let mut requests = Vec::new();
    let mut before = 0_u64;
    while !bytes.is_empty() {
        let zigzag = take(&mut bytes)?;
        let step = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
        before = before.wrapping_add(step.cast_unsigned());
        let wait = take(&mut bytes)?;
        let rest = take(&mut bytes)?;
        requests.push(SampledRequest {
            due_ns: Nanos(before),
            wait_ns: Nanos(wait),
            latency_ns: Nanos(wait.wrapping_add(rest)),
        });
    }
    Some(requests)
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(due: u64, wait: u64, latency: u64) -> SampledRequest {
        SampledRequest { due_ns: Nanos(due), wait_ns: Nanos(wait), latency_ns: Nanos(latency) }
    }

    #[test]
    fn requests_come_back_as_they_were() {
        let all = vec![
            request(5_000_000_000, 0, 61_000),
            request(5_060_000_000, 12, 300_000),
            request(4_990_000_000, 70_000_000, 75_000_000),
            request(0, u64::MAX, 0),
            request(u64::MAX, 0, u64::MAX),
        ];
        assert_eq!(unpack(&pack(&all)), Some(all));
        assert_eq!(unpack(&[]), Some(Vec::new()));
    }

    #[test]
    fn a_usual_request_takes_less_than_ten_bytes() {
        let each = |number: u64| request(60_000_000 * number, 0, 150_000);
        let packed = pack(&(1..=100).map(each).collect::<Vec<_>>());
        assert!(packed.len() < 1_000, "{}", packed.len());
    }

    #[test]
    fn bytes_that_are_cut_off_or_never_end_are_no_requests() {
        let whole = pack(&[request(7_000_000, 5, 900)]);
        assert_eq!(unpack(&whole[..whole.len() - 1]), None);
        assert_eq!(unpack(&[0xff; 40]), None);
    }
}
