//! An agent that accepts any bytes from its watcher: the entry of the fuzz target `pods`.

use crate::cgroup::candidates;
use crate::message::{
    Bound, ContainerId, FROM_MAX, FromWatcher, PodOrder, Runtime, Service, TEXT_MAX, one_line,
};
use lull_agent::frontend::frames::{count_taken, encode};
use lull_control::CoreSet;
use std::path::{Component, Path};

/// Splits a stream of bytes that comes in pieces of this length into messages, and checks each as
/// an agent with this many templates does. Returns the number of messages that passed.
///
/// # Panics
/// If a message passes that the agent must not believe.
#[doc(hidden)]
pub fn take_messages(bytes: &[u8], piece: usize, templates: usize) -> usize {
    count_taken(bytes, piece, FROM_MAX, |message| take(message, templates))
}

/// Returns whether the message counts.
fn take(message: FromWatcher, templates: usize) -> bool {
    match message {
        FromWatcher::Pod(order) => take_order(&order, templates),
        FromWatcher::Lost(text) | FromWatcher::Notice(text) => {
            assert!(one_line(text).len() <= TEXT_MAX);
            true
        }
        _ => true,
    }
}

/// An order that passes is of a cgroup below that of all pods, and the same when it is sent again.
fn take_order(order: &PodOrder, templates: usize) -> bool {
    let Ok(objectives) = order.check(templates) else { return false };
    assert!(objectives.is_none_or(|all| !all.is_empty()));
    assert!(order.cpus.parse::<CoreSet>().is_ok(), "{}", order.cpus);
    for cgroup in candidates(order, Path::new("")) {
        let is_below = |top: &str| cgroup.starts_with(top) && cgroup != Path::new(top);
        assert!(is_below("kubepods.slice") || is_below("kubepods"), "{}", cgroup.display());
        let mut parts = cgroup.components();
        assert!(parts.all(|part| matches!(part, Component::Normal(_))), "{}", cgroup.display());
    }
    let bytes = postcard::to_allocvec(order).expect("an order can be encoded");
    assert_eq!(postcard::from_bytes(&bytes).as_ref(), Ok(order));
    true
}

/// Messages that a watcher sends, each with its length: seeds of the fuzz target.
#[doc(hidden)]
pub fn sample_messages() -> Vec<u8> {
    let order = PodOrder {
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
        uid: "1f0c-22".to_owned(),
        container_name: "web".to_owned(),
        workload: "web".to_owned(),
        otlp_service: Some("checkout".to_owned()),
        service: Service::Guaranteed,
        container: Some(ContainerId { runtime: Runtime::CriO, number: [7; 32] }),
        template: 0,
        objectives: vec![Bound::Tail { percent: 95.0, bound_ns: 4_000_000 }],
        may_be_exclusive: true,
        is_starting: false,
        cpus: "0-3,7".to_owned(),
    };
    let mut bytes = Vec::new();
    for message in [
        FromWatcher::Ready(Vec::new()),
        FromWatcher::Runtime(true),
        FromWatcher::Pod(Box::new(order)),
        FromWatcher::Synced,
        FromWatcher::Heard,
        FromWatcher::Lost("the API server cannot be reached".to_owned()),
        FromWatcher::Gone("1f0c-22".to_owned()),
    ] {
        encode(&message, FROM_MAX, &mut bytes).expect("small messages fit");
    }
    bytes
}
