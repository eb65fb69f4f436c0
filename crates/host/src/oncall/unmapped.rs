//! Servers whose environment names a page that they have not mapped, and the reason.
//!
//! The library runs inside the server and can only write a line to the server's log when it
//! cannot use the page. The agent would wait for connections without an explanation. So it
//! looks twice a second for new processes that have the page in their environment. `proc` shows
//! the environment with which a program was executed, and the files that the process has
//! mapped; reading either takes the privilege to trace the process.
//!
//! A process is checked until it is two seconds old, since a service manager or a shell executes
//! the server some time after it has made the process. A process that executes a server later
//! than that is not noticed.

use super::PAGE_VARIABLE;
use super::binary::{Linkage, linkage};
use crate::Roots;
use crate::apps::{Facts, ProcessId, ProcessTable};
use lull_measure::{Nanos, escape};
use rustix::time::ClockId;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The age from which on a process is not checked again.
const SETTLED: Nanos = Nanos::from_secs(2);
/// A younger process may not have loaded its libraries.
const LOADED: Nanos = Nanos::from_millis(300);
/// The time between two looks, which list all processes. With [`LOADED`] it is below a second,
/// within which a server is found.
const PERIOD: Nanos = Nanos::from_millis(450);
// The caller looks every half a second (`lull attach`), or at the end of each epoch.
const _: () = assert!(LOADED.0 + PERIOD.0 + 200_000_000 < 1_000_000_000);
/// The most servers that a look reports, and the most letters of a variable of one: any user can
/// start processes, with any environment.
const FOUND_MAX: usize = 8;
const SHOWN_LETTERS: usize = 200;
/// The variable that names preloaded libraries (`man 8 ld.so`).
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
const LIBRARY: &str = "liblull_preload.so";
/// `AT_SECURE` of `linux/auxvec.h`.
const AT_SECURE: u64 = 23;

/// A server that runs without the page that its environment names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmappedServer {
    /// The process.
    pub process: ProcessId,
    /// The name of its program.
    pub program: String,
    /// The reason, with what to do about it.
    pub reason: String,
}

impl fmt::Display for UnmappedServer {
    /// The text is one line, since any user chooses the name and the environment of a process.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, program, reason } = self;
        let text = format!("{program} (process {}) does not use the page: {reason}", process.pid);
        out.write_str(&escape::visible_line(&text))
    }
}

/// The search for servers that do not map one page.
#[derive(Debug)]
pub struct UnmappedServers {
    roots: Roots,
    page: PathBuf,
    page_inode: u64,
    page_owner: u32,
    /// Kept between looks, so that only new processes are read.
    table: Option<ProcessTable>,
    /// Processes that need no other look.
    settled: BTreeSet<ProcessId>,
    looked: Option<Nanos>,
}

impl UnmappedServers {
    /// Creates the search for servers of the page at `page`, whose file has this inode and
    /// belongs to this user.
    pub fn new(roots: &Roots, page: PathBuf, page_inode: u64, page_owner: u32) -> Self {
        let (roots, settled) = (roots.clone(), BTreeSet::new());
        Self { roots, page, page_inode, page_owner, table: None, settled, looked: None }
    }

    /// Returns the servers that were found since the last look, eight at most; the next look finds
    /// the rest. Does nothing within 450 ms of the last one.
    pub fn look(&mut self) -> Vec<UnmappedServer> {
        let now = crate::clock::read(ClockId::Boottime);
        if self.looked.is_some_and(|looked| now < looked.saturating_add(PERIOD)) {
            return Vec::new();
        }
        self.looked = Some(now);
        // Without a listing there is nothing to report; the next look tries again.
        let refreshed = match self.table.take() {
            None => ProcessTable::new(&self.roots),
            Some(mut table) => table.refresh().map(|()| table),
        };
        let Ok(table) = refreshed else { return Vec::new() };
        let mut settled = BTreeSet::new();
        let mut found = Vec::new();
        for (pid, facts) in table.iter().filter(|(_, facts)| !facts.is_kernels) {
            let process = ProcessId { pid, start_ticks: facts.start_ticks };
            let is_settled = self.settled.contains(&process);
            if !is_settled && found.len() == FOUND_MAX {
                // The next look checks it.
                continue;
            }
            let unmapped = if is_settled { None } else { self.check(process, age(facts, now)) };
            if is_settled || unmapped.is_some() || age(facts, now) >= SETTLED {
                settled.insert(process);
            }
            found.extend(unmapped);
        }
        self.settled = settled;
        self.table = Some(table);
        found
    }

    fn check(&self, process: ProcessId, age: Nanos) -> Option<UnmappedServer> {
        if age < LOADED {
            return None;
        }
        let place = self.roots.proc.join(process.pid.to_string());
        let environment = Environment(std::fs::read(place.join("environ")).ok()?);
        if environment.get(PAGE_VARIABLE)? != self.page.as_os_str() {
            return None;
        }
        let maps = Maps(std::fs::read_to_string(place.join("maps")).ok()?);
        if maps.has_inode(self.page_inode) {
            return None;
        }
        let reason = self.reason(&place, &environment, &maps);
        let reason = reason + &self.confinement(&place);
        let program = std::fs::read_to_string(place.join("comm")).unwrap_or_default();
        // A process that has ended or executed another program meanwhile is not a finding.
        process.facts(&self.roots)?;
        Some(UnmappedServer { process, program: program.trim_end().to_owned(), reason })
    }

    fn reason(&self, place: &Path, environment: &Environment, maps: &Maps) -> String {
        if maps.has_file(LIBRARY) {
            return self.refusal();
        }
        match linkage(&place.join("exe")) {
            Ok(Linkage::Static) => {
                return "it is linked statically, so that no library can be \
                 preloaded into it: use latency = \"ebpf\""
                    .to_owned();
            }
            Ok(Linkage::Go) => {
                return "it is a Go program, which makes its system calls by itself: \
                 use latency = \"ebpf\""
                    .to_owned();
            }
            _ => {}
        }
        let preloaded = environment.get(PRELOAD_VARIABLE).unwrap_or_default().to_string_lossy();
        let shown = shorten(&preloaded);
        if !preloaded.contains(LIBRARY) && !preloaded.trim().is_empty() {
            return format!(
                "its {PRELOAD_VARIABLE} is {shown} without {LIBRARY}: something replaces the \
                 variable (`malloc-lib` of mariadbd-safe, a later Environment= of its unit); \
                 write both libraries there, {LIBRARY} first"
            );
        }
        if !preloaded.contains(LIBRARY) {
            return format!(
                "its environment has no {LIBRARY} in {PRELOAD_VARIABLE}: give it both lines of \
                 `lull attach --environment`"
            );
        }
        if is_secure(place) {
            return format!(
                "it is executed with privileges of its file (setuid or file capabilities), so \
                 that the loader ignores {PRELOAD_VARIABLE}: let the service manager grant them \
                 instead (AmbientCapabilities=)"
            );
        }
        if maps.has_file("ld-musl") {
            return "it is linked with musl, whose programs cannot load the library: use \
                    latency = \"ebpf\""
                .to_owned();
        }
        format!(
            "its loader did not load {shown}: is the file there for the server's user, and \
             not on a file system that is mounted noexec?"
        )
    }

    /// Returns the profile that confines a process, which may be the reason; empty without one.
    fn confinement(&self, place: &Path) -> String {
        let label = std::fs::read_to_string(place.join("attr/current")).unwrap_or_default();
        let label = label.trim_end_matches(['\n', '\0']);
        let is_free = label.is_empty() || label.contains("unconfined");
        if is_free || label.ends_with("(complain)") {
            return String::new();
        }
        format!(
            ". It is confined as `{}` (AppArmor or SELinux), which must allow it to read and \
             write {} and to map {LIBRARY}, and must leave it {PRELOAD_VARIABLE}",
            shorten(label),
            self.page.display()
        )
    }

    /// Why the library, which the server has loaded, does not map the page.
    fn refusal(&self) -> String {
        let (page, owner) = (self.page.display(), self.page_owner);
        if owner == 0 {
            return format!(
                "its library could not open {page}, or found another version there: see the \
                 server's log for a line that begins with `lull:`; a server that is not executed \
                 as root needs `lull attach --owner USER`, with a new page"
            );
        }
        format!(
            "{page} belongs to user {owner}, and a server maps only a page of root or of the \
             user that executes it: remove the page and attach with the --owner that executes \
             the server, without --owner if that is root; then restart the server"
        )
    }
}

/// Cuts a long text, and shows that it is cut.
fn shorten(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(SHOWN_LETTERS) {
        Some((end, _)) => format!("{}...", &text[..end]).into(),
        None => text.into(),
    }
}

fn age(facts: &Facts, now: Nanos) -> Nanos {
    let nanos_per_tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
    now.saturating_sub(Nanos(facts.start_ticks.saturating_mul(nanos_per_tick)))
}

/// Whether the kernel makes the loader ignore the environment (`man 3 getauxval`).
fn is_secure(place: &Path) -> bool {
    let words = std::fs::read(place.join("auxv")).unwrap_or_default();
    let mut words = words
        .chunks_exact(8)
        .map(|word| word.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)));
    while let (Some(kind), Some(value)) = (words.next(), words.next()) {
        if kind == AT_SECURE {
            return value != 0;
        }
    }
    false
}

/// The variables of a process, each ended by a zero byte.
pub(super) struct Environment(pub(super) Vec<u8>);

impl Environment {
    pub(super) fn get(&self, name: &str) -> Option<&OsStr> {
        let mut variables = self.0.split(|byte| *byte == 0);
        let value = variables
            .find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        value.map(OsStr::from_bytes)
    }
}

/// The text of `/proc/PID/maps`: address, permissions, offset, device, inode, path.
pub(super) struct Maps(pub(super) String);

impl Maps {
    /// Whether the file with this number is mapped so that its writers see each other.
    pub(super) fn has_inode(&self, inode: u64) -> bool {
        let inode = inode.to_string();
        self.0.lines().any(|line| {
            let mut words = line.split_ascii_whitespace().skip(1);
            words.next().is_some_and(|rights| rights.ends_with('s'))
                && words.nth(2) == Some(inode.as_str())
        })
    }

    fn has_file(&self, part: &str) -> bool {
        self.0
            .lines()
            .any(|line| line.rsplit_once('/').is_some_and(|(_, name)| name.starts_with(part)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const MAPS: &str = "7f1e-7f2f rw-s 00000000 00:01 4242  /run/lull-db/page\n\
                        7f30-7f31 r-xp 00000000 fd:00 77  /usr/lib/liblull_preload.so\n";

    /// A process 7 with this environment and these mappings, old enough to be judged.
    fn looked(environment: &str, maps: &str, owner: u32) -> Vec<UnmappedServer> {
        looked_in(&Tree::new(), environment, maps, owner)
    }

    fn looked_in(tree: &Tree, environment: &str, maps: &str, owner: u32) -> Vec<UnmappedServer> {
        // Fields 3 to 52 of `man 5 proc`: it started 5 ticks after the machine.
        let stat = format!("7 (mariadbd) S 1 7 7 0 -1 0{} 5{}", " 0".repeat(12), " 0".repeat(30));
        for (file, text) in [
            ("stat", stat.as_str()),
            ("environ", environment),
            ("maps", maps),
            ("comm", "mariadbd\n"),
        ] {
            tree.write(&format!("proc/7/{file}"), text);
        }
        let page = PathBuf::from("/run/lull-db/page");
        UnmappedServers::new(&tree.roots(), page, 4242, owner).look()
    }

    const ENVIRONMENT: &str =
        "A=b\0LULL_PAGE=/run/lull-db/page\0LD_PRELOAD=/x/liblull_preload.so\0";

    #[test]
    fn a_server_that_has_mapped_the_page_and_one_of_another_page_are_no_findings() {
        assert_eq!(looked(ENVIRONMENT, MAPS, 0), []);
        assert_eq!(looked("LULL_PAGE=/run/other/page\0", "", 0), []);
        assert_eq!(looked("XLULL_PAGE=/run/lull-db/page\0", "", 0), []);
    }

    #[test]
    fn a_file_of_another_file_system_with_the_number_of_the_page_is_not_the_page() {
        let page = |line: &str| Maps(line.to_owned()).has_inode(4242);
        assert!(page(MAPS) && !page("7f30-7f31 r-xp 00000000 fd:00 4242  /usr/lib/libc.so.6\n"));
    }

    #[test]
    fn the_reason_names_the_owner_the_library_or_the_environment() {
        let only_library = MAPS.lines().nth(1).unwrap();
        let found = looked(ENVIRONMENT, only_library, 106);
        assert!(found[0].reason.contains("belongs to user 106"), "{found:?}");
        assert!(found[0].to_string().starts_with("mariadbd (process 7)"), "{found:?}");
        let found = looked(ENVIRONMENT, only_library, 0);
        assert!(found[0].reason.contains("could not open"), "{found:?}");
        let found = looked(ENVIRONMENT, "", 0);
        assert!(found[0].reason.contains("did not load /x/liblull_preload.so"), "{found:?}");
        let found = looked(ENVIRONMENT, "7f-80 r-xp 0 fd:00 9  /lib/ld-musl-x86_64.so.1\n", 0);
        assert!(found[0].reason.contains("musl"), "{found:?}");
        let found = looked("LULL_PAGE=/run/lull-db/page\0", "", 0);
        assert!(found[0].reason.contains("both lines"), "{found:?}");
    }

    #[test]
    fn a_name_or_a_variable_with_line_feeds_stays_in_its_line() {
        let environment = "LULL_PAGE=/run/lull-db/page\0LD_PRELOAD=x\nlull: all is well\u{1b}[2J\0";
        let mut found = looked(environment, "", 0);
        found[0].program = "a\nb".to_owned();
        let text = found[0].to_string();
        assert!(text.starts_with("a\\u{a}b (process 7)"), "{text}");
        assert!(text.contains("x\\u{a}lull: all is well\\u{1b}[2J"), "{text}");
    }

    #[test]
    fn a_variable_that_another_library_has_replaced_is_shown_and_one_that_has_both_is_not() {
        let jemalloc = "LULL_PAGE=/run/lull-db/page\0LD_PRELOAD=/usr/lib/libjemalloc.so.2\0";
        let found = looked(jemalloc, "", 0);
        assert!(found[0].reason.contains("is /usr/lib/libjemalloc.so.2 without"), "{found:?}");
        let both = "LULL_PAGE=/run/lull-db/page\0\
                    LD_PRELOAD=/x/liblull_preload.so /usr/lib/libjemalloc.so.2\0";
        assert_eq!(looked(both, MAPS, 0), []);
    }

    #[test]
    fn what_the_environment_of_any_process_brings_to_the_log_is_bounded() {
        let long = "\u{e4}".repeat(100_000);
        let found = looked(&format!("LULL_PAGE=/run/lull-db/page\0LD_PRELOAD={long}\0"), "", 0);
        let shown = format!("is {}... without", "\u{e4}".repeat(SHOWN_LETTERS));
        assert!(found[0].reason.contains(&shown), "{found:?}");
    }

    #[test]
    fn a_look_reports_a_bounded_number_and_the_next_one_the_rest() {
        let tree = Tree::new();
        let stat = format!(" (mariadbd) S 1 7 7 0 -1 0{} 5{}", " 0".repeat(12), " 0".repeat(30));
        for pid in 1..=FOUND_MAX + 3 {
            tree.write(&format!("proc/{pid}/stat"), &format!("{pid}{stat}"));
            tree.write(&format!("proc/{pid}/environ"), "LULL_PAGE=/run/lull-db/page\0");
            tree.write(&format!("proc/{pid}/maps"), "");
        }
        let page = PathBuf::from("/run/lull-db/page");
        let mut servers = UnmappedServers::new(&tree.roots(), page, 4242, 0);
        for count in [FOUND_MAX, 3, 0] {
            servers.looked = None;
            assert_eq!(servers.look().len(), count);
        }
    }

    #[test]
    fn a_program_with_privileges_of_its_file_is_recognised_by_its_auxiliary_vector() {
        let tree = Tree::new();
        let words = |secure: u64| [6, 4096, AT_SECURE, secure, 0, 0].map(u64::to_le_bytes).concat();
        let auxv = |secure| {
            tree.write("proc/7/auxv", "");
            std::fs::write(tree.roots().proc.join("7/auxv"), words(secure)).unwrap();
        };
        auxv(1);
        let found = looked_in(&tree, ENVIRONMENT, "", 0);
        assert!(found[0].reason.contains("setuid or file capabilities"), "{found:?}");
        auxv(0);
        let found = looked_in(&tree, ENVIRONMENT, "", 0);
        assert!(found[0].reason.contains("did not load"), "{found:?}");
    }

    #[test]
    fn a_profile_that_confines_the_server_is_named_with_what_it_must_allow() {
        let tree = Tree::new();
        let reason = |label: &str| {
            tree.write("proc/7/attr/current", label);
            looked_in(&tree, ENVIRONMENT, "", 0).remove(0).reason
        };
        for label in ["/usr/sbin/mariadbd (enforce)\n", "system_u:system_r:mysqld_t:s0\0"] {
            let reason = reason(label);
            assert!(reason.contains(label.trim_end_matches(['\n', '\0'])), "{reason}");
            assert!(reason.contains("write /run/lull-db/page and to map"), "{reason}");
        }
        for label in ["unconfined\n", "u:r:unconfined_t:s0\0", "mariadbd (complain)\n", ""] {
            assert!(!reason(label).contains("confined"), "{label}");
        }
    }

    #[test]
    fn a_static_program_is_found_by_its_header() {
        let tree = Tree::new();
        tree.write("proc/7/exe", "");
        // A header of 64 bytes without program headers: nothing asks for a loader.
        let mut header = [0_u8; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        header[54] = 56;
        std::fs::write(tree.roots().proc.join("7/exe"), header).unwrap();
        let found = looked_in(&tree, ENVIRONMENT, "", 0);
        assert!(found[0].reason.contains("linked statically"), "{found:?}");
    }

    #[test]
    fn a_finding_is_reported_once() {
        let child = std::process::Command::new("sleep")
            .arg("60")
            .env(PAGE_VARIABLE, "/run/lull-db/page")
            .spawn();
        let mut child = child.unwrap();
        let page = PathBuf::from("/run/lull-db/page");
        let mut servers = UnmappedServers::new(&Roots::default(), page, 1, 0);
        let mut found = Vec::new();
        let begun = std::time::Instant::now();
        while found.is_empty() && begun.elapsed().as_secs() < 60 {
            found = servers.look();
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        servers.looked = None;
        let again = servers.look();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].process.pid, child.id().cast_signed());
        assert_eq!(again, []);
    }
}
