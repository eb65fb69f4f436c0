//! Licence expressions: SPDX, and the older `MIT/Apache-2.0`.

/// Returns whether a list of licences allows an expression: of `OR` one part, of `AND` both.
pub(super) fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { tokens: &tokens, allowed };
    let is_allowed = reader.either();
    is_allowed == Some(true) && reader.tokens.is_empty()
}

struct Reader<'a> {
    tokens: &'a [&'a str],
    allowed: &'a [String],
}

/// Each returns `None` if the expression is malformed.
impl Reader<'_> {
    fn either(&mut self) -> Option<bool> {
        let mut is_allowed = self.both()?;
        while self.take("OR") {
            is_allowed |= self.both()?;
        }
        Some(is_allowed)
    }

    fn both(&mut self) -> Option<bool> {
        let mut is_allowed = self.one()?;
        while self.take("AND") {
            is_allowed &= self.one()?;
        }
        Some(is_allowed)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let is_allowed = self.either()?;
            return self.take(")").then_some(is_allowed);
        }
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        let mut licence = (*first).to_owned();
        if self.take("WITH") {
            let (exception, rest) = self.tokens.split_first()?;
            self.tokens = rest;
            licence = format!("{licence} WITH {exception}");
        }
        Some(self.allowed.contains(&licence))
    }

    fn take(&mut self, token: &str) -> bool {
        let is_next = self.tokens.first() == Some(&token);
        if is_next {
            self.tokens = &self.tokens[1..];
        }
        is_next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_has_them() {
        let allowed = ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "(GPL-3.0 OR MIT) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        ] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "GPL-3.0 OR MIT AND GPL-2.0",
            "Apache-2.0",
            "MIT WITH",
            "(MIT",
            "MIT GPL-3.0",
        ] {
            assert!(!is_allowed(bad, &allowed), "{bad}");
        }
    }
}
