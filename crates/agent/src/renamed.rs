//! Former names of keys, so that the error for an old config or scenario names the new one.

/// A key that has another name now.
struct Renamed {
    /// The former path, without the indices of sections: `app.gate.cap`.
    former: &'static str,
    /// The present path.
    now: &'static str,
}

/// Every key that was renamed.
const RENAMED: &[Renamed] = &[
    Renamed { former: "app.regulator", now: "`concurrency`" },
    Renamed { former: "app.admission", now: "`concurrency`" },
    Renamed { former: "app.gate.cap", now: "`concurrency`, a key of the app beside its `gate`" },
    Renamed { former: "scheme.regulator", now: "`admission`" },
    Renamed { former: "placed", now: "`[dispatch]`" },
    Renamed { former: "placer", now: "`dispatcher`" },
];

/// Returns the present name of a key such as `app[1].gate.cap`, if it was renamed.
pub(crate) fn new_name(key: &str) -> Option<&'static str> {
    let is_number = |letter: char| matches!(letter, '[' | ']') || letter.is_ascii_digit();
    let plain = key.replace(is_number, "");
    RENAMED.iter().find(|renamed| renamed.former == plain).map(|renamed| renamed.now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::located::Located;
    use lull_lab::scenario::{DispatchFile, GatedFile, ScenarioFile};
    use serde::de::DeserializeOwned;

    fn scenario<T: DeserializeOwned>(text: &str) -> String {
        let read = Located::embedded("old.toml", text).parse::<T>();
        read.err().map(|error| error.to_string()).unwrap_or_default()
    }

    fn config(app: &str) -> String {
        let text = format!(
            "[policy]\nname = \"arq\"\n[[app]]\nname = \"a\"\nclass = \"best-effort\"\n{app}\n"
        );
        let read = Config::from_located(Located::embedded("old.toml", &text));
        read.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn an_error_for_a_former_key_names_the_new_one() {
        let cases = [
            config("regulator = \"auto\""),
            config("admission = \"auto\""),
            config("gate = { cap = 4 }"),
            scenario::<GatedFile>("[[scheme]]\nregulator = { name = \"open\" }"),
            scenario::<ScenarioFile>("[placed]\n"),
            scenario::<DispatchFile>("[[placer]]\nname = \"ee\""),
        ];
        assert_eq!(cases.len(), RENAMED.len());
        for (error, renamed) in cases.iter().zip(RENAMED) {
            let words = format!("is called {} now", renamed.now);
            assert!(error.contains(&words), "{}: {error}", renamed.former);
        }
    }

    #[test]
    fn other_keys_have_no_new_name() {
        assert_eq!(new_name("app[12].gate.cap"), Some(RENAMED[2].now));
        assert_eq!(new_name("app[0].cap"), None);
        assert_eq!(new_name("regulator"), None);
    }
}
