//! The modules of one crate, and which module uses which.
//!
//! Paths are resolved as the compiler does it for modules: `crate::`, `super::`, `self::`,
//! a child module's name, and names that a module imports or re-exports (a path through a
//! re-export leads to the module that defines the item). Paths in macros are read from their
//! tokens. Test code is left out.

use super::source::{Rust, Token};
use super::tree::File;
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, UseTree};

/// The names of the modules from the crate's root to one of them.
pub(super) type ModulePath = Vec<String>;

/// One path in the source that leads from one module into another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    pub(super) from: ModulePath,
    pub(super) to: ModulePath,
    /// The file and line of the path.
    pub(super) file: String,
    pub(super) line: usize,
}

/// Re-exports may lead to re-exports; more than this is a loop of imports.
const HOPS_MAX: usize = 8;

/// The modules of a crate.
#[derive(Default)]
pub(super) struct Modules {
    modules: BTreeMap<ModulePath, Module>,
}

#[derive(Default)]
struct Module {
    /// The path that each imported name leads to.
    imports: BTreeMap<String, ModulePath>,
    /// The modules whose names are all imported.
    globs: Vec<ModulePath>,
    /// The names of the items that the module defines.
    items: BTreeSet<String>,
    /// The paths that are written in the module, made absolute.
    paths: Vec<Written>,
}

/// A path as it is written, from the crate's root on.
struct Written {
    path: ModulePath,
    file: String,
    line: usize,
}

impl Modules {
    /// Reads the files of a crate, which are below the directory `src`.
    pub(super) fn read<'a>(src: &str, files: impl Iterator<Item = (&'a File, &'a Rust)>) -> Self {
        let mut all = Self::default();
        let files: Vec<_> = files.filter_map(|(f, r)| Some((module_of(src, f)?, f, r))).collect();
        for (path, ..) in &files {
            all.modules.entry(path.clone()).or_default();
        }
        for (path, file, rust) in &files {
            all.read_file(path, file, rust);
        }
        all
    }

    fn read_file(&mut self, home: &ModulePath, file: &File, rust: &Rust) {
        let mut reader = Reader { rust, at: home.clone(), uses: Vec::new(), inline: Vec::new() };
        reader.visit_file(&rust.ast);
        let (uses, inline) = (reader.uses, reader.inline);
        for item in &rust.ast.items {
            if let Some(name) = name_of(item) {
                self.modules.entry(home.clone()).or_default().items.insert(name);
            }
        }
        for (at, _) in &inline {
            self.modules.entry(at.clone()).or_default();
        }
        for leaf in uses {
            self.import(leaf, &file.path);
        }
        for (segments, line) in token_paths(&rust.tokens) {
            if rust.is_test(line) {
                continue;
            }
            let inside = inline.iter().rfind(|(_, lines)| lines.contains(&line));
            let at = inside.map_or(home, |(at, _)| at);
            if let Some(path) = self.absolute(at, &segments) {
                let written = Written { path, file: file.path.clone(), line };
                self.modules.entry(at.clone()).or_default().paths.push(written);
            }
        }
    }

    fn import(&mut self, leaf: Leaf, file: &str) {
        let Some(path) = self.absolute(&leaf.at, &leaf.path) else { return };
        let module = self.modules.entry(leaf.at).or_default();
        match leaf.name {
            Some(name) => drop(module.imports.insert(name, path.clone())),
            None => module.globs.push(path.clone()),
        }
        module.paths.push(Written { path, file: file.to_owned(), line: leaf.line });
    }

    /// A path from the crate's root; none if it leads out of the crate.
    fn absolute(&self, at: &ModulePath, path: &[String]) -> Option<ModulePath> {
        let mut base = at.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => base.clear(),
            "self" | "super" => {}
            name => {
                let child = [at.as_slice(), &[name.to_owned()]].concat();
                return self.modules.contains_key(&child).then(|| [at, path].concat());
            }
        }
        while let Some(first) = rest.first() {
            match first.as_str() {
                "crate" | "self" => {}
                "super" => drop(base.pop()?),
                _ => break,
            }
            rest = &rest[1..];
        }
        Some([&base, rest].concat())
    }

    /// The module in which the item at the end of an absolute path is defined.
    fn defining(&self, path: &[String], hops: usize) -> ModulePath {
        let mut at = ModulePath::new();
        for (name, depth) in path.iter().zip(1..) {
            let child = [at.as_slice(), std::slice::from_ref(name)].concat();
            if self.modules.contains_key(&child) {
                at = child;
                continue;
            }
            let Some(found) = self.modules.get(&at).filter(|_| hops < HOPS_MAX) else { break };
            if found.items.contains(name) {
                break;
            }
            if let Some(import) = found.imports.get(name) {
                return self.defining(&[import, &path[depth..]].concat(), hops + 1);
            }
            let defines = |glob: &&ModulePath| {
                let target = self.defining(glob, hops + 1);
                self.modules.get(&target).is_some_and(|module| module.items.contains(name))
            };
            if let Some(glob) = found.globs.iter().find(defines) {
                return self.defining(glob, hops + 1);
            }
            break;
        }
        at
    }

    /// All uses of another module.
    pub(super) fn uses(&self) -> BTreeSet<Use> {
        let mut all = BTreeSet::new();
        for (from, module) in &self.modules {
            for Written { path, file, line } in &module.paths {
                let to = self.defining(path, 0);
                if to != *from {
                    all.insert(Use { from: from.clone(), to, file: file.clone(), line: *line });
                }
            }
        }
        all
    }
}

/// The module that a file of `src` is; none for test code and for programs of their own.
fn module_of(src: &str, file: &File) -> Option<ModulePath> {
    let inner = file.path.strip_prefix(src)?.strip_prefix('/')?.strip_suffix(".rs")?;
    if inner.starts_with("bin/") || file.rust.as_ref()?.only_tests {
        return None;
    }
    let mut path: ModulePath = inner.split('/').map(str::to_owned).collect();
    let is_root = path.len() == 1 && ["lib", "main"].contains(&path[0].as_str());
    if is_root || path.last().is_some_and(|last| last == "mod") {
        path.pop();
    }
    Some(path)
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// One name of a `use`, or all names of a module.
struct Leaf {
    at: ModulePath,
    path: ModulePath,
    /// The name that it gets here; none for `*`.
    name: Option<String>,
    line: usize,
}

/// Finds the `use` items and the inline modules of a file.
struct Reader<'a> {
    rust: &'a Rust,
    at: ModulePath,
    uses: Vec<Leaf>,
    inline: Vec<(ModulePath, std::ops::RangeInclusive<usize>)>,
}

impl Reader<'_> {
    fn leaves(&mut self, tree: &UseTree, path: &mut ModulePath, line: usize) {
        let mut leaf = |path: ModulePath, name: Option<String>| {
            self.uses.push(Leaf { at: self.at.clone(), path, name, line });
        };
        match tree {
            UseTree::Path(step) => {
                path.push(step.ident.to_string());
                self.leaves(&step.tree, path, line);
                path.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.leaves(tree, path, line));
            }
            UseTree::Name(name) if name.ident == "self" => leaf(path.clone(), path.last().cloned()),
            UseTree::Name(name) => leaf(joined(path, &name.ident), Some(name.ident.to_string())),
            UseTree::Rename(pair) if pair.ident == "self" => {
                leaf(path.clone(), Some(pair.rename.to_string()));
            }
            UseTree::Rename(pair) => {
                leaf(joined(path, &pair.ident), Some(pair.rename.to_string()));
            }
            UseTree::Glob(_) => leaf(path.clone(), None),
        }
    }
}

fn joined(path: &[String], last: &syn::Ident) -> ModulePath {
    [path, &[last.to_string()]].concat()
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let line = item.use_token.span.start().line;
        if !self.rust.is_test(line) {
            self.leaves(&item.tree, &mut ModulePath::new(), line);
        }
    }

    fn visit_item_mod(&mut self, module: &'a ItemMod) {
        let first = module.mod_token.span.start().line;
        let Some((brace, _)) = &module.content else { return };
        if self.rust.is_test(first) {
            return;
        }
        self.at.push(module.ident.to_string());
        self.inline.push((self.at.clone(), first..=brace.span.close().start().line));
        visit::visit_item_mod(self, module);
        self.at.pop();
    }
}

/// The paths in a file's tokens that begin with `crate`, `self` or `super`, with their lines.
fn token_paths(tokens: &[Token]) -> impl Iterator<Item = (ModulePath, usize)> {
    let is_begin = |token: &Token| ["crate", "self", "super"].contains(&token.text.as_str());
    let begins = tokens.iter().enumerate().filter(move |(_, token)| is_begin(token));
    begins.filter_map(|(at, token)| {
        let mut path = vec![token.text.clone()];
        let mut rest = &tokens[at + 1..];
        while let [one, two, name, after @ ..] = rest
            && one.text == ":"
            && two.text == ":"
            && name.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
        {
            path.push(name.text.clone());
            rest = after;
        }
        (path.len() > 1).then_some((path, token.line))
    })
}
