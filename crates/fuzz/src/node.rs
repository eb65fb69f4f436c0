//! A node of Kubernetes: what its container runtime sends to the watcher of pods, and what a
//! watcher that was taken over sends to its agent.

use lull_fleet::{take_messages, take_runtime_bytes};

/// Templates for pods of the agent.
const TEMPLATES: usize = 2;

/// Bytes of a runtime behind the first one, which says how long the pieces are in which they
/// arrive. What they report does not depend on that.
pub(crate) fn nri(bytes: &[u8]) {
    let Some((piece, bytes)) = bytes.split_first() else { return };
    let whole = take_runtime_bytes(bytes, bytes.len());
    let pieces = take_runtime_bytes(bytes, usize::from(*piece));
    match &whole {
        Ok(_) => assert_eq!(pieces, whole),
        // The error may be another one, since what is before it is not read in one piece.
        Err(_) => assert!(pieces.is_err(), "{pieces:?}"),
    }
}

/// Bytes of a watcher. By the first byte, they come in pieces of some length, and either contain
/// the lengths of messages or are the contents of one.
pub(crate) fn pods(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let piece = usize::from(choice >> 1) * 16;
    if choice & 1 == 0 {
        take_messages(rest, piece, TEMPLATES);
        return;
    }
    let length = (rest.len() as u32).to_le_bytes();
    take_messages(&[&length[..], rest].concat(), piece, TEMPLATES);
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_fleet::sample_messages;
    use std::path::Path;

    #[test]
    fn the_seeds_of_a_watcher_are_messages_that_pass() {
        let seed = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/pods/messages");
        let wanted = [&[6][..], &sample_messages()].concat();
        if std::env::var_os("LULL_FUZZ_WRITE_SEEDS").is_some() {
            std::fs::write(&seed, &wanted).unwrap();
        }
        assert_eq!(std::fs::read(&seed).unwrap(), wanted, "LULL_FUZZ_WRITE_SEEDS=1 writes it");
        assert_eq!(take_messages(&wanted[1..], 7, TEMPLATES), 7);
    }

    #[test]
    fn the_seed_of_a_runtime_lists_starts_and_ends_containers() {
        let seed = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/nri/containerd");
        let bytes = std::fs::read(seed).unwrap();
        let (reports, _) = take_runtime_bytes(&bytes[1..], 5).unwrap();
        let [all, runs, ended] = &reports[..] else { panic!("{reports:?}") };
        assert!(all.starts_with("All([RuntimeContainer {") && all.contains("cpus: \"0-1\""));
        assert!(runs.starts_with("Runs(") && ended.starts_with("Ended("), "{reports:?}");
    }
}
