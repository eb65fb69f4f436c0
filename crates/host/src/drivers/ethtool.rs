//! Interrupt coalescing of a network interface by ethtool netlink
//! (Documentation/networking/ethtool-netlink.rst, since Linux 5.6).
//!
//! Seen on e1000e (6.1 to 7.2): 0, 1, 3, 4 and 10 to 10000 us are taken,
//! others refused; a parameter that the driver lacks is refused by name. Seen on
//! igb (6.12): the same are taken, and of those above 8191 us the card keeps the
//! lower 13 bits.

use crate::sys::netlink::GenericNetlink;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// The coalescing parameters; `None` is left alone, or not supported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalescing {
    /// Delay of an interrupt after a packet was received, in microseconds.
    pub rx_us: Option<u32>,
    /// Delay of an interrupt after a packet was sent, in microseconds.
    pub tx_us: Option<u32>,
    /// Whether the driver adapts the receive delay itself.
    pub adaptive_rx: Option<bool>,
    /// Whether the driver adapts the send delay itself.
    pub adaptive_tx: Option<bool>,
}

/// Why coalescing could not be read or set.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} coalescing of {nic}: {source}{}", parenthesize(.kernel_message))]
pub struct EthtoolError {
    /// The interface.
    pub nic: String,
    doing: &'static str,
    /// The error of the kernel.
    pub source: io::Error,
    /// The kernel's message (extended acknowledgement), where it sends one.
    kernel_message: Option<String>,
}

fn parenthesize(words: &Option<String>) -> String {
    words.as_ref().map_or_else(String::new, |words| format!(" ({words})"))
}

/// The kernel's refusal of a message.
struct Refusal {
    source: io::Error,
    kernel_message: Option<String>,
}

impl From<io::Error> for Refusal {
    fn from(source: io::Error) -> Self {
        Self { source, kernel_message: None }
    }
}

/// Numbers of linux/netlink.h, linux/genetlink.h and linux/ethtool_netlink.h.
mod number {
    pub(super) const NLMSG_ERROR: u16 = 2;
    pub(super) const REQUEST: u16 = 1;
    pub(super) const ACK: u16 = 4;
    pub(super) const ACK_TLVS: u16 = 0x200;
    pub(super) const CAPPED: u16 = 0x100;
    pub(super) const NESTED: u16 = 0x8000;
    pub(super) const ERROR_TEXT: u16 = 1;
    pub(super) const CTRL: u16 = 0x10;
    pub(super) const GET_FAMILY: u8 = 3;
    pub(super) const FAMILY_ID: u16 = 1;
    pub(super) const FAMILY_NAME: u16 = 2;
    pub(super) const COALESCE_GET: u8 = 19;
    pub(super) const COALESCE_SET: u8 = 20;
    pub(super) const HEADER: u16 = 1;
    pub(super) const DEV_NAME: u16 = 2;
    pub(super) const RX_USECS: u16 = 2;
    pub(super) const TX_USECS: u16 = 6;
    pub(super) const ADAPTIVE_RX: u16 = 11;
    pub(super) const ADAPTIVE_TX: u16 = 12;
}

/// Drivers that say yes to longer delays than their cards can wait, in microseconds
/// (Intel 82576 data sheet, section 8.8.12: 13 bits).
const CUT_OFF: [(&str, u32); 1] = [("igb", 8191)];

/// Bytes of a netlink header, and with the generic one behind it.
const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 20;

/// Returns the parameters of an interface.
///
/// # Errors
/// `ENODEV` if there is no such interface, `EOPNOTSUPP` if it coalesces nothing.
pub fn get(nic: &str) -> Result<Coalescing, EthtoolError> {
    let read = || -> Result<Coalescing, Refusal> {
        let ethtool = Ethtool::open()?;
        let answer = ethtool.ask(number::COALESCE_GET, &header(nic))?;
        Ok(parse(answer.get(GENERIC_BYTES..).unwrap_or_default()))
    };
    read().map_err(|refusal| failed(nic, "read", refusal))
}

/// Sets the parameters that are `Some`; the others stay.
///
/// # Errors
/// `EINVAL` or `EOPNOTSUPP` with the driver's words; `ENODEV` if it is gone.
pub fn set(nic: &str, wanted: &Coalescing) -> Result<(), EthtoolError> {
    let write = || -> Result<(), Refusal> {
        let mut attributes = header(nic);
        wanted.encode(&mut attributes);
        Ethtool::open()?.ask(number::COALESCE_SET, &attributes).map(drop)
    };
    write().map_err(|refusal| failed(nic, "set", refusal))
}

/// Refuses what the driver would take and the card would not do. An old value is put
/// back without it, whatever it was.
///
/// # Errors
/// With the longest delay that the card knows.
pub(crate) fn refuse_cut_off(nic: &str, wanted: &Coalescing) -> Result<(), EthtoolError> {
    // Always the running kernel's sysfs, because netlink reaches that kernel.
    let driver = std::fs::read_link(format!("/sys/class/net/{nic}/device/driver"));
    let driver = driver.unwrap_or_default();
    let name = driver.file_name().unwrap_or_default().to_string_lossy();
    cut_off(&name, wanted).map_err(|why| failed(nic, "set", io::Error::other(why).into()))
}

fn cut_off(driver: &str, wanted: &Coalescing) -> Result<(), String> {
    let Some((_, most)) = CUT_OFF.iter().find(|(name, _)| *name == driver) else { return Ok(()) };
    match [wanted.rx_us, wanted.tx_us].into_iter().flatten().find(|us| us > most) {
        Some(us) => Err(format!(
            "{driver} accepts {us} us, but its cards then wait for {} us: they count to {most} us, \
             so set {most} us or less",
            us % (most + 1)
        )),
        None => Ok(()),
    }
}

fn failed(
    nic: &str,
    doing: &'static str,
    Refusal { source, kernel_message }: Refusal,
) -> EthtoolError {
    EthtoolError { nic: nic.to_owned(), doing, source, kernel_message }
}

/// The interfaces that exist, `lo` left out.
pub(crate) fn interfaces(sys: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(sys.join("class/net")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name != "lo").collect();
    names.sort();
    names
}

impl Coalescing {
    fn encode(&self, out: &mut Vec<u8>) {
        for (kind, value) in [(number::RX_USECS, self.rx_us), (number::TX_USECS, self.tx_us)] {
            if let Some(us) = value {
                attribute(out, kind, &us.to_ne_bytes());
            }
        }
        let adaptive =
            [(number::ADAPTIVE_RX, self.adaptive_rx), (number::ADAPTIVE_TX, self.adaptive_tx)];
        for (kind, value) in adaptive {
            if let Some(on) = value {
                attribute(out, kind, &[u8::from(on)]);
            }
        }
    }

    /// The part of `self` that is otherwise in `now`.
    pub(crate) fn unlike(&self, now: &Self) -> Self {
        Self {
            rx_us: self.rx_us.filter(|us| now.rx_us != Some(*us)),
            tx_us: self.tx_us.filter(|us| now.tx_us != Some(*us)),
            adaptive_rx: self.adaptive_rx.filter(|on| now.adaptive_rx != Some(*on)),
            adaptive_tx: self.adaptive_tx.filter(|on| now.adaptive_tx != Some(*on)),
        }
    }

    /// The part of `self` that `other` names.
    pub(crate) fn only(&self, other: &Self) -> Self {
        Self {
            rx_us: self.rx_us.filter(|_| other.rx_us.is_some()),
            tx_us: self.tx_us.filter(|_| other.tx_us.is_some()),
            adaptive_rx: self.adaptive_rx.filter(|_| other.adaptive_rx.is_some()),
            adaptive_tx: self.adaptive_tx.filter(|_| other.adaptive_tx.is_some()),
        }
    }

    /// The part of `self` that one of these texts names, or all of it without texts. A delay
    /// changes by itself while the driver adapts it, so it goes with its adaptation.
    pub(crate) fn of_ours(&self, ours: &[String]) -> Self {
        let is_ours = |one: Self| ours.is_empty() || one.texts().iter().any(|it| ours.contains(it));
        let is_adapted = |one: Self, on: Option<bool>| on == Some(true) && is_ours(one);
        let none = Self::default();
        let rx = Self { adaptive_rx: self.adaptive_rx, ..none };
        let tx = Self { adaptive_tx: self.adaptive_tx, ..none };
        let has_rx = is_ours(Self { rx_us: self.rx_us, ..none });
        let has_tx = is_ours(Self { tx_us: self.tx_us, ..none });
        Self {
            rx_us: self.rx_us.filter(|_| has_rx || is_adapted(rx, self.adaptive_rx)),
            tx_us: self.tx_us.filter(|_| has_tx || is_adapted(tx, self.adaptive_tx)),
            adaptive_rx: self.adaptive_rx.filter(|_| is_ours(rx)),
            adaptive_tx: self.adaptive_tx.filter(|_| is_ours(tx)),
        }
    }

    /// Its parameters, a text each.
    pub(crate) fn texts(&self) -> Vec<String> {
        let us = |name: &str, value: Option<u32>| value.map(|us| format!("{name} {us} us"));
        let on = |name: &str, value: Option<bool>| {
            value.map(|on| format!("{name} {}", if on { "on" } else { "off" }))
        };
        let parts = [
            us("rx-usecs", self.rx_us),
            us("tx-usecs", self.tx_us),
            on("adaptive-rx", self.adaptive_rx),
            on("adaptive-tx", self.adaptive_tx),
        ];
        parts.into_iter().flatten().collect()
    }
}

impl fmt::Display for Coalescing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.texts();
        f.write_str(&if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") })
    }
}

/// The ethtool family of this kernel.
struct Ethtool {
    netlink: GenericNetlink,
    family: u16,
}

impl Ethtool {
    fn open() -> Result<Self, Refusal> {
        let netlink = GenericNetlink::open()?;
        let mut name = Vec::new();
        attribute(&mut name, number::FAMILY_NAME, b"ethtool\0");
        let answer = ask(&netlink, number::CTRL, number::GET_FAMILY, &name)?;
        let family = attributes(answer.get(GENERIC_BYTES..).unwrap_or_default())
            .find(|(kind, _)| *kind == number::FAMILY_ID)
            .and_then(|(_, value)| value.first_chunk().map(|two| u16::from_ne_bytes(*two)));
        let unknown = || io::Error::other("the kernel knows no ethtool netlink (needs 5.6)");
        Ok(Self { family: family.ok_or_else(unknown)?, netlink })
    }

    fn ask(&self, command: u8, attributes: &[u8]) -> Result<Vec<u8>, Refusal> {
        ask(&self.netlink, self.family, command, attributes)
    }
}

/// Sends a request and returns the replies that arrive before the acknowledgement.
fn ask(
    netlink: &GenericNetlink,
    family: u16,
    command: u8,
    attributes: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let mut datagram = netlink.ask(&message(family, command, attributes))?;
    let mut answer = Vec::new();
    loop {
        let mut rest = datagram.as_slice();
        while let Some((one, next)) = split(rest) {
            match acknowledgement(one) {
                Some(Ok(())) => return Ok(answer),
                Some(Err(refusal)) => return Err(refusal),
                None => answer = one.to_vec(),
            }
            rest = next;
        }
        datagram = netlink.next()?;
    }
}

/// Splits a datagram into its first message and the rest.
fn split(datagram: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_ne_bytes(*datagram.first_chunk()?) as usize;
    let one = datagram.get(..length).filter(|one| one.len() >= HEADER_BYTES)?;
    Some((one, datagram.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// `None` for a message that is not an acknowledgement.
fn acknowledgement(one: &[u8]) -> Option<Result<(), Refusal>> {
    let field = |at: usize| one.get(at..)?.first_chunk().map(|two| u16::from_ne_bytes(*two));
    let (kind, flags) = (field(4)?, field(6)?);
    if kind != number::NLMSG_ERROR {
        return None;
    }
    let code = i32::from_ne_bytes(*one.get(HEADER_BYTES..)?.first_chunk()?);
    if code == 0 {
        return Some(Ok(()));
    }
    // A number that is not an error of the kernel's must not panic.
    let source = io::Error::from_raw_os_error(code.wrapping_neg());
    // The refused message follows the code: its header alone if it is capped.
    let refused = one.get(HEADER_BYTES + 4..)?;
    let echoed = match flags & number::CAPPED {
        0 => u32::from_ne_bytes(*refused.first_chunk()?) as usize,
        _ => HEADER_BYTES,
    };
    let words = refused.get(echoed.next_multiple_of(4)..).filter(|_| flags & number::ACK_TLVS != 0);
    let kernel_message = attributes(words.unwrap_or_default())
        .find(|(kind, _)| *kind == number::ERROR_TEXT)
        .map(|(_, text)| String::from_utf8_lossy(text).trim_end_matches('\0').to_owned());
    Some(Err(Refusal { source, kernel_message }))
}

fn message(family: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    let length = (GENERIC_BYTES + attributes.len()) as u32;
    let mut out = Vec::with_capacity(length as usize);
    out.extend(length.to_ne_bytes());
    out.extend(family.to_ne_bytes());
    out.extend((number::REQUEST | number::ACK).to_ne_bytes());
    // Sequence and port: one question at a time on a socket of its own.
    out.extend([0; 8]);
    out.extend([command, 1, 0, 0]);
    out.extend(attributes);
    out
}

fn header(nic: &str) -> Vec<u8> {
    let mut name = Vec::new();
    attribute(&mut name, number::DEV_NAME, &[nic.as_bytes(), b"\0"].concat());
    let mut out = Vec::new();
    attribute(&mut out, number::HEADER | number::NESTED, &name);
    out
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend(((4 + value.len()) as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Kind and value of each attribute; stops at the first that does not fit.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?) & !number::NESTED;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn parse(bytes: &[u8]) -> Coalescing {
    let mut found = Coalescing::default();
    for (kind, value) in attributes(bytes) {
        let number = || value.first_chunk().map(|four| u32::from_ne_bytes(*four));
        let flag = || value.first().map(|byte| *byte != 0);
        match kind {
            number::RX_USECS => found.rx_us = number(),
            number::TX_USECS => found.tx_us = number(),
            number::ADAPTIVE_RX => found.adaptive_rx = flag(),
            number::ADAPTIVE_TX => found.adaptive_tx = flag(),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_delay_that_the_card_would_cut_off_is_refused_with_the_longest() {
        let rx = |us| Coalescing { rx_us: Some(us), ..Coalescing::default() };
        assert_eq!(cut_off("igb", &rx(8191)), Ok(()));
        assert_eq!(cut_off("e1000e", &rx(10_000)), Ok(()));
        let why = cut_off("igb", &rx(10_000)).unwrap_err();
        assert!(why.contains("1808") && why.contains("8191"), "{why}");
        let tx = Coalescing { tx_us: Some(9000), ..Coalescing::default() };
        assert!(cut_off("igb", &tx).is_err());
    }

    #[test]
    fn what_is_encoded_is_parsed() {
        let all = Coalescing {
            rx_us: Some(200),
            tx_us: Some(0),
            adaptive_rx: Some(true),
            adaptive_tx: Some(false),
        };
        for wanted in [all, Coalescing { rx_us: Some(7), ..Coalescing::default() }] {
            let mut bytes = header("eth0");
            wanted.encode(&mut bytes);
            assert_eq!(parse(&bytes), wanted);
            assert_eq!(wanted.unlike(&wanted), Coalescing::default());
            assert_eq!(wanted.unlike(&Coalescing::default()), wanted);
            assert_eq!(all.only(&wanted).tx_us, wanted.tx_us);
        }
        assert_eq!(
            all.to_string(),
            "rx-usecs 200 us, tx-usecs 0 us, adaptive-rx on, adaptive-tx off"
        );
    }

    #[test]
    fn a_parameter_is_lulls_while_it_has_lulls_value_or_the_driver_adapts_it_for_lull() {
        let ours: Vec<String> =
            ["rx-usecs 200 us", "adaptive-rx off", "adaptive-tx on"].map(str::to_owned).to_vec();
        let now = Coalescing {
            rx_us: Some(200),
            tx_us: Some(37),
            adaptive_rx: Some(false),
            adaptive_tx: Some(true),
        };
        assert_eq!(now.of_ours(&ours), now);
        let others = Coalescing { rx_us: Some(70), adaptive_tx: Some(false), ..now };
        let lulls = Coalescing { adaptive_rx: Some(false), ..Coalescing::default() };
        assert_eq!(others.of_ours(&ours), lulls);
        assert_eq!(others.of_ours(&[]), others, "a former version saved no texts");
    }

    #[test]
    fn a_refusal_is_the_number_and_the_drivers_words() {
        let mut one = vec![0; HEADER_BYTES];
        one[4..6].copy_from_slice(&number::NLMSG_ERROR.to_ne_bytes());
        one[6..8].copy_from_slice(&(number::CAPPED | number::ACK_TLVS).to_ne_bytes());
        one.extend((-libc::EINVAL).to_ne_bytes());
        one.extend([0; HEADER_BYTES]);
        attribute(&mut one, number::ERROR_TEXT, b"cannot modify an unsupported parameter\0");
        let Some(Err(refusal)) = acknowledgement(&one) else { panic!() };
        let error = failed("eth0", "set", refusal).to_string();
        assert!(
            error.contains("Invalid argument") && error.ends_with("unsupported parameter)"),
            "{error}"
        );
    }

    /// Real netlink: every kernel has the family, and no kernel the interface.
    #[test]
    fn an_interface_that_is_gone_is_an_error_that_names_it() {
        for error in [
            get("lull-none"),
            set("lull-none", &Coalescing::default()).map(|()| Coalescing::default()),
        ] {
            let error = error.unwrap_err();
            assert!(error.to_string().contains("coalescing of lull-none"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_makes_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = acknowledgement(&bytes);
            let _ = split(&bytes);
        }
    }
}
