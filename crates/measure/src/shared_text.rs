//! A text of which every copy is the same memory.
//!
//! Hundreds of apps have thousands of values an epoch, each with a label, and most of those that
//! are missing have the same few reasons. A copy of such a text is a counted reference.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A text that never changes and is cheap to copy.
#[derive(Clone)]
pub struct SharedText(Held);

#[derive(Clone)]
enum Held {
    /// Part of the program.
    Fixed(&'static str),
    Counted(Arc<str>),
}

impl SharedText {
    /// The text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Held::Fixed(text) => text,
            Held::Counted(text) => text,
        }
    }
}

impl Deref for SharedText {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl From<&'static str> for SharedText {
    fn from(text: &'static str) -> Self {
        Self(Held::Fixed(text))
    }
}

impl From<String> for SharedText {
    fn from(text: String) -> Self {
        Self(Held::Counted(text.into()))
    }
}

impl fmt::Display for SharedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for SharedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl PartialEq for SharedText {
    fn eq(&self, other: &Self) -> bool {
        // Two copies of one text are equal without a comparison of their bytes.
        std::ptr::eq(self.as_str(), other.as_str()) || self.as_str() == other.as_str()
    }
}

impl Eq for SharedText {}

impl PartialEq<str> for SharedText {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for SharedText {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl Serialize for SharedText {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for SharedText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_the_same_memory_and_equal_texts_are_equal_wherever_they_are() {
        let made = SharedText::from("a text".to_owned());
        let copy = made.clone();
        assert!(std::ptr::eq(made.as_str(), copy.as_str()));
        assert_eq!(made, copy);
        assert_eq!(made, SharedText::from("a text"));
        assert_ne!(made, SharedText::from("another text"));
        assert_eq!(
            (format!("{made}"), format!("{made:?}")),
            ("a text".into(), "\"a text\"".into())
        );
    }

    #[test]
    fn it_is_written_and_read_as_a_plain_text() {
        let text = SharedText::from("a \"text\"");
        let json = serde_json::to_string(&text).unwrap();
        assert_eq!(json, r#""a \"text\"""#);
        assert_eq!(serde_json::from_str::<SharedText>(&json).unwrap(), text);
    }
}
