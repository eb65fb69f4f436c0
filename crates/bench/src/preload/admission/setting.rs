//! The settings of the gate in a block.

/// The purpose of a setting in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// No agent: the gate is open.
    Open,
    /// A fixed limit.
    Limit,
    /// `auto`, which has a block until it has decided.
    Auto,
    /// A limiter of others.
    Peer,
    /// A controller of a paper, for all connections alike.
    Paper,
    /// A controller that keeps objectives of a few connections, which may cost throughput.
    Promising,
}

/// One setting of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Options of `lull attach`.
    pub(super) options: &'static [&'static str],
}

/// The percentile that four connections are promised.
const PERCENTILE: &str = "from = \"127.0.0.1\", connections = 4, objective = { p95 = \"100ms\" }";
/// The same as a ratio of clients that leave.
const DISENGAGEMENT: &str =
    "from = \"127.0.0.1\", connections = 4, objective = { disengagement = 0.01 }";

macro_rules! limit {
    ($number:literal) => {
        Setting {
            name: concat!("limit ", $number),
            kind: Kind::Limit,
            options: &["--concurrency", $number],
        }
    };
}

macro_rules! controller {
    ($kind:ident, $name:literal) => {
        Setting { name: $name, kind: Kind::$kind, options: &["--concurrency", $name] }
    };
}

const OPEN: Setting = Setting { name: "open", kind: Kind::Open, options: &[] };
const AUTO: Setting = controller!(Auto, "auto");

const LIMITS: [Setting; 8] = [
    limit!("4"),
    limit!("8"),
    limit!("12"),
    limit!("16"),
    limit!("24"),
    limit!("32"),
    limit!("64"),
    limit!("128"),
];

const PEERS: [Setting; 5] = [
    controller!(Peer, "gradient2"),
    controller!(Peer, "vegas"),
    controller!(Peer, "envoy-gradient"),
    controller!(Peer, "throughput-probing"),
    controller!(Peer, "cinnamon"),
];

const PAPERS: [Setting; 5] = [
    controller!(Paper, "reef"),
    controller!(Paper, "apples"),
    Setting {
        name: "pslo",
        kind: Kind::Promising,
        options: &["--concurrency", "pslo", "--promise", PERCENTILE],
    },
    Setting {
        name: "utslo",
        kind: Kind::Promising,
        options: &["--concurrency", "utslo", "--promise", DISENGAGEMENT],
    },
    Setting {
        name: "reef with pslo",
        kind: Kind::Promising,
        options: &["--concurrency", "reef", "--key", "policy=\"pslo\"", "--promise", PERCENTILE],
    },
];

/// The settings of a series; the open gate is the first, and `auto` the second.
///
/// Where no limit gains, fixed limits do not take part: the question is what a controller loses.
/// The form of ten minutes leaves out the controllers of papers, and the peers as well where no
/// limit gains.
pub(super) fn settings(gains: bool, is_full: bool) -> Vec<Setting> {
    let mut all = vec![OPEN, AUTO];
    if gains {
        all.extend(LIMITS);
    }
    if gains || is_full {
        all.extend(PEERS);
    }
    if is_full {
        all.extend(PAPERS);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_form_has_the_open_gate_first_and_no_name_twice() {
        for (gains, is_full, count) in
            [(true, true, 20), (true, false, 15), (false, true, 12), (false, false, 2)]
        {
            let all = settings(gains, is_full);
            assert_eq!((all[0], all[1]), (OPEN, AUTO));
            let names: BTreeSet<&str> = all.iter().map(|one| one.name).collect();
            assert_eq!((names.len(), all.len()), (count, count));
        }
    }

    #[test]
    fn only_the_open_gate_has_no_agent() {
        for one in settings(true, true) {
            assert_eq!(one.options.is_empty(), one.kind == Kind::Open, "{}", one.name);
        }
    }
}
