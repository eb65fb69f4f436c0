//! The `LatencyObjective`s of all namespaces: a bounded number applies, and others wait for room.

use crate::objective::ObjectiveRule;
use crate::pods::PodFacts;
use kube::core::SelectorExt;
use std::collections::{BTreeMap, BTreeSet};

/// Most rules that count.
const RULES_MAX: usize = 4_096;
/// Most of one namespace.
const NAMESPACE_RULES_MAX: usize = 64;
/// Most that wait for room. Those beyond it are taken with the next listing.
const WAITING_MAX: usize = 1_024;

/// Namespace and name of a `LatencyObjective`.
pub(crate) type RuleKey = (String, String);

/// All rules.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    counted: BTreeMap<RuleKey, ObjectiveRule>,
    waiting: BTreeMap<RuleKey, ObjectiveRule>,
}

impl Rules {
    /// Adds or replaces a rule.
    ///
    /// # Errors
    /// If there is no room: it does not count until there is.
    pub(crate) fn insert(&mut self, key: RuleKey, rule: ObjectiveRule) -> Result<(), String> {
        if self.has_room_for(&key) {
            self.waiting.remove(&key);
            self.counted.insert(key, rule);
            return Ok(());
        }
        if self.waiting.len() < WAITING_MAX || self.waiting.contains_key(&key) {
            self.waiting.insert(key, rule);
        }
        Err(format!("{RULES_MAX} are the most, and {NAMESPACE_RULES_MAX} of a namespace"))
    }

    /// Removes a rule; returns the one that has waited and counts in its place, if there is one.
    pub(crate) fn remove(&mut self, key: &RuleKey) -> Option<RuleKey> {
        self.waiting.remove(key);
        self.counted.remove(key)?;
        let next = self.waiting.keys().find(|key| self.has_room_for(key)).cloned()?;
        let rule = self.waiting.remove(&next)?;
        self.counted.insert(next.clone(), rule);
        Some(next)
    }

    /// Forgets those that wait and are not of a listing; returns those that count and are not.
    pub(crate) fn unlisted(&mut self, listed: &BTreeSet<RuleKey>) -> Vec<RuleKey> {
        self.waiting.retain(|key, _| listed.contains(key));
        self.counted.keys().filter(|key| !listed.contains(*key)).cloned().collect()
    }

    /// The rule that selects a pod.
    ///
    /// # Errors
    /// If two do.
    pub(crate) fn of_pod(&self, pod: &PodFacts) -> Result<Option<&ObjectiveRule>, String> {
        let inside = self.inside(&pod.namespace);
        let mut all = inside.filter(|(_, rule)| rule.selector.matches(&pod.labels));
        match (all.next(), all.next()) {
            (Some(((_, first), _)), Some(((_, second), _))) => Err(format!(
                "the LatencyObjectives `{first}` and `{second}` both select it: narrow one of them"
            )),
            (rule, _) => Ok(rule.map(|(_, rule)| rule)),
        }
    }

    /// Returns the rules of a namespace that apply.
    fn inside(&self, namespace: &str) -> impl Iterator<Item = (&RuleKey, &ObjectiveRule)> {
        let begin = (namespace.to_owned(), String::new());
        self.counted.range(begin..).take_while(move |((of, _), _)| of == namespace)
    }

    /// Whether a rule may count: it does already, or there is room for one more.
    fn has_room_for(&self, key: &RuleKey) -> bool {
        self.counted.contains_key(key)
            || (self.counted.len() < RULES_MAX && self.inside(&key.0).count() < NAMESPACE_RULES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::LatencyObjectiveSpec;
    use serde_json::json;

    fn key(namespace: &str, name: &str) -> RuleKey {
        (namespace.to_owned(), name.to_owned())
    }

    fn insert(rules: &mut Rules, namespace: &str, name: &str) -> Result<(), String> {
        let spec: LatencyObjectiveSpec = serde_json::from_value(json!({
            "selector": { "matchLabels": { "tier": "web" } }, "objectives": ["p99=50ms"],
        }))
        .unwrap();
        rules.insert(key(namespace, name), spec.rule().unwrap())
    }

    #[test]
    fn rules_are_bounded_by_namespace_and_in_all_and_those_that_wait_take_free_room() {
        let mut rules = Rules::default();
        for number in 0..NAMESPACE_RULES_MAX {
            insert(&mut rules, "one", &number.to_string()).unwrap();
        }
        let why = insert(&mut rules, "one", "more").unwrap_err();
        assert!(why.ends_with("64 of a namespace"), "{why}");
        assert_eq!(insert(&mut rules, "one", "0"), Ok(()), "it has its room");
        for number in 0..RULES_MAX - NAMESPACE_RULES_MAX {
            insert(&mut rules, &number.to_string(), "web").unwrap();
        }
        assert_eq!(rules.counted.len(), RULES_MAX);
        assert!(insert(&mut rules, "full", "web").is_err());
        assert_eq!(rules.remove(&key("0", "web")), Some(key("full", "web")), "`one` is full");
        assert_eq!(rules.remove(&key("one", "0")), Some(key("one", "more")));
        assert_eq!(rules.remove(&key("one", "0")), None, "it is gone already");
        assert_eq!(rules.remove(&key("one", "1")), None, "no rule waits");
        assert_eq!(rules.counted.len(), RULES_MAX - 1);
    }

    #[test]
    fn rules_that_wait_are_bounded_and_end_with_a_listing_that_lacks_them() {
        let mut rules = Rules::default();
        for number in 0..NAMESPACE_RULES_MAX + WAITING_MAX + 3 {
            let _ = insert(&mut rules, "one", &format!("{number:04}"));
        }
        assert_eq!(rules.waiting.len(), WAITING_MAX);
        let listed = BTreeSet::from([key("one", "0000"), key("one", "0070")]);
        assert_eq!(rules.unlisted(&listed).len(), NAMESPACE_RULES_MAX - 1);
        assert_eq!(rules.remove(&key("one", "0001")), Some(key("one", "0070")));
        assert!(rules.waiting.is_empty());
    }
}
