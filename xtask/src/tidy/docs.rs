//! Public items are documented, reachable or not.
//!
//! The compiler's `missing_docs` stops at what another crate can reach; the
//! binary and private modules are read by people too.

use super::source::Rust;
use super::tree::Tree;
use super::{Report, Rule, source};
use syn::visit::{self, Visit};
use syn::{
    Attribute, Fields, ImplItem, Item, ItemEnum, ItemImpl, ItemTrait, TraitItem, Visibility,
};

pub(super) const RULE: Rule =
    Rule { name: "docs", about: "a public item, field or variant has a doc comment", check };

fn check(tree: &Tree, report: &mut Report) {
    for (file, rust) in tree.rust() {
        let mut items = Undocumented { rust, found: Vec::new() };
        items.visit_file(&rust.ast);
        for (line, name) in items.found {
            report.add(&file.path, line, format!("{name} is public; say what it is with ///"));
        }
    }
}

struct Undocumented<'a> {
    rust: &'a Rust,
    found: Vec<(usize, String)>,
}

impl Undocumented<'_> {
    fn public(&mut self, visibility: &Visibility, attributes: &[Attribute], name: &syn::Ident) {
        if matches!(visibility, Visibility::Public(_)) {
            self.documented(attributes, name);
        }
    }

    fn documented(&mut self, attributes: &[Attribute], name: &syn::Ident) {
        let line = name.span().start().line;
        let has_doc = attributes.iter().any(|attribute| attribute.path().is_ident("doc"));
        if !has_doc && !self.rust.is_test(line) {
            self.found.push((line, name.to_string()));
        }
    }

    /// Named fields; the one of a tuple is described by its type.
    fn fields(&mut self, fields: &Fields) {
        for field in fields {
            if let Some(name) = &field.ident {
                self.public(&field.vis, &field.attrs, name);
            }
        }
    }
}

impl<'a> Visit<'a> for Undocumented<'_> {
    fn visit_item(&mut self, item: &'a Item) {
        if let Some((visibility, name)) = declared(item) {
            self.public(visibility, source::attributes_of(item), name);
        }
        if let Item::Struct(item) = item {
            self.fields(&item.fields);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_enum(&mut self, item: &'a ItemEnum) {
        if matches!(item.vis, Visibility::Public(_)) {
            for variant in &item.variants {
                self.documented(&variant.attrs, &variant.ident);
            }
        }
    }

    fn visit_item_trait(&mut self, item: &'a ItemTrait) {
        if matches!(item.vis, Visibility::Public(_)) {
            for inner in &item.items {
                match inner {
                    TraitItem::Fn(inner) => self.documented(&inner.attrs, &inner.sig.ident),
                    TraitItem::Const(inner) => self.documented(&inner.attrs, &inner.ident),
                    TraitItem::Type(inner) => self.documented(&inner.attrs, &inner.ident),
                    _ => {}
                }
            }
        }
        visit::visit_item_trait(self, item);
    }

    fn visit_item_impl(&mut self, item: &'a ItemImpl) {
        for inner in &item.items {
            match inner {
                ImplItem::Fn(inner) => self.public(&inner.vis, &inner.attrs, &inner.sig.ident),
                ImplItem::Const(inner) => self.public(&inner.vis, &inner.attrs, &inner.ident),
                _ => {}
            }
        }
        visit::visit_item_impl(self, item);
    }
}

/// The visibility and name of an item that needs its own doc comment.
///
/// A module in another file has its header, and a `use` has the item it names.
fn declared(item: &Item) -> Option<(&Visibility, &syn::Ident)> {
    match item {
        Item::Const(item) => Some((&item.vis, &item.ident)),
        Item::Enum(item) => Some((&item.vis, &item.ident)),
        Item::Fn(item) => Some((&item.vis, &item.sig.ident)),
        Item::Mod(item) if item.content.is_some() => Some((&item.vis, &item.ident)),
        Item::Static(item) => Some((&item.vis, &item.ident)),
        Item::Struct(item) => Some((&item.vis, &item.ident)),
        Item::Trait(item) => Some((&item.vis, &item.ident)),
        Item::Type(item) => Some((&item.vis, &item.ident)),
        Item::Union(item) => Some((&item.vis, &item.ident)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_file;
    use super::*;

    #[test]
    fn each_kind_of_public_item_needs_a_doc_comment() {
        let undocumented = [
            "pub fn a() {}",
            "pub struct A;",
            "/// A.\npub struct A { pub b: u8 }",
            "/// A.\npub enum A { B }",
            "/// A.\npub trait A { fn b(); }",
            "pub const A: u8 = 1;",
            "pub type A = u8;",
            "pub mod a { }",
            "mod a { pub fn b() {} }",
            "impl A { pub fn b() {} }",
        ];
        for text in undocumented {
            assert_eq!(in_file(&RULE, "a.rs", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn documented_private_and_test_items_pass() {
        let fine = [
            "/// A.\npub fn a() {}",
            "pub(crate) fn a() {}",
            "/// A.\npub struct A(pub u8);",
            "/// A.\npub struct A { b: u8 }",
            "/// A.\npub enum A {\n/// B.\nB }",
            "pub mod a;",
            "pub use a::b;",
            "impl T for A { fn b() {} }",
            "enum A { B }",
            "#[cfg(test)]\nmod tests { pub fn a() {} }",
        ];
        for text in fine {
            assert_eq!(in_file(&RULE, "a.rs", text), [""; 0], "{text}");
        }
    }
}
