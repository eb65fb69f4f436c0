//! An agent that accepts any bytes from its front end: the entry of the fuzz target `frontend`.

use super::frames::{FrameError, Frames, count_taken, encode};
use super::message::{FROM_MAX, FromFrontend, Ordered, Report, TEXT_MAX, shorten};
use crate::live::Command;

/// Splits a stream of bytes that comes in pieces of this length into messages, and checks each
/// as the agent does. Returns the number of messages that passed.
///
/// # Panics
/// If a message passes that the agent must not believe.
#[doc(hidden)]
pub fn take_messages(bytes: &[u8], piece: usize, apps: &[String]) -> usize {
    count_taken(bytes, piece, FROM_MAX, |message| take(message, apps))
}

/// Returns whether the message counts.
fn take(message: FromFrontend, apps: &[String]) -> bool {
    match message {
        FromFrontend::Pushed { report, .. } => take_report(report, apps),
        FromFrontend::Notice(text) | FromFrontend::Number { number: Err(text), .. } => {
            assert!(shorten(text).len() <= TEXT_MAX);
            true
        }
        FromFrontend::Number { number: Ok(_), .. } => true,
        FromFrontend::Order { order, .. } => {
            let command = Command::from(order);
            assert_eq!(Command::from(Ordered::from(command.clone())), command);
            true
        }
        _ => true,
    }
}

/// A report that passes belongs to one of the apps, and stays the same when it is sent again.
fn take_report(report: Report, apps: &[String]) -> bool {
    let Ok(message) = report.check(apps) else { return false };
    let app = apps.iter().position(|name| name == message.app());
    let app = app.expect("a checked report is of an app") as u16;
    let mut bytes = Vec::new();
    let pushed = |report| FromFrontend::Pushed { client: 0, pid: None, report };
    match encode(&pushed(Report::new(app, &message)), FROM_MAX, &mut bytes) {
        // Numbers in few bytes may be in more when they are added up.
        Err(FrameError::TooLong { .. }) => return true,
        encoded => encoded.expect("a message can be encoded"),
    }
    let mut frames = Frames::new(FROM_MAX);
    frames.add(&bytes);
    let Ok(Some(FromFrontend::Pushed { report, .. })) = frames.next_message() else {
        panic!("{message:?} is not read as it was sent");
    };
    assert_eq!(report.check(apps).as_ref(), Ok(&message));
    true
}

/// Messages that a front end sends, each with its length: seeds of the fuzz target.
#[doc(hidden)]
pub fn sample_messages() -> Vec<u8> {
    let mut bytes = Vec::new();
    let window = lull_measure::push::LatencyWindow {
        app: "a".to_owned(),
        length_ns: lull_measure::Nanos::from_millis(100),
        histogram: [3, 5, 900].map(lull_measure::Nanos::from_micros).into_iter().collect(),
        ..Default::default()
    };
    let report = Report::new(0, &lull_measure::push::Message::Latency(Box::new(window)));
    for message in [
        FromFrontend::Ready(Vec::new()),
        FromFrontend::Pushed { client: 7, pid: Some(9), report },
        FromFrontend::Notice("a client was refused".to_owned()),
        FromFrontend::Order { number: 3, token: "00".repeat(16), order: Ordered::Pause },
        FromFrontend::Number { query: 1, generation: 0, number: Ok(Some(0.001)) },
        FromFrontend::Drained(1),
    ] {
        encode(&message, FROM_MAX, &mut bytes).expect("small messages fit");
    }
    bytes
}
