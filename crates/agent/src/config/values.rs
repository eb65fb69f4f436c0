//! Checks of those values of an app that do not depend on how the app is found.

use super::schema::AppSection;

/// Longest name in bytes: the name of a load client's log contains it.
const NAME_MAX: usize = 200;

/// An invalid key and the reason.
type InvalidKey = (&'static str, String);

impl AppSection {
    /// Checks name, threads and address.
    ///
    /// # Errors
    /// The invalid key and what to write.
    pub(super) fn check_values(&self) -> Result<(), InvalidKey> {
        check_name(&self.name)?;
        if self.threads == Some(0) {
            let message = "is 0: write 1 or more, or leave it out for as many as the app has";
            return Err(("threads", message.to_owned()));
        }
        match &self.ready {
            Some(ready) if !is_address(ready) => Err((
                "ready",
                format!("`{ready}` is not an address: write HOST:PORT or unix:/path"),
            )),
            _ => Ok(()),
        }
    }
}

/// Checks the name of an app, which is also that of its log file.
fn check_name(name: &str) -> Result<(), InvalidKey> {
    let is_odd = |letter: char| letter.is_whitespace() || letter.is_control() || letter == '/';
    if name.is_empty() || name.contains(is_odd) {
        let message = "must be a word without blanks, slashes and control characters";
        return Err(("name", message.to_owned()));
    }
    if name.len() > NAME_MAX {
        return Err(("name", format!("is longer than {NAME_MAX} bytes: shorten it")));
    }
    Ok(())
}

/// Whether a text has the form of an address at which a program can be ready.
fn is_address(text: &str) -> bool {
    if let Some(path) = text.strip_prefix("unix:") {
        return !path.is_empty();
    }
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::located::Located;

    /// Returns the refusal of an app and a template that have these lines in place of the usual
    /// ones.
    fn refusal(replaced: &str, line: &str) -> String {
        const GOOD: &str = "[policy]\nname = \"unmanaged\"\n\
            [[app]]\nname = \"server\"\nclass = \"latency-critical\"\n\
            objectives = [{ p95 = \"4ms\" }]\nideal = \"2ms\"\nmax_load = 9.5\nsolo = 1.0\n\
            threads = 4\nready = \"[::1]:80\"\nstart = [\"true\"]\n\
            [[match]]\nname = \"w\"\nclass = \"best-effort\"\nsolo = 2.0\nexe = \"sleep\"\n";
        assert!(Config::from_located(Located::embedded("lull.toml", GOOD)).is_ok());
        assert!(GOOD.contains(replaced), "{replaced}");
        let text = GOOD.replace(replaced, line);
        let wrong = Config::from_located(Located::embedded("lull.toml", &text));
        wrong.expect_err(line).to_string()
    }

    #[test]
    fn numbers_that_no_app_has_are_refused_with_what_to_write() {
        for value in ["0", "-1", "nan", "inf", "-inf"] {
            let load = refusal("max_load = 9.5", &format!("max_load = {value}"));
            assert!(
                load.contains("8: app[0].max_load: is ") && load.contains("above zero"),
                "{load}"
            );
            let solo = refusal("solo = 1.0", &format!("solo = {value}"));
            assert!(solo.contains("9: app[0].solo: is "), "{solo}");
            let solo = refusal("solo = 2.0", &format!("solo = {value}"));
            assert!(solo.contains("16: match[0].solo: is "), "{solo}");
        }
        assert!(refusal("threads = 4", "threads = 0").contains("app[0].threads: is 0"));
        assert!(refusal("\"2ms\"", "\"0ms\"").contains("app[0].ideal: is zero"));
    }

    #[test]
    fn a_name_is_a_word_that_can_be_a_file_and_ready_an_address() {
        let long = "x".repeat(201);
        for name in ["", "a b", "a/b", "a\\u001b[31m", &long] {
            let wrong = refusal("\"server\"", &format!("\"{name}\""));
            assert!(wrong.contains("4: app[0].name: "), "{name}: {wrong}");
        }
        assert!(refusal("\"w\"", "\"\"").contains("14: match[0].name: must be a word"));
        for address in ["", "80", "localhost", ":80", "localhost:", "localhost:0", "unix:"] {
            let wrong = refusal("\"[::1]:80\"", &format!("{address:?}"));
            assert!(wrong.contains("ready: `") && wrong.contains("unix:/path"), "{wrong}");
        }
    }

    #[test]
    fn an_app_is_looked_for_by_something_that_can_be_found() {
        let place = |line: &str| refusal("start = [\"true\"]", line);
        for key in ["cgroup", "unit"] {
            let wrong = place(&format!("{key} = \"\""));
            assert!(wrong.contains(&format!("12: app[0].{key}: is empty")), "{wrong}");
        }
        assert!(place("cgroup = \"a/../b\"").contains("app[0].cgroup: leads upwards"));
        assert!(place("match = { exe = \"\" }").contains("app[0].match.exe: is empty"));
        assert!(refusal("\"sleep\"", "\"\"").contains("17: match[0].exe: is empty"));
    }

    #[test]
    fn a_promise_to_a_class_that_does_not_exist_is_refused() {
        let text = "[policy]\nname = \"unmanaged\"\n[[app]]\nname = \"db\"\n\
            class = \"latency-critical\"\nobjectives = [{ p99 = \"50ms\" }]\n\
            latency = \"preload\"\nconcurrency = \"pslo\"\nstart = [\"mariadbd\"]\n\
            client_class = [{ name = \"web\", match = [{ user = \"shop\" }] }]\n\
            [[app.promise]]\nclient_class = \"CLASS\"\nconnections = 4\n\
            objective = { p95 = \"20ms\" }\n";
        let config = |class: &str| {
            let text = text.replace("CLASS", class);
            Config::from_located(Located::embedded("lull.toml", &text))
        };
        assert!(config("others").is_ok() && config("web").is_ok());
        let wrong = config("shop").unwrap_err().to_string();
        let wanted = "lull.toml:12: app[0].promise[0].client_class: there is no class `shop`";
        assert!(wrong.starts_with(wanted), "{wrong}");
    }

    #[test]
    fn a_reference_of_another_kind_is_refused_in_plain_words() {
        let wrong = refusal("\"2ms\"", "\"measured\"");
        assert!(wrong.contains("expected \"measure\", or the value"), "{wrong}");
    }
}
