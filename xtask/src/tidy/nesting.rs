//! Functions that can be read from top to bottom: shallow, with few parameters.

use super::tree::Tree;
use super::{Report, Rule};
use syn::visit::{self, Visit};
use syn::{Expr, ExprIf, FnArg, ImplItemFn, ItemFn, Signature, TraitItemFn};

pub(super) const DEPTH: Rule = Rule {
    name: "nesting",
    about: "control flow in a function nests at most 4 deep",
    check: check_depth,
};

pub(super) const PARAMETERS: Rule = Rule {
    name: "parameters",
    about: "a function has at most 6 parameters besides self",
    check: check_parameters,
};

const DEPTH_MAX: usize = 4;
const PARAMETERS_MAX: usize = 6;

fn check_depth(tree: &Tree, report: &mut Report) {
    each_function(tree, |path, function| {
        if function.depth > DEPTH_MAX {
            let what = format!(
                "{} nests {} deep, more than {DEPTH_MAX}; return early, or name the inner part",
                function.name, function.depth
            );
            report.add(path, function.line, what);
        }
    });
}

fn check_parameters(tree: &Tree, report: &mut Report) {
    each_function(tree, |path, function| {
        if function.parameters > PARAMETERS_MAX {
            let what = format!(
                "{} has {} parameters, more than {PARAMETERS_MAX}; \
                 make those that belong together a struct",
                function.name, function.parameters
            );
            report.add(path, function.line, what);
        }
    });
}

fn each_function(tree: &Tree, mut seen: impl FnMut(&str, &Function)) {
    for (file, rust) in tree.rust() {
        let mut functions = Functions::default();
        functions.visit_file(&rust.ast);
        functions.done.iter().for_each(|function| seen(&file.path, function));
    }
}

/// The shape of one function.
struct Function {
    name: String,
    line: usize,
    parameters: usize,
    /// Deepest nesting of `if`, `match` and loops; a chain of `else if` is one level.
    depth: usize,
}

#[derive(Default)]
struct Functions {
    done: Vec<Function>,
    level: usize,
    deepest: usize,
}

impl Functions {
    /// Visits a function's body on its own: code outside does not count.
    fn function(&mut self, signature: &Signature, body: impl FnOnce(&mut Self)) {
        let outer = (self.level, self.deepest);
        (self.level, self.deepest) = (0, 0);
        body(self);
        let is_receiver = |input: &&FnArg| matches!(input, FnArg::Receiver(_));
        self.done.push(Function {
            name: signature.ident.to_string(),
            line: signature.fn_token.span.start().line,
            parameters: signature.inputs.len()
                - signature.inputs.iter().filter(is_receiver).count(),
            depth: self.deepest,
        });
        (self.level, self.deepest) = outer;
    }

    fn nested(&mut self, inner: impl FnOnce(&mut Self)) {
        self.level += 1;
        self.deepest = self.deepest.max(self.level);
        inner(self);
        self.level -= 1;
    }

    fn chain(&mut self, branch: &ExprIf) {
        self.visit_expr(&branch.cond);
        self.nested(|inner| inner.visit_block(&branch.then_branch));
        match branch.else_branch.as_ref().map(|(_, otherwise)| &**otherwise) {
            Some(Expr::If(next)) => self.chain(next),
            Some(last) => self.nested(|inner| inner.visit_expr(last)),
            None => {}
        }
    }
}

impl<'a> Visit<'a> for Functions {
    fn visit_item_fn(&mut self, function: &'a ItemFn) {
        self.function(&function.sig, |inner| visit::visit_block(inner, &function.block));
    }

    fn visit_impl_item_fn(&mut self, function: &'a ImplItemFn) {
        self.function(&function.sig, |inner| visit::visit_impl_item_fn(inner, function));
    }

    fn visit_trait_item_fn(&mut self, function: &'a TraitItemFn) {
        self.function(&function.sig, |inner| visit::visit_trait_item_fn(inner, function));
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        match expression {
            Expr::If(branch) => self.chain(branch),
            Expr::Match(_) | Expr::ForLoop(_) | Expr::While(_) | Expr::Loop(_) => {
                self.nested(|inner| visit::visit_expr(inner, expression));
            }
            _ => visit::visit_expr(self, expression),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_file;
    use super::*;

    fn nested(levels: usize) -> String {
        let (open, close) = ("for x in y { ".repeat(levels - 1), " }".repeat(levels - 1));
        format!("impl A {{\n    fn deep(&self) {{ {open}if x {{ f() }}{close} }}\n}}\n")
    }

    #[test]
    fn four_levels_pass_and_five_fail() {
        assert!(in_file(&DEPTH, "a.rs", &nested(4)).is_empty());
        let found = in_file(&DEPTH, "a.rs", &nested(5));
        assert!(found[0].starts_with("a.rs:2: deep nests 5 deep"), "{found:?}");
    }

    #[test]
    fn a_chain_of_else_if_is_one_level() {
        let text =
            "fn a() { if p {} else if q {} else if r {} else if s {} else if t {} else {} }\n";
        assert!(in_file(&DEPTH, "a.rs", text).is_empty());
    }

    #[test]
    fn a_function_in_a_function_is_counted_from_zero() {
        let text = "fn a() { loop { loop { loop { fn b() { loop { loop { } } } } } } }\n";
        assert!(in_file(&DEPTH, "a.rs", text).is_empty());
    }

    #[test]
    fn six_parameters_besides_self_pass_and_seven_fail() {
        let good = "impl A { fn a(&self, b: B, c: C, d: D, e: E, f: F, g: G) {} }\n";
        assert!(in_file(&PARAMETERS, "a.rs", good).is_empty());
        let bad = "trait T { fn a(b: B, c: C, d: D, e: E, f: F, g: G, h: H); }\n";
        assert_eq!(in_file(&PARAMETERS, "a.rs", bad).len(), 1);
    }
}
