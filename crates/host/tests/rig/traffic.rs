//! Interrupt delays are real: packets from one card to another, in virtual time.
//!
//! The emulator counts instructions and skips idle time, so that figures are
//! those of the emulated card and not of how busy this machine is. The second
//! card sends multicast packets by the wire, on which the first one hears them;
//! nothing else is set up.

use crate::Tests;
use crate::background::BackgroundThread;
use crate::hold::Holding;
use crate::scene::{EPOCH, Scene, read, wait_for, write};
use crate::workload::{Push, now};
use lull_control::{ApplyOutcome, Coalescing, NicId, Plant, Setting};
use lull_host::drivers::ethtool;
use lull_host::sys::sched::{SchedState, set_scheduling};
use lull_measure::{Latency, Nanos};
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) const TESTS: Tests = &[
    ("traffic::packets_wait_as_long_as_a_held_delay_says", held),
    ("traffic::packets_wait_as_long_as_the_plants_knob_says", steered),
    ("traffic::a_delay_that_the_driver_rounds_is_nobody_elses_change", rounded),
];

const GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0x4c75, 0x6c6c);
const PORT: u16 = 9000;
const PACKETS: u32 = 1200;
/// About 3000 packets a second.
const BETWEEN: Duration = Duration::from_micros(333);
const BETWEEN_IN_STREAM: Nanos = Nanos::from_micros(250);

/// The effect of a delay on packets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effect {
    pub(crate) mean_us: f64,
    pub(crate) interrupts: u64,
}

/// Both cards up, with addresses.
pub(crate) fn connect() {
    for nic in ["eth0", "eth1"] {
        write(format!("/proc/sys/net/ipv6/conf/{nic}/accept_dad"), "0");
        // IFF_UP, IFF_BROADCAST and IFF_MULTICAST.
        write(format!("/sys/class/net/{nic}/flags"), "0x1003");
    }
    let carrier = |nic: &str| std::fs::read_to_string(format!("/sys/class/net/{nic}/carrier"));
    let has_wire = |nic: &&str| carrier(nic).is_ok_and(|text| text.trim() == "1");
    wait_for("a wire", || ["eth0", "eth1"].iter().all(has_wire));
    wait_for("an address", || {
        let found = read("/proc/net/if_inet6");
        ["eth0", "eth1"].iter().all(|nic| found.contains(nic))
    });
}

fn index(nic: &str) -> u32 {
    read(format!("/sys/class/net/{nic}/ifindex")).parse().unwrap()
}

/// Interrupts of a card so far, of all its vectors.
fn interrupts(nic: &str) -> u64 {
    let table = read("/proc/interrupts");
    let lines = table.lines().filter(|line| line.contains(nic));
    let count = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    lines.filter_map(count).sum()
}

/// The first card's end.
fn listen(time_max: Duration) -> UdpSocket {
    let hears = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
    hears.join_multicast_v6(&GROUP, index("eth0")).unwrap();
    hears.set_read_timeout(Some(time_max)).unwrap();
    hears
}

/// The second card's end, and whereto it sends.
fn speak() -> (UdpSocket, SocketAddrV6) {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    socket.set_multicast_loop_v6(false).unwrap();
    (socket, SocketAddrV6::new(GROUP, PORT, 0, index("eth1")))
}

/// Sends packets with the time in them, and hears them.
pub(crate) fn effect() -> Effect {
    let hears = listen(Duration::from_secs(2));
    let (begun, before) = (Instant::now(), interrupts("eth0"));
    let sender = std::thread::spawn(move || send(begun));
    let (mut sum_us, mut count, mut packet) = (0.0, 0, [0; 8]);
    while count < PACKETS && hears.recv(&mut packet).is_ok() {
        let sent = Duration::from_nanos(u64::from_ne_bytes(packet));
        sum_us += (begun.elapsed() - sent).as_secs_f64() * 1e6;
        count += 1;
    }
    sender.join().unwrap();
    // A ring that was full for a moment may have lost a few.
    assert!(count > PACKETS * 9 / 10, "{count} of {PACKETS} packets came");
    Effect { mean_us: sum_us / f64::from(count), interrupts: interrupts("eth0") - before }
}

fn send(begun: Instant) {
    let (socket, to) = speak();
    for number in 0..PACKETS {
        let due = BETWEEN * number;
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        let now = begun.elapsed().as_nanos() as u64;
        socket.send_to(&now.to_ne_bytes(), to).unwrap();
    }
}

/// Goes before an agent that works on the same core: what a packet waits for shall
/// be the card.
fn go_first() {
    const ROUND_ROBIN: u32 = 2;
    let first = SchedState { policy: ROUND_ROBIN, rt_priority: 10, nice: 0 };
    set_scheduling(0, first).unwrap();
}

/// Packets with their number and the time in them, until it is dropped.
pub(crate) struct Stream {
    _sender: BackgroundThread<()>,
}

impl Stream {
    pub(crate) fn start() -> Self {
        let sender = BackgroundThread::start(|going| {
            go_first();
            let ((socket, to), begun) = (speak(), now());
            for number in (0u64..).take_while(|_| going.is_on()) {
                let due = begun + BETWEEN_IN_STREAM * number;
                std::thread::sleep(Duration::from_nanos(due.0.saturating_sub(now().0)));
                let packet = [number.to_ne_bytes(), now().0.to_ne_bytes()].concat();
                socket.send_to(&packet, to).unwrap();
            }
        });
        Self { _sender: sender }
    }
}

/// The role of an app that hears a stream and pushes how long its packets took.
pub(crate) fn hear(socket: &Path, app: &str) -> ! {
    go_first();
    let (hears, mut push) = (listen(Duration::from_millis(20)), Push::new(socket, app));
    let (mut last, mut due, mut histogram) = (None::<u64>, 0, Latency::default());
    let mut packet = [[0; 8]; 2];
    loop {
        if hears.recv(packet.as_flattened_mut()).is_ok() {
            let [number, sent] = packet.map(u64::from_ne_bytes);
            histogram.record(now().saturating_sub(Nanos(sent)));
            // Numbers missing between two packets were lost in the ring.
            due += last.and_then(|last| number.checked_sub(last)).unwrap_or(1);
            last = Some(number);
        }
        if push.is_due() {
            push.window(std::mem::take(&mut due), std::mem::take(&mut histogram));
        }
    }
}

fn held() {
    connect();
    let before = ethtool::get("eth0").unwrap();
    let effects = [200, 1000, 4000, 10_000].map(|us| {
        let holding = Holding::start(&[&format!("coalescing=eth0:rx-usecs:{us}")]);
        // The driver keeps interrupts per second, of which there are whole ones.
        let kept = f64::from(ethtool::get("eth0").unwrap().rx_us.unwrap());
        assert!((kept / f64::from(us) - 1.0).abs() < 0.02, "{us} reads back as {kept}");
        let effect = effect();
        assert_eq!(holding.end().done, 1);
        println!("rx-usecs {us}: {effect:?}");
        (us, effect)
    });
    assert_eq!(ethtool::get("eth0").unwrap(), before);
    for (us, effect) in effects {
        // At most the delay and what the emulated machine itself takes.
        assert!(effect.mean_us < f64::from(us) * 1.5 + 1500.0, "{us}: {effect:?}");
    }
    for pair in effects.windows(2) {
        let [(_, short), (_, long)] = pair else { unreachable!() };
        assert!(long.mean_us > short.mean_us * 1.3, "{effects:?}");
        assert!(long.interrupts < short.interrupts, "{effects:?}");
    }
    let [(_, least), .., (_, most)] = effects;
    assert!(most.mean_us > 2000.0 && most.interrupts * 4 < least.interrupts, "{effects:?}");
}

fn steered() {
    connect();
    let before = ethtool::get("eth0").unwrap();
    let mut scene = Scene::new();
    let mut at = |us: u64| {
        let wanted = Setting::Coalescing(NicId(0), Coalescing::Delay(Nanos::from_micros(us)));
        assert_eq!(scene.set(wanted).got, ApplyOutcome::Done);
        assert_eq!(ethtool::get("eth0").unwrap().rx_us.map(u64::from), Some(us));
        effect()
    };
    let (short, long) = (at(50), at(1000));
    println!("50 us: {short:?}, 1000 us: {long:?}");
    assert!(long.mean_us > short.mean_us * 1.5, "{short:?} {long:?}");
    assert!(long.interrupts * 2 < short.interrupts, "{short:?} {long:?}");
    drop(scene);
    assert_eq!(ethtool::get("eth0").unwrap(), before);
}

fn rounded() {
    connect();
    let before = ethtool::get("eth0").unwrap();
    let mut scene = Scene::new();
    let delay = |us: u64| Setting::Coalescing(NicId(0), Coalescing::Delay(Nanos::from_micros(us)));
    // The driver keeps a multiple of four interrupts per second: 1108 and not 1111.
    let ApplyOutcome::Clamped { to, .. } = scene.set(delay(900)).got else {
        panic!("900 us is not kept")
    };
    assert_eq!(to, delay(902));
    assert!(scene.plant.observe(EPOCH).unwrap().foreign.is_empty());
    assert_eq!(ethtool::get("eth0").unwrap().rx_us, Some(902));
    drop(scene);
    assert_eq!(ethtool::get("eth0").unwrap(), before);
}
