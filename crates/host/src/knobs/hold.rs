//! Knobs that no policy steers: set once, held for a while, put back.
//!
//! One file each. A [`HoldRequest`] is checked against what is there before anything
//! is written; then all requests are granted or none. Old values are in the
//! ledger first, so that a guard puts them back if this process dies; the
//! wake-up latency is held by an open file, which the kernel closes itself.

mod cgroup;
mod coalescing;
#[cfg(test)]
mod faults;
mod governor;
mod idle;
mod irq;
mod latency;
mod offers;
mod power_limit;
mod unit;

pub use offers::{Found, Offered, managers, offers};

use super::{KnobError, SaveOld};
use crate::Roots;
use crate::drivers::cgroup::CgroupFile;
use crate::drivers::ethtool::Coalescing;
use crate::drivers::systemd::{self, Systemd, UnitState};
use crate::drivers::texts::{TextWrite, WriteError, Written, undo, write_all};
use crate::drivers::{ethtool, text};
use crate::guard::{Key, Ledger, Original};
use lull_control::CoreSet;
use lull_measure::{Nanos, Watts};
use std::collections::BTreeSet;
use std::fs::File;
use std::str::FromStr;

/// One knob and the value to hold it at.
#[derive(Debug, Clone, PartialEq)]
pub enum HoldRequest {
    /// The governor of all frequency domains.
    Governor(String),
    /// The energy-performance preference of all frequency domains.
    EnergyPreference(String),
    /// No idle state that takes longer to leave than this, on any core.
    IdleLatency(Nanos),
    /// No idle state but the one of this name, on any core.
    IdleState(String),
    /// The kernel's bound on wake-up latency, held by an open file.
    WakeLatency(Nanos),
    /// The bound on wake-up latency of some cores.
    ResumeLatency(CoreSet, Nanos),
    /// The long-term power limit of a RAPL domain.
    PowerLimit {
        /// Its name: `package-0`.
        domain: String,
        /// The limit.
        power: Watts,
    },
    /// The cores that an interrupt may go to.
    Irq(u32, CoreSet),
    /// One file of a cgroup (v2).
    Cgroup {
        /// The cgroup, as `/proc/PID/cgroup` has it: `/system.slice/a.service`.
        path: String,
        /// The control to set.
        control: CgroupControl,
    },
    /// A limit of a systemd unit.
    Unit {
        /// Its name, with its suffix.
        unit: String,
        /// The control to set.
        control: CgroupControl,
    },
    /// Interrupt coalescing of a network interface.
    Coalescing {
        /// Its name.
        nic: String,
        /// The parameters to set; the others stay.
        wanted: Coalescing,
    },
}

/// The controls of a cgroup that can be held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupControl {
    /// `cpu.weight`, 1 to 10000.
    Weight(u32),
    /// `cpu.max`: CPU time in each period; `None` is no limit.
    Max(Option<(Nanos, Nanos)>),
    /// `cpuset.cpus`.
    Cores(CoreSet),
}

/// Why a text is no request to hold a knob.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a knob to hold: {why}")]
pub struct HoldRequestError {
    text: String,
    why: String,
}

/// Granted requests. After a drop the ledger still has the values to restore.
#[derive(Debug)]
pub struct Held {
    written: Vec<Written>,
    nics: Vec<(String, Coalescing)>,
    latency: Option<File>,
    limits: Vec<UnitState>,
    /// Notes for the user on how the requests were granted.
    notes: Vec<String>,
    roots: Roots,
}

/// The changes that granting some requests makes.
#[derive(Debug, Default)]
struct Plan {
    writes: Vec<TextWrite>,
    limits: Vec<UnitState>,
    /// The values before, of files and limits.
    originals: Vec<Original>,
    notes: Vec<String>,
}

impl FromStr for HoldRequest {
    type Err = HoldRequestError;

    fn from_str(text: &str) -> Result<Self, HoldRequestError> {
        let wrong = |why: String| HoldRequestError { text: text.to_owned(), why };
        let (knob, value) =
            text.split_once('=').ok_or_else(|| wrong("write KNOB=VALUE".to_owned()))?;
        parse(knob, value).map_err(wrong)
    }
}

fn parse(knob: &str, value: &str) -> Result<HoldRequest, String> {
    let time = |text: &str| text.parse::<Nanos>().map_err(|error| error.to_string());
    let cores = |text: &str| text.parse::<CoreSet>().map_err(|error| error.to_string());
    let two = |what: &str| value.split_once(':').ok_or(format!("write {knob}={what}"));
    Ok(match knob {
        "governor" => HoldRequest::Governor(value.to_owned()),
        "energy-preference" => HoldRequest::EnergyPreference(value.to_owned()),
        "idle-latency" => HoldRequest::IdleLatency(time(value)?),
        "idle-state" => HoldRequest::IdleState(value.to_owned()),
        "wake-latency" => HoldRequest::WakeLatency(time(value)?),
        "resume-latency" => {
            let (of, at_most) = two("CORES:TIME")?;
            HoldRequest::ResumeLatency(cores(of)?, time(at_most)?)
        }
        "power-limit" => {
            let (domain, watts) = two("DOMAIN:WATTS")?;
            let power = watts.trim_end_matches('W').parse().map(Watts);
            let power = power.map_err(|_| format!("`{watts}` is not a number of watts"))?;
            HoldRequest::PowerLimit { domain: domain.to_owned(), power }
        }
        "irq" => {
            let (number, of) = two("NUMBER:CORES")?;
            let number = number.parse().map_err(|_| format!("`{number}` is not an interrupt"))?;
            HoldRequest::Irq(number, cores(of)?)
        }
        "cgroup" => cgroup::parse(value)?,
        "unit" => unit::parse(value)?,
        "coalescing" => coalescing::parse(value)?,
        other => {
            return Err(format!(
                "there is no `{other}`; there are governor, energy-preference, idle-latency, \
                 idle-state, wake-latency, resume-latency, power-limit, irq, cgroup, unit and \
                 coalescing"
            ));
        }
    })
}

/// Grants all requests, in order, or none.
///
/// # Errors
/// [`KnobError`] for the first request that cannot be granted; those before it
/// are undone. The ledger still has what could not be undone: restore it
/// before it is closed.
pub fn hold(
    requests: &[HoldRequest],
    roots: &Roots,
    ledger: &mut Ledger,
) -> Result<Held, KnobError> {
    grant(requests, roots, ledger)
}

fn grant(
    requests: &[HoldRequest],
    roots: &Roots,
    save: &mut impl SaveOld,
) -> Result<Held, KnobError> {
    let mut plan = Plan::default();
    for request in requests {
        plan.add(request, roots)?;
    }
    let originals = plan.all_originals()?;
    save.values(&originals)?;
    let written = write_all(&plan.writes).map_err(KnobError::from)?;
    if let Err(error) = save.values(&plan.shown_texts(&written)) {
        undo(&written);
        return Err(error.into());
    }
    let (notes, roots) = (plan.notes, roots.clone());
    let (nics, limits) = (Vec::new(), Vec::new());
    let mut held = Held { written, nics, latency: None, limits, notes, roots };
    let granted = held
        .set_limits(plan.limits)
        .and_then(|()| requests.iter().try_for_each(|request| held.grant_other(request, save)));
    match granted {
        Ok(()) => Ok(held),
        Err(error) => {
            held.undo();
            Err(error)
        }
    }
}

impl Plan {
    fn add(&mut self, request: &HoldRequest, roots: &Roots) -> Result<(), KnobError> {
        match request {
            HoldRequest::Cgroup { path, control } => unit::add_cgroup(self, roots, path, control),
            HoldRequest::Unit { unit, control } => unit::add(self, roots, unit, control),
            other => {
                for write in other.writes(roots)? {
                    self.check_agrees(&write)?;
                    let text = text::read(&write.path)?;
                    self.add_text(Original::of_text(write.path.clone(), text, &write.text));
                    self.writes.push(write);
                }
                Ok(())
            }
        }
    }

    /// Refuses a text for a file that an earlier request sets to another one.
    fn check_agrees(&self, write: &TextWrite) -> Result<(), KnobError> {
        let TextWrite { path, text, .. } = write;
        let differs = |it: &&TextWrite| it.path == *path && it.text != *text;
        let Some(other) = self.writes.iter().find(differs) else { return Ok(()) };
        Err(KnobError::Nonsense(format!(
            "two of these knobs set {} to {} and to {text}: hold one of them",
            path.display(),
            other.text
        )))
    }

    /// Adds a file's text before. Two requests may write the same text to a file.
    fn add_text(&mut self, original: Original) {
        let key = original.key();
        let known = self.originals.iter_mut().find(|known| known.key() == key);
        match (known, original) {
            (Some(Original::Text { ours, .. }), Original::Text { ours: more, .. }) => {
                ours.extend(more);
            }
            (_, original) => self.originals.push(original),
        }
    }

    /// Returns the texts of the files since they were written: hardware rounds, and a rounded value
    /// counts as Lull's.
    fn shown_texts(&self, written: &[Written]) -> Vec<Original> {
        let known = |key: Key| self.originals.iter().find(|original| original.key() == key);
        let kept = |one: &Written| match known(Key::File(one.path.clone()))?.clone() {
            Original::Text { path, text, safe, .. } => {
                Some(Original::Text { path, text, safe, ours: vec![one.now.clone()] })
            }
            _ => None,
        };
        written.iter().filter_map(kept).collect()
    }

    fn add_cgroup_files(&mut self, writes: Vec<TextWrite>) -> Result<(), KnobError> {
        for write in writes {
            let file = CgroupFile::read(&write.path, &write.text)?;
            self.originals.push(Original::Cgroup(file));
            self.writes.push(write);
        }
        Ok(())
    }

    /// The values before. Of a cgroup or a unit a value is restored where it is Lull's, so
    /// there can be only one.
    fn all_originals(&self) -> Result<Vec<Original>, KnobError> {
        let limits = self.limits.iter().cloned().map(Original::Unit);
        let all: Vec<Original> = self.originals.iter().cloned().chain(limits).collect();
        let mut known = BTreeSet::new();
        for original in &all {
            let is_single = matches!(original, Original::Cgroup(_) | Original::Unit(_));
            if !known.insert(original.key()) && is_single {
                let key = original.key();
                let twice = format!("{key} is named twice: write each knob of a cgroup once");
                return Err(KnobError::Nonsense(twice));
            }
        }
        Ok(all)
    }
}

impl HoldRequest {
    /// Returns the files to write; none for a request without a file, or a cgroup's.
    fn writes(&self, roots: &Roots) -> Result<Vec<TextWrite>, KnobError> {
        match self {
            Self::Governor(name) => governor::governor(roots, name),
            Self::EnergyPreference(name) => governor::preference(roots, name),
            Self::IdleLatency(at_most) => idle::shallow(roots, *at_most),
            Self::IdleState(name) => idle::only(roots, name),
            Self::ResumeLatency(cores, at_most) => latency::resume(roots, cores, *at_most),
            Self::PowerLimit { domain, power } => power_limit::limit(roots, domain, *power),
            Self::Irq(number, cores) => irq::affinity(roots, *number, cores),
            Self::Cgroup { .. }
            | Self::Unit { .. }
            | Self::WakeLatency(_)
            | Self::Coalescing { .. } => Ok(Vec::new()),
        }
    }
}

impl Held {
    fn set_limits(&mut self, limits: Vec<UnitState>) -> Result<(), KnobError> {
        if limits.is_empty() {
            return Ok(());
        }
        let mut systemd = Systemd::connect(&self.roots.run)?;
        for limit in limits {
            // Noted before it is checked, so that a failed check is undone too.
            self.limits.push(limit.clone());
            systemd.set(&limit.unit, &[(limit.property, &limit.ours)])?;
        }
        Ok(())
    }

    /// Sets limits of units again that a reload of systemd has undone, and returns a line for
    /// each. To be called about once a second.
    pub fn renew(&self) -> Vec<String> {
        // No connection stays open between two looks: systemd would queue its signals for it.
        let deadline = systemd::deadline();
        let renewed = |limit: &UnitState| {
            let UnitState { unit, property, ours, .. } = limit;
            match limit.renew(&self.roots.run, deadline) {
                Ok(false) => None,
                Ok(true) => Some(format!("{unit}: {property} {ours} is set again after a reload")),
                Err(error) => Some(format!("{unit}: {property} is not checked: {error}")),
            }
        };
        self.limits.iter().filter_map(renewed).collect()
    }

    fn grant_other(
        &mut self,
        request: &HoldRequest,
        save: &mut impl SaveOld,
    ) -> Result<(), KnobError> {
        match request {
            HoldRequest::WakeLatency(at_most) => {
                self.latency = Some(latency::wake(&self.roots, *at_most)?);
            }
            HoldRequest::Coalescing { nic, wanted } => {
                let before = coalescing::set(nic, wanted, save)?;
                self.nics.push((nic.clone(), before));
            }
            _ => {}
        }
        Ok(())
    }

    fn undo(&self) {
        for (nic, before) in self.nics.iter().rev() {
            // If this fails, the ledger still has the old value.
            let _ = ethtool::set(nic, before);
        }
        let deadline = systemd::deadline();
        for limit in self.limits.iter().rev() {
            let _ = limit.put_back(&self.roots.run, deadline);
        }
        undo(&self.written);
    }

    /// Returns the changes, a line each: file, old value, new value; and notes about them.
    pub fn changes(&self) -> Vec<String> {
        let file = |one: &Written| format!("{}: {} -> {}", one.path.display(), one.before, one.now);
        let mut lines: Vec<_> = self.written.iter().map(file).collect();
        for (nic, before) in &self.nics {
            let now = ethtool::get(nic).map_or("unreadable".to_owned(), |now| now.to_string());
            lines.push(format!("{nic}: {before} -> {now}"));
        }
        let limit = |one: &UnitState| {
            format!("{}: {} {} -> {}, by systemd", one.unit, one.property, one.before, one.ours)
        };
        lines.extend(self.limits.iter().map(limit));
        lines.extend(self.notes.iter().cloned());
        if self.latency.is_some() {
            lines.push("cpu_dma_latency: held open".to_owned());
        }
        lines
    }
}

impl From<WriteError> for KnobError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::File(error) => Self::File(error),
            WriteError::NotKept { path, wanted, found } => {
                Self::NotKept { what: path.display().to_string(), wanted, found }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::cpufreq::tests::policy;
    use crate::drivers::text::faults;
    use crate::guard::Restored;
    use crate::testing::{Saved, Tree};

    const POLICY: &str = "sys/devices/system/cpu/cpufreq/policy0";

    #[test]
    fn wishes_are_read_as_documented_and_others_say_what_there_is() {
        let request = |text: &str| text.parse::<HoldRequest>();
        assert_eq!(
            request("governor=powersave"),
            Ok(HoldRequest::Governor("powersave".to_owned()))
        );
        assert_eq!(
            request("wake-latency=20us"),
            Ok(HoldRequest::WakeLatency(Nanos::from_micros(20)))
        );
        assert_eq!(request("irq=24:0-3"), Ok(HoldRequest::Irq(24, CoreSet::first(4))));
        let limit = HoldRequest::PowerLimit { domain: "package-0".to_owned(), power: Watts(45.0) };
        assert_eq!(request("power-limit=package-0:45W"), Ok(limit));
        let resume = HoldRequest::ResumeLatency(CoreSet::first(2), Nanos::from_micros(5));
        assert_eq!(request("resume-latency=0-1:5us"), Ok(resume));
        for wrong in ["", "governor", "irq=x:1", "irq=1", "turbo=off", "power-limit=a:b"] {
            let error = request(wrong).unwrap_err().to_string();
            assert!(error.contains("is not a knob to hold"), "{error}");
        }
        assert!(request("turbo=off").unwrap_err().to_string().contains("idle-latency"));
    }

    #[test]
    fn all_wishes_are_granted_or_none() {
        let tree = Tree::new();
        policy(&tree, POLICY, "schedutil performance");
        tree.write("proc/irq/24/smp_affinity_list", "0-3\n");
        let file = |name: &str| text::read(&tree.path(name)).unwrap();
        let requests: Vec<HoldRequest> =
            ["governor=performance", "irq=24:1"].map(|text| text.parse().unwrap()).to_vec();
        faults::refuse("smp_affinity_list", 0, libc::EIO);
        let refused = grant(&requests, &tree.roots(), &mut Saved::default()).unwrap_err();
        faults::clear();
        assert!(refused.to_string().contains("irq/24/smp_affinity_list"), "{refused}");
        assert_eq!(file(&format!("{POLICY}/scaling_governor")), "schedutil");
        let mut saved = Saved::default();
        let held = grant(&requests, &tree.roots(), &mut saved).unwrap();
        assert_eq!((held.changes().len(), saved.batches), (2, 1));
        assert_eq!(file("proc/irq/24/smp_affinity_list"), "1");
        for original in &saved.originals {
            assert_eq!(original.restore(&tree.roots()), Restored::Done);
        }
        assert_eq!(file("proc/irq/24/smp_affinity_list"), "0-3");
    }

    #[test]
    fn what_another_program_has_set_meanwhile_stays() {
        let tree = Tree::new();
        policy(&tree, POLICY, "schedutil performance powersave");
        let governor = format!("{POLICY}/scaling_governor");
        let request = "governor=performance".parse().unwrap();
        let mut saved = Saved::default();
        grant(&[request], &tree.roots(), &mut saved).unwrap();
        tree.write(&governor, "powersave\n");
        let left = Restored::Left { found: "powersave".to_owned() };
        assert_eq!(saved.originals[0].restore(&tree.roots()), left);
        assert_eq!(text::read(&tree.path(&governor)).unwrap(), "powersave");
    }

    #[test]
    fn a_limit_that_the_hardware_rounds_is_restored() {
        let tree = Tree::new();
        let file = "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw";
        tree.write(file, "28000000\n");
        let path = tree.path(file);
        let original = Original::of_text(path.clone(), "28000000".to_owned(), "45000000");
        let plan = Plan { originals: vec![original.clone()], ..Plan::default() };
        let now = "44875000".to_owned();
        let written = Written { path: path.clone(), before: "28000000".to_owned(), now };
        let mut saved = Saved::default();
        saved.values(&[original]).unwrap();
        saved.values(&plan.shown_texts(&[written])).unwrap();
        tree.write(file, "44875000\n");
        assert_eq!(saved.originals[0].restore(&tree.roots()), Restored::Done);
        assert_eq!(text::read(&path).unwrap(), "28000000");
    }

    #[test]
    fn requests_that_set_a_file_to_two_texts_are_refused_before_a_write() {
        let tree = Tree::new();
        for (state, latency) in [(0, 0), (1, 90)] {
            let dir = format!("sys/devices/system/cpu/cpu0/cpuidle/state{state}");
            tree.write(&format!("{dir}/name"), &format!("C{state}\n"));
            tree.write(&format!("{dir}/latency"), &format!("{latency}\n"));
            tree.write(&format!("{dir}/disable"), "0\n");
        }
        let grant = |texts: [&str; 2]| {
            let requests: Vec<HoldRequest> = texts.map(|text| text.parse().unwrap()).to_vec();
            grant(&requests, &tree.roots(), &mut Saved::default()).map(|held| held.changes().len())
        };
        let refused = grant(["idle-latency=10us", "idle-state=C1"]).unwrap_err().to_string();
        assert!(refused.contains("state0/disable to 0 and to 1: hold one"), "{refused}");
        let file = tree.path("sys/devices/system/cpu/cpu0/cpuidle/state1/disable");
        assert_eq!(text::read(&file).unwrap(), "0");
        assert!(grant(["idle-latency=10us", "idle-state=C0"]).is_ok(), "they agree");
    }

    #[test]
    fn a_latency_that_cannot_be_held_undoes_the_files() {
        let tree = Tree::new();
        policy(&tree, POLICY, "schedutil performance");
        let requests: Vec<HoldRequest> =
            ["governor=performance", "wake-latency=5us"].map(|text| text.parse().unwrap()).to_vec();
        let refused = grant(&requests, &tree.roots(), &mut Saved::default()).unwrap_err();
        assert!(refused.to_string().contains("cpu_dma_latency"), "{refused}");
        let governor = text::read(&tree.path(&format!("{POLICY}/scaling_governor"))).unwrap();
        assert_eq!(governor, "schedutil");
    }
}
