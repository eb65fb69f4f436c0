//! Random streams: one generator for each purpose, source and replication.
//!
//! The four state words of a xoshiro256++ generator are the first outputs of
//! SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
//! generators, OOPSLA 2014) started at a mix of seed, replication, purpose and
//! index. Streams therefore do not depend on the order in which they are made,
//! on the number of other apps, or on the thread that uses them, and two
//! policies that run the same replication meet the same requests.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

/// The generator of all simulated randomness.
pub(crate) type Stream = Xoshiro256PlusPlus;

/// The purpose of a random stream.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StreamPurpose {
    /// Gaps between arrivals and think times of an app.
    Arrivals = 1,
    /// Work of an app's requests.
    Work = 2,
    /// Choices and repetitions on an app's path.
    Path = 3,
    /// Choice of a tier's server.
    Route = 4,
    /// Lengths of an app's random phases.
    Phases = 5,
    /// Decisions of a plant's policy.
    Policy = 6,
    /// Profiles that dispatchers are built from.
    Profile = 7,
    /// Order of service at a device.
    Device = 8,
    /// Delays of an app's requests outside the cores.
    Delay = 9,
    /// Work of an app's clients.
    Client = 10,
    /// The draw of waking threads that take a core at once.
    Wakeups = 11,
}

/// One replication of an experiment: the name of all its random streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replication {
    /// The seed of the experiment, chosen by the user.
    pub seed: u64,
    /// Number of the replication, from 0.
    pub number: u64,
}

/// Length of one run, in requests or in simulated time: a warm-up that is not
/// counted, then the part that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLength<T> {
    /// The warm-up.
    pub warmup: T,
    /// The counted part.
    pub counted: T,
}

impl Replication {
    /// Returns the stream that source `index` uses for `purpose`.
    pub(crate) fn stream(self, purpose: StreamPurpose, index: usize) -> Stream {
        let source = (purpose as u64) << 32 | index as u64;
        let mut state = [self.number, source].into_iter().fold(self.seed, |state, part| {
            let mut next = state ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93);
            split_mix(&mut next)
        });
        let mut bytes = [0; 32];
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&split_mix(&mut state).to_le_bytes());
        }
        Stream::from_seed(bytes)
    }
}

/// One step of SplitMix64.
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn streams_differ_in_every_part_of_their_name() {
        let mut firsts = BTreeSet::new();
        for seed in 0..4 {
            for replication in 0..4 {
                for index in 0..4 {
                    for purpose in [
                        StreamPurpose::Arrivals,
                        StreamPurpose::Work,
                        StreamPurpose::Path,
                        StreamPurpose::Route,
                    ] {
                        let mut stream =
                            Replication { seed, number: replication }.stream(purpose, index);
                        firsts.insert(stream.next_u64());
                    }
                }
            }
        }
        assert_eq!(firsts.len(), 256);
    }

    #[test]
    fn a_stream_is_the_same_each_time() {
        let make = || Replication { seed: 7, number: 3 }.stream(StreamPurpose::Work, 2).next_u64();
        assert_eq!(make(), make());
    }
}
