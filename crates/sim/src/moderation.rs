//! How drivers moderate interrupts: a fixed delay, or one that they adapt.
//!
//! Written from the drivers' rules as published (Linux, drivers/net/ethernet:
//! `ixgbe_update_itr` before and since 4.15, `e1000_update_itr` of e1000e).

use lull_measure::Nanos;
use serde::{Deserialize, Serialize};

/// How a driver moderates interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moderation {
    /// A fixed delay.
    Fixed(Nanos),
    /// ixgbe before Linux 4.15: three classes by bytes per microsecond.
    IxgbeClassic,
    /// ixgbe since Linux 4.15, at 10 Gb/s.
    Ixgbe,
    /// e1000e: three classes by packets and bytes of an interrupt, at 1 Gb/s.
    E1000e,
}

/// Longest and shortest delay of ixgbe since 4.15, in microseconds.
const IXGBE_MOST_US: u64 = 126;
const IXGBE_LEAST_US: u64 = 10;
/// One jiffy at 250 Hz: after a silence of this length ixgbe resets its state.
const JIFFY_NS: u64 = 4_000_000;

/// The delay of one vector and the state of its driver.
#[derive(Debug, Clone)]
pub(crate) struct Moderator {
    kind: Moderation,
    delay_ns: u64,
    class: Class,
    latency: bool,
    updated_ns: u64,
}

/// Classes of ixgbe before 4.15 and of e1000e.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Lowest,
    Low,
    Bulk,
}

/// Packets and bytes of one direction since the last interrupt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacketCounts {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl PacketCounts {
    /// No packets yet.
    pub(crate) const NONE: Self = Self { packets: 0, bytes: 0 };

    /// This many packets of a size.
    #[inline]
    pub(crate) fn add(&mut self, packets: u32, size: u32) {
        self.packets += u64::from(packets);
        self.bytes += u64::from(packets) * u64::from(size);
    }
}

impl Moderator {
    pub(crate) fn new(kind: Moderation) -> Self {
        let delay_us = match kind {
            Moderation::Fixed(_) => 0,
            Moderation::IxgbeClassic | Moderation::E1000e => 50,
            Moderation::Ixgbe => IXGBE_LEAST_US,
        };
        let fixed = if let Moderation::Fixed(delay) = kind { delay.0 } else { delay_us * 1000 };
        Self { kind, delay_ns: fixed, class: Class::Low, latency: true, updated_ns: 0 }
    }

    /// Least time between two interrupts.
    #[inline(always)]
    pub(crate) fn delay_ns(&self) -> u64 {
        self.delay_ns
    }

    /// Updates the delay at the end of polling, from the received and sent packets.
    #[inline]
    pub(crate) fn update(&mut self, now_ns: u64, rx: PacketCounts, tx: PacketCounts) {
        match self.kind {
            Moderation::Fixed(_) => {}
            Moderation::IxgbeClassic => self.classic(now_ns, rx, tx),
            Moderation::Ixgbe => self.ixgbe(now_ns, rx, tx),
            Moderation::E1000e => self.e1000e(rx, tx),
        }
        self.updated_ns = now_ns;
    }

    /// Bytes per microsecond since the last interrupt, in classes of 10 and 20.
    fn classic(&mut self, now_ns: u64, rx: PacketCounts, tx: PacketCounts) {
        let elapsed_us = ((now_ns - self.updated_ns) / 1000).max(1);
        let next = |class: Class, harvest: PacketCounts| {
            let rate = harvest.bytes / elapsed_us;
            match class {
                Class::Lowest if rate > 10 => Class::Low,
                Class::Low if rate > 20 => Class::Bulk,
                Class::Low if rate <= 10 => Class::Lowest,
                Class::Bulk if rate <= 20 => Class::Low,
                same => same,
            }
        };
        self.class = slower(next(self.class, rx), next(self.class, tx));
        let wanted_ns = match self.class {
            Class::Lowest => 10_000,
            Class::Low => 50_000,
            Class::Bulk => 125_000,
        };
        // Exponential smoothing of the delay as the driver does it.
        let (new, old) = (wanted_ns, self.delay_ns.max(1));
        self.delay_ns = 10 * new * old / (9 * new + old);
    }

    /// Each direction computes a delay; the vector uses the shorter one.
    fn ixgbe(&mut self, now_ns: u64, rx: PacketCounts, tx: PacketCounts) {
        if now_ns - self.updated_ns > JIFFY_NS {
            (self.delay_ns, self.latency) = (IXGBE_LEAST_US * 1000, true);
            return;
        }
        let current_us = self.delay_ns / 1000;
        let (rx, tx) = (
            ixgbe_direction_delay(rx, current_us, self.latency),
            ixgbe_direction_delay(tx, current_us, self.latency),
        );
        let (delay_us, latency) = if rx.0 <= tx.0 { rx } else { tx };
        (self.delay_ns, self.latency) = (delay_us * 1000, latency);
    }

    fn e1000e(&mut self, rx: PacketCounts, tx: PacketCounts) {
        self.class = slower(e1000e_class(self.class, rx), e1000e_class(self.class, tx));
        let per_s = match self.class {
            Class::Lowest => 70_000,
            Class::Low => 20_000,
            Class::Bulk => 4_000,
        };
        let now_per_s = 1_000_000_000 / self.delay_ns.max(1);
        // A rise is taken in steps, a fall at once.
        let next = if per_s > now_per_s { (now_per_s + per_s / 4).min(per_s) } else { per_s };
        self.delay_ns = 1_000_000_000 / next.max(1);
    }
}

fn slower(a: Class, b: Class) -> Class {
    match (a, b) {
        (Class::Bulk, _) | (_, Class::Bulk) => Class::Bulk,
        (Class::Low, _) | (_, Class::Low) => Class::Low,
        _ => Class::Lowest,
    }
}

/// Returns the delay of a direction, in microseconds, and whether it is in latency mode.
fn ixgbe_direction_delay(harvest: PacketCounts, current_us: u64, latency: bool) -> (u64, bool) {
    let PacketCounts { packets, bytes } = harvest;
    let longer = (current_us + 2).min(IXGBE_MOST_US);
    match packets {
        0 => (longer, latency),
        1..4 if bytes < 9000 => (ixgbe_by_size(bytes / packets, true), true),
        1..48 => (longer, latency),
        48..96 => (current_us, latency),
        96..256 => ((current_us / 2).max(IXGBE_LEAST_US), latency),
        _ => (ixgbe_by_size(bytes / packets, false), false),
    }
}

/// The delay at which packets of this size fill a share of the wire, at 10 Gb/s.
fn ixgbe_by_size(size: u64, latency: bool) -> u64 {
    let work = match size {
        0..=60 => 5120,
        61..=316 => 40 * size + 2720,
        317..=1084 => 15 * size + 11_452,
        1085..1968 => 5 * size + 22_420,
        _ => 32_256,
    };
    let work = if latency { work / 2 } else { work };
    2 * work.div_ceil(512)
}

fn e1000e_class(class: Class, harvest: PacketCounts) -> Class {
    let PacketCounts { packets, bytes } = harvest;
    if packets == 0 {
        return class;
    }
    let size = bytes / packets;
    match class {
        Class::Lowest if size > 8000 => Class::Bulk,
        Class::Lowest if packets < 5 && bytes > 512 => Class::Low,
        Class::Low if bytes > 10_000 => match () {
            () if size > 8000 || packets < 10 || size > 1200 => Class::Bulk,
            () if packets > 35 => Class::Lowest,
            () => Class::Low,
        },
        Class::Low if size > 2000 => Class::Bulk,
        Class::Low if packets <= 2 && bytes < 512 => Class::Lowest,
        Class::Bulk if bytes > 25_000 && packets > 35 => Class::Low,
        Class::Bulk if bytes < 6000 => Class::Low,
        same => same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn counts(packets: u64, bytes: u64) -> PacketCounts {
        PacketCounts { packets, bytes }
    }

    #[test]
    fn ixgbe_delays_by_size_are_those_of_the_driver() {
        // Bulk and latency, at 10 Gb/s, computed from the driver's table.
        for (size, bulk, latency) in
            [(64, 22, 12), (128, 32, 16), (316, 60, 30), (1000, 104, 52), (1968, 126, 64)]
        {
            let got = (ixgbe_by_size(size, false), ixgbe_by_size(size, true));
            assert_eq!(got, (bulk, latency), "{size} bytes");
        }
    }

    #[test]
    fn ixgbe_never_waits_longer_than_126_us() {
        let mut vector = Moderator::new(Moderation::Ixgbe);
        for turn in 1..200 {
            vector.update(turn * 100_000, counts(20, 20 * 120), counts(20, 20 * 300));
        }
        assert_eq!(vector.delay_ns(), 126_000);
        // A handful of small packets: the algorithm chooses low latency.
        vector.update(200 * 100_000, counts(1, 120), counts(1, 300));
        assert_eq!(vector.delay_ns(), 2 * ((40 * 120 + 2720) / 2u64).div_ceil(512) * 1000);
    }

    #[test]
    fn ixgbe_resets_after_a_jiffy_of_silence() {
        let mut vector = Moderator::new(Moderation::Ixgbe);
        for turn in 1..50 {
            vector.update(turn * 100_000, counts(20, 2000), counts(20, 2000));
        }
        vector.update(50 * 100_000 + 2 * JIFFY_NS, counts(20, 2000), counts(20, 2000));
        assert_eq!(vector.delay_ns(), 10_000);
    }

    #[test]
    fn classic_ixgbe_climbs_to_bulk_under_load_and_back() {
        let mut vector = Moderator::new(Moderation::IxgbeClassic);
        for turn in 1..100 {
            vector.update(turn * 100_000, counts(3, 30 * 100), counts(0, 0));
        }
        assert_eq!(vector.class, Class::Bulk);
        assert!((120_000..=125_000).contains(&vector.delay_ns()), "{}", vector.delay_ns());
        for turn in 100..200 {
            vector.update(turn * 100_000, counts(1, 100), counts(0, 0));
        }
        assert_eq!(vector.class, Class::Lowest);
        assert!(vector.delay_ns() < 15_000, "{}", vector.delay_ns());
    }

    #[test]
    fn e1000e_classes_follow_packets_and_bytes() {
        use Class::*;
        for (class, packets, bytes, next) in [
            (Lowest, 1, 9000, Bulk),
            (Lowest, 2, 1200, Low),
            (Low, 2, 120, Lowest),
            (Low, 5, 12_000, Bulk),
            (Low, 40, 20_000, Lowest),
            (Bulk, 40, 30_000, Low),
            (Bulk, 3, 500, Low),
            (Bulk, 10, 10_000, Bulk),
        ] {
            let got = e1000e_class(class, counts(packets, bytes));
            assert_eq!(got, next, "{class:?} {packets} {bytes}");
        }
    }

    #[test]
    fn a_fixed_delay_stays() {
        let mut vector = Moderator::new(Moderation::Fixed(Nanos::from_micros(200)));
        vector.update(1_000_000, counts(300, 90_000), counts(0, 0));
        assert_eq!(vector.delay_ns(), 200_000);
    }
}
