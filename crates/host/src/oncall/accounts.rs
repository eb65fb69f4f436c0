//! How long turns waited at the gate of a server, by the user and the database of their clients.

use super::seen::Counts;
use crate::sys::page::SharedPage;
use lull_control::ClientAccountObservation;
use lull_measure::{Nanos, Percentile};
use lull_oncall::{Account, NAME_TEXT_BYTES, NameText, Page};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The label of accounts that found no row of their own in the page.
const OTHERS: &str = "others";
/// The text of a name that no message has shown: that of a client that changed its user.
const UNKNOWN: &str = "?";
/// The most names under which the accounts of one server are shown: more than twice the rows.
const NAMES_MAX: usize = 64;

/// How long turns of one account waited at the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountWaits {
    /// `USER@DATABASE`.
    pub name: String,
    /// How long those turns waited that did.
    pub waits: Counts,
}

/// Reads the accounts of a page, whose counts are since the page was made: those with a row of
/// their own, in the order of the rows, and the others last.
pub(super) fn read(page: &Page) -> Vec<AccountWaits> {
    let accounts = page.accounts();
    let waits = |account: &Account| Counts::read(account.waits().counts());
    let known = accounts.known().map(|one| AccountWaits { name: name_of(one), waits: waits(one) });
    let others = AccountWaits { name: OTHERS.to_owned(), waits: waits(accounts.others()) };
    known.chain([others]).collect()
}

/// Returns the differences to an earlier reading, for accounts with any: rows are only added, and
/// the others are last. Rows whose names are shown alike are one account.
pub(super) fn since(mut now: Vec<AccountWaits>, before: &[AccountWaits]) -> Vec<AccountWaits> {
    if let Some((others_before, known_before)) = before.split_last() {
        now.iter_mut()
            .zip(known_before)
            .for_each(|(now, before)| now.waits.subtract(&before.waits));
        if let Some(others) = now.last_mut() {
            others.waits.subtract(&others_before.waits);
        }
    }
    now.retain(|account| account.waits.count() > 0);
    merge(now)
}

/// Adds up accounts that are shown under one name.
fn merge(accounts: Vec<AccountWaits>) -> Vec<AccountWaits> {
    let mut merged: Vec<AccountWaits> = Vec::with_capacity(accounts.len());
    for account in accounts {
        match merged.iter_mut().find(|one| one.name == account.name) {
            Some(one) => one.waits.merge(&account.waits),
            None => merged.push(account),
        }
    }
    merged
}

/// The names under which accounts of a server were shown.
///
/// Each begins series that last for the run, and a server can write any names to its page, others
/// in each epoch.
#[derive(Debug, Default)]
pub(super) struct ShownNames(BTreeSet<String>);

impl ShownNames {
    /// Counts accounts whose names are new, and beyond the bound, among the others.
    pub(super) fn limit(&mut self, mut accounts: Vec<AccountWaits>) -> Vec<AccountWaits> {
        let mut is_renamed = false;
        for account in &mut accounts {
            if self.0.contains(&account.name) {
                continue;
            }
            if self.0.len() < NAMES_MAX {
                self.0.insert(account.name.clone());
            } else {
                OTHERS.clone_into(&mut account.name);
                is_renamed = true;
            }
        }
        if is_renamed { merge(accounts) } else { accounts }
    }
}

fn name_of(account: &Account) -> String {
    let text = |text: Option<&NameText>| {
        let text = text.map(|text| text.get(&mut [0; NAME_TEXT_BYTES]).to_owned());
        let text = text.unwrap_or_else(|| UNKNOWN.to_owned());
        // A client chooses its name, which goes to logs and metrics.
        text.replace(|letter: char| letter.is_control() || letter == '/', UNKNOWN)
    };
    format!("{}@{}", text(account.user()), text(account.database()))
}

impl AccountWaits {
    /// Returns the part that is shown and recorded.
    pub(super) fn summary(&self) -> ClientAccountObservation {
        let quantile = |at| self.waits.quantile(at).unwrap_or(Nanos::ZERO);
        ClientAccountObservation {
            name: self.name.clone(),
            waits: self.waits.count(),
            wait_quantiles: (quantile(Percentile::P50), quantile(Percentile::P99)),
        }
    }
}

/// Reports turns that waited longer than a bound: every ten seconds at most, and then the three
/// accounts at most that had most of them.
#[derive(Debug)]
pub struct LongWaits {
    page: Arc<SharedPage>,
    bound: Nanos,
    reported: Nanos,
    before: Vec<AccountWaits>,
}

impl LongWaits {
    /// The time between two reports.
    const PERIOD: Nanos = Nanos::from_secs(10);
    /// The most accounts of one report.
    const ACCOUNTS_MAX: usize = 3;

    /// Returns the reports of waits over `bound` from `now` on.
    pub(super) fn new(bound: Nanos, now: Nanos, page: Arc<SharedPage>) -> Self {
        Self { bound, reported: now, before: read(&page), page }
    }

    /// Returns a line for each account that is reported, if a report is due.
    pub fn report(&mut self) -> Vec<String> {
        self.report_at(crate::monotonic())
    }

    fn report_at(&mut self, now: Nanos) -> Vec<String> {
        if now < self.reported.saturating_add(Self::PERIOD) {
            return Vec::new();
        }
        let seconds = now.saturating_sub(std::mem::replace(&mut self.reported, now)).as_secs_f64();
        let read = read(&self.page);
        let before = std::mem::replace(&mut self.before, read.clone());
        let mut long: Vec<_> = since(read, &before)
            .into_iter()
            .map(|account| (self.count_long(&account), account))
            .filter(|(count, _)| *count > 0)
            .collect();
        long.sort_by_key(|(count, _)| Reverse(*count));
        let line = |(count, account): (u64, AccountWaits)| {
            let longest = account.waits.buckets().last().map_or(Nanos::ZERO, |(middle, _)| middle);
            format!(
                "{count} of {} turns of {} that waited at the gate waited longer than {} in the \
                 last {seconds:.0} s, the longest about {longest}",
                account.waits.count(),
                account.name,
                self.bound,
            )
        };
        long.into_iter().take(Self::ACCOUNTS_MAX).map(line).collect()
    }

    /// Counts the waits of an account over the bound.
    fn count_long(&self, account: &AccountWaits) -> u64 {
        let long = account.waits.buckets().filter(|(middle, _)| *middle > self.bound);
        long.map(|(_, count)| u64::from(count)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oncall::{Rules, Runtime};
    use lull_oncall::{NameHash, Names, Settings};

    fn wait_of(page: &Page, user: &str, waited_ms: u64) {
        let names = Names { user: NameHash::from_bytes(user.as_bytes()), ..Names::default() };
        let row = page.accounts().open(&names);
        let (text, database) = (NameText::new(), NameText::new());
        text.set(user.as_bytes());
        database.set(b"shop");
        page.accounts().name(row, &text, &database);
        page.accounts().waited(row, waited_ms * 1_000_000);
    }

    #[test]
    fn accounts_are_read_since_the_agent_took_the_page_over() {
        let runtime = Runtime::start(&Settings::default(), &Rules::default()).unwrap();
        let page = &runtime.page;
        wait_of(page, "web", 5);
        let before = read(page);
        assert_eq!(since(read(page), &before), []);
        wait_of(page, "batch", 7);
        wait_of(page, "web", 9);
        page.accounts().waited(usize::MAX, 1_000_000);
        let seen = since(read(page), &before);
        let names: Vec<_> = seen.iter().map(|it| (it.name.as_str(), it.waits.count())).collect();
        assert_eq!(names, [("web@shop", 1), ("batch@shop", 1), ("others", 1)]);
        assert_eq!(runtime.account_waits().len(), 3);
        let (p50, p99) = seen[1].summary().wait_quantiles;
        assert!(p50 == p99 && p50.0.abs_diff(7_000_000) < 300_000, "{p50}");
    }

    #[test]
    fn accounts_that_are_shown_alike_are_one() {
        let runtime = Runtime::start(&Settings::default(), &Rules::default()).unwrap();
        let page = &runtime.page;
        // A client that changed its user, and names that are alike in what is kept of them.
        let long = "a".repeat(NAME_TEXT_BYTES);
        for user in ["first", "second"] {
            let names = Names { user: NameHash::from_bytes(user.as_bytes()), ..Names::default() };
            page.accounts().waited(page.accounts().open(&names), 1_000_000);
            wait_of(page, &format!("{long}{user}"), 1);
        }
        let seen = runtime.account_waits();
        let seen: Vec<_> = seen.iter().map(|it| (it.name.as_str(), it.waits.count())).collect();
        assert_eq!(seen, [("?@?", 2), (format!("{long}@shop").as_str(), 2)]);
    }

    #[test]
    fn a_server_that_always_writes_other_names_is_shown_under_a_bounded_number() {
        let mut shown = ShownNames::default();
        let account = |name: String| AccountWaits { name, waits: Counts::read([1].into_iter()) };
        let mut names = BTreeSet::new();
        for epoch in 0..100 {
            let accounts = (0..3).map(|row| account(format!("{epoch}@{row}")));
            let seen = shown.limit(accounts.collect());
            assert_eq!(seen.iter().map(|it| it.waits.count()).sum::<u64>(), 3);
            names.extend(seen.into_iter().map(|it| it.name));
        }
        assert!(names.len() == NAMES_MAX + 1 && names.contains(OTHERS), "{names:?}");
        let known = shown.limit(vec![account("0@0".to_owned())]);
        assert_eq!(known[0].name, "0@0");
    }

    #[test]
    fn a_name_that_would_break_a_line_or_a_label_is_shown_without_its_letters() {
        let runtime = Runtime::start(&Settings::default(), &Rules::default()).unwrap();
        wait_of(&runtime.page, "a\nb/c", 1);
        assert_eq!(runtime.account_waits()[0].name, "a?b?c@shop");
    }

    #[test]
    fn long_waits_are_reported_once_a_period_with_the_accounts_that_have_most() {
        let runtime = Runtime::start(&Settings::default(), &Rules::default()).unwrap();
        let page = &runtime.page;
        let at = |seconds| Nanos::from_secs(seconds);
        let shared = Arc::clone(&runtime.page);
        let mut long = LongWaits::new(Nanos::from_millis(50), at(100), shared);
        [10, 60, 80].into_iter().for_each(|ms| wait_of(page, "web", ms));
        wait_of(page, "batch", 10);
        assert_eq!(long.report_at(at(109)), [""; 0], "not due");
        let lines = long.report_at(at(110));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("2 of 3 turns of web@shop"), "{lines:?}");
        assert!(lines[0].contains("longer than 50ms in the last 10 s"), "{lines:?}");
        wait_of(page, "web", 10);
        assert_eq!(long.report_at(at(120)), [""; 0], "only short ones since");
        for number in 0..5 {
            wait_of(page, &format!("user{number}"), 90);
        }
        assert_eq!(long.report_at(at(130)).len(), 3);
    }
}
