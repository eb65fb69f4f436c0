//! Glob patterns for the names of cgroups, units, programs and users.
//!
//! A pattern covers the whole name. `*` matches any characters but `/`, `?` one of them,
//! `[ab]` one of a set and `{a,b}` one of several texts. A backslash is an ordinary
//! character, because systemd writes names with backslashes.

use globset::{GlobBuilder, GlobMatcher};

/// A glob that is not a glob.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{glob}` is not a pattern: {message}")]
pub struct GlobError {
    /// The glob as it was written.
    pub glob: String,
    /// The error.
    pub message: String,
}

/// Whether a name has a character that makes it a pattern.
pub(super) fn is_glob(name: &str) -> bool {
    name.contains(['*', '?', '[', '{'])
}

/// Checks a name that may be a pattern.
///
/// # Errors
/// [`GlobError`].
pub fn check_glob(name: &str) -> Result<(), GlobError> {
    of_path(name).map(drop)
}

/// Compiles a pattern in which `*` does not match `/`.
pub(super) fn of_path(glob: &str) -> Result<GlobMatcher, GlobError> {
    compile(glob, true)
}

/// Compiles a pattern in which `*` matches any character.
pub(super) fn of_text(glob: &str) -> Result<GlobMatcher, GlobError> {
    compile(glob, false)
}

fn compile(glob: &str, separates: bool) -> Result<GlobMatcher, GlobError> {
    let mut builder = GlobBuilder::new(glob);
    let built = builder.literal_separator(separates).backslash_escape(false).build();
    let wrong = |error: globset::Error| GlobError {
        glob: glob.to_owned(),
        message: error.kind().to_string(),
    };
    Ok(built.map_err(wrong)?.compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_the_whole_name_and_keeps_backslashes() {
        let web = of_path("web-*.service").unwrap();
        assert!(web.is_match("web-a.service") && !web.is_match("my-web-a.service"));
        assert!(!of_path("a/*").unwrap().is_match("a/b/c"));
        assert!(of_text("*--port 80*").unwrap().is_match("/bin/x --port 80 -v"));
        assert!(of_path(r"dev-\x2d*").unwrap().is_match(r"dev-\x2dab"));
        assert!(of_path("a[").is_err());
    }
}
