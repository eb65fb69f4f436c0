//! The orders of an operator to a running agent.

use serde::Deserialize;

/// A request, as JSON: `{"do": "pause"}`, `{"do": "policy", "name": "arq"}`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum Command {
    /// Stop deciding; knobs keep their settings.
    Pause,
    /// Follow the policy again.
    Resume,
    /// Put every knob back, and pause.
    Restore,
    /// Put every knob back and follow another policy.
    Policy {
        /// Its name.
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_and_others_refused() {
        let read = |text: &str| serde_json::from_str::<Command>(text);
        assert_eq!(read(r#"{"do":"pause"}"#).unwrap(), Command::Pause);
        let policy = Command::Policy { name: "arq".to_owned() };
        assert_eq!(read(r#"{"do":"policy","name":"arq"}"#).unwrap(), policy);
        for wrong in [r#"{"do":"halt"}"#, r#"{"do":"policy"}"#, "{}", "pause", ""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
