//! Errors: a request that cannot be carried out as it was made, and errors in words.

/// A value that the caller handed in cannot be used; the program exits with status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// An error and its causes in one line. A cause whose words are in the line already is left out,
/// since many errors quote their cause, some with advice behind it.
pub fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let words = cause.to_string();
        if text.is_empty() {
            text = words;
        } else if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use std::io;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read `x`: {source}")]
    struct Quoting {
        source: io::Error,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot connect: {source}; is the server running?")]
    struct Advising {
        source: io::Error,
    }

    #[test]
    fn a_cause_that_is_followed_by_advice_is_described_once() {
        let error = Advising { source: io::Error::other("refused") };
        let words = "cannot connect: refused; is the server running?";
        assert_eq!(describe(&error.into()), words);
    }

    #[test]
    fn a_cause_that_an_error_quotes_is_described_once() {
        let quoting = || Quoting { source: io::Error::other("no such device") };
        let error = anyhow::Error::from(quoting());
        assert_eq!(format!("{error:#}").matches("no such device").count(), 2);
        assert_eq!(describe(&error), "cannot read `x`: no such device");
        let outer = Err::<(), _>(quoting()).context("the app `a` cannot start").unwrap_err();
        assert_eq!(describe(&outer), "the app `a` cannot start: cannot read `x`: no such device");
        let plain = Err::<(), _>(io::Error::other("full")).context("cannot write").unwrap_err();
        assert_eq!(describe(&plain), "cannot write: full");
    }
}
