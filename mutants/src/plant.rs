//! Rewrites one file: each place with faults becomes a choice between what was there and them.

use std::collections::{HashMap, HashSet};

use proc_macro2::{LineColumn, TokenStream};
use quote::{ToTokens, quote};
use serde::{Deserialize, Serialize};
use syn::spanned::Spanned;
use syn::token::Comma;
use syn::visit_mut::{self, VisitMut};
use syn::{Arm, BinOp, Block, Expr, ExprStruct, Signature, parse_quote};

/// Longer operands are evaluated before the choice and not written again in each of its arms: nested choices would grow
/// with a power.
const LONG: usize = 600;

/// Line and column, both from 1.
type Position = (usize, usize);

/// The kinds of cargo-mutants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
pub enum Genre {
    /// A function's body is a value.
    FnValue,
    /// Another operator between two operands.
    BinaryOperator,
    /// No operator before an operand.
    UnaryOperator,
    /// An arm less.
    MatchArm,
    /// A guard that is always or never true.
    MatchArmGuard,
    /// A field less, where the others come from another value.
    StructField,
}

/// A fault.
#[derive(Clone, Debug, Deserialize)]
pub struct Fault {
    /// From 1.
    pub number: u32,
    /// Path in the tree.
    pub file: String,
    pub genre: Genre,
    /// Source of the replacement.
    pub replacement: String,
    /// Where the changed source begins; of a value of a function, where the function begins.
    pub at: Position,
}

/// A place with faults.
#[derive(Serialize)]
pub struct Site {
    /// Their numbers.
    pub faults: Vec<u32>,
}

/// The text with these faults. Their places are appended to `sites`; faults that have none there are not planted.
///
/// # Errors
/// The text is not Rust.
pub fn plant(
    text: &str,
    faults: Vec<Fault>,
    constant: &HashSet<String>,
    sites: &mut Vec<Site>,
) -> Result<String, syn::Error> {
    let mut tree = syn::parse_file(text)?;
    let mut waiting: HashMap<_, Vec<Fault>> = HashMap::new();
    for fault in faults {
        waiting.entry((fault.genre, fault.at)).or_default().push(fault);
    }
    Planter { waiting, constant, sites }.visit_file_mut(&mut tree);
    let mut arguments = Arguments(Vec::new());
    arguments.visit_file_mut(&mut tree);
    let mut text = prettyplease::unparse(&tree);
    for (number, tokens) in arguments.0.iter().enumerate() {
        text = text.replace(&format!("__arguments_{number}__"), tokens);
    }
    Ok(text)
}

/// The arguments of attributes, each with a name in its place: prettyplease takes `==` in them apart.
struct Arguments(Vec<String>);

impl VisitMut for Arguments {
    fn visit_meta_list_mut(&mut self, list: &mut syn::MetaList) {
        let name = quote::format_ident!("__arguments_{}__", self.0.len());
        self.0.push(std::mem::replace(&mut list.tokens, quote!(#name)).to_string());
    }
}

struct Planter<'a> {
    waiting: HashMap<(Genre, Position), Vec<Fault>>,
    constant: &'a HashSet<String>,
    sites: &'a mut Vec<Site>,
}

fn position(at: LineColumn) -> Position {
    (at.line, at.column + 1)
}

fn start(node: &impl Spanned) -> Position {
    position(node.span().start())
}

/// Whether it is a chain of conditions with a pattern, which is no value.
fn has_pattern(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) => {
            has_pattern(&binary.left) || has_pattern(&binary.right)
        }
        _ => false,
    }
}

fn assigns(op: &BinOp) -> bool {
    op.to_token_stream().to_string().ends_with('=') && !compares(op)
}

fn compares(op: &BinOp) -> bool {
    matches!(op, BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_))
}

impl Planter<'_> {
    fn take(&mut self, genre: Genre, at: Position) -> Vec<Fault> {
        self.waiting.remove(&(genre, at)).unwrap_or_default()
    }

    /// The choice between what was there and the faults. A replacement that does not parse is not planted.
    fn choice(
        &mut self,
        faults: &[Fault],
        original: &impl ToTokens,
        faulty: impl Fn(&Fault) -> Option<TokenStream>,
    ) -> TokenStream {
        let site = self.sites.len() as u32;
        let made = faults.iter().filter_map(|fault| Some((fault.number, faulty(fault)?)));
        let (numbers, instead): (Vec<_>, Vec<_>) = made.unzip();
        let choice = quote!(match crate::__switch::fault(#site) {
            #(#numbers => { #instead })*
            _ => { #original }
        });
        self.sites.push(Site { faults: numbers });
        choice
    }

    /// A function; the values of faults are returned before its body.
    fn function(&mut self, signature: &mut Signature, body: &mut Block, at: Position) {
        if signature.constness.is_some() {
            if self.constant.contains(&signature.ident.to_string()) {
                return;
            }
            signature.constness = None;
        }
        self.visit_block_mut(body);
        let faults = self.take(Genre::FnValue, at);
        if !faults.is_empty() {
            let choice = self.choice(&faults, &quote!(), |fault| {
                let value: Expr = syn::parse_str(&fault.replacement).ok()?;
                Some(quote!(return #value;))
            });
            body.stmts.insert(0, parse_quote!(#choice));
        }
    }

    fn binary(&mut self, faults: &[Fault], left: &Expr, op: &BinOp, right: &Expr) -> Expr {
        let long = quote!(#left #right).to_string().len() > LONG;
        let simple = assigns(op) || matches!(op, BinOp::And(_) | BinOp::Or(_));
        let (l, r) = match long && !simple {
            true => (quote!(left), quote!(right)),
            // What is assigned to is a place.
            false if assigns(op) => (quote!(#left), quote!((#right))),
            false => (quote!((#left)), quote!((#right))),
        };
        let original = quote!(#l #op #r);
        let choice = self.choice(faults, &original, |fault| {
            let other: BinOp = syn::parse_str(&fault.replacement).ok()?;
            Some(quote!(#l #other #r))
        });
        match long && !simple {
            true if compares(op) => parse_quote!((match (&(#left), &(#right)) { (left, right) => #choice })),
            true => parse_quote!((match ((#left), (#right)) { (left, right) => #choice })),
            false => parse_quote!((#choice)),
        }
    }
}

impl VisitMut for Planter<'_> {
    // Constants have no switch, types no faults.
    fn visit_item_const_mut(&mut self, _: &mut syn::ItemConst) {}
    fn visit_item_static_mut(&mut self, _: &mut syn::ItemStatic) {}
    fn visit_impl_item_const_mut(&mut self, _: &mut syn::ImplItemConst) {}
    fn visit_expr_const_mut(&mut self, _: &mut syn::ExprConst) {}
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}

    fn visit_expr_repeat_mut(&mut self, repeat: &mut syn::ExprRepeat) {
        self.visit_expr_mut(&mut repeat.expr);
    }

    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if module.ident != "tests" {
            visit_mut::visit_item_mod_mut(self, module);
        }
    }

    fn visit_item_fn_mut(&mut self, function: &mut syn::ItemFn) {
        let at = start(function);
        self.function(&mut function.sig, &mut function.block, at);
    }

    fn visit_impl_item_fn_mut(&mut self, function: &mut syn::ImplItemFn) {
        let at = start(function);
        self.function(&mut function.sig, &mut function.block, at);
    }

    fn visit_trait_item_fn_mut(&mut self, function: &mut syn::TraitItemFn) {
        let at = start(function);
        if let Some(body) = &mut function.default {
            self.function(&mut function.sig, body, at);
        }
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        let at = start(arm);
        let guard = arm.guard.as_ref().map(|(_, guard)| (start(guard), has_pattern(guard)));
        visit_mut::visit_arm_mut(self, arm);
        if let (Some((at, false)), Some((_, guard))) = (guard, &mut arm.guard) {
            let faults = self.take(Genre::MatchArmGuard, at);
            if !faults.is_empty() {
                let choice = self.choice(&faults, guard, |fault| syn::parse_str(&fault.replacement).ok());
                **guard = parse_quote!(#choice);
            }
        }
        let faults = self.take(Genre::MatchArm, at);
        if let [fault] = &faults[..] {
            let number = fault.number;
            let site = self.sites.len() as u32;
            self.sites.push(Site { faults: vec![number] });
            let there = quote!(crate::__switch::fault(#site) != #number);
            let (token, guard) = match arm.guard.take() {
                None => (Default::default(), parse_quote!(#there)),
                Some((token, guard)) if has_pattern(&guard) => (token, parse_quote!(#there && #guard)),
                Some((token, guard)) => (token, parse_quote!(#there && (#guard))),
            };
            arm.guard = Some((token, Box::new(guard)));
        }
    }

    fn visit_expr_mut(&mut self, whole: &mut Expr) {
        // Where it was, before what is in it is rewritten.
        let (genre, places) = match &*whole {
            Expr::Binary(binary) if !has_pattern(whole) => (Genre::BinaryOperator, vec![start(&binary.op)]),
            Expr::Unary(unary) => (Genre::UnaryOperator, vec![start(unary)]),
            Expr::Struct(value) => (Genre::StructField, value.fields.iter().map(start).collect()),
            _ => return visit_mut::visit_expr_mut(self, whole),
        };
        visit_mut::visit_expr_mut(self, whole);
        let faults: Vec<_> = places.iter().flat_map(|&at| self.take(genre, at)).collect();
        if faults.is_empty() {
            return;
        }
        *whole = match &*whole {
            Expr::Binary(binary) => self.binary(&faults, &binary.left, &binary.op, &binary.right),
            Expr::Unary(unary) => {
                let choice = self.choice(&faults, unary, |_| Some(unary.expr.to_token_stream()));
                parse_quote!((#choice))
            }
            Expr::Struct(value) => {
                let choice = self.choice(&faults, value, |fault| {
                    Some(without_field(value, places.iter().position(|&at| at == fault.at)?))
                });
                parse_quote!((#choice))
            }
            _ => unreachable!("it has one of the kinds above"),
        };
    }
}

/// The value with this field from the other value that it is made of.
fn without_field(value: &ExprStruct, number: usize) -> TokenStream {
    let mut less = value.clone();
    less.fields = value
        .fields
        .iter()
        .enumerate()
        .filter(|(place, _)| *place != number)
        .map(|(_, field)| field.clone())
        .collect();
    if !less.fields.is_empty() {
        less.fields.push_punct(Comma::default());
    }
    less.into_token_stream()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
#[error(if *a == 1 { 'a' } else { 'b' })]
/// A comment is part of a function.
pub const fn least(a: u32) -> u32 {
    if a > 3 && !odd(a) { a - 1 } else { 0 }
}
fn kind(a: Option<u32>) -> Point {
    match a {
        Some(n) if n > 1 => Point { x: n, ..ORIGIN },
        _ => ORIGIN,
    }
}
const SIZE: usize = 4 + 4;
";

    fn fault(number: u32, genre: Genre, replacement: &str, source: &str) -> Fault {
        let offset = SOURCE.find(source).unwrap();
        let line = SOURCE[..offset].matches('\n').count() + 1;
        let column = offset - SOURCE[..offset].rfind('\n').map_or(0, |end| end + 1) + 1;
        Fault { number, file: String::new(), genre, replacement: replacement.to_owned(), at: (line, column) }
    }

    fn planted(constant: &[&str]) -> (String, Vec<Vec<u32>>) {
        let faults = vec![
            fault(1, Genre::FnValue, "0", "#[error"),
            fault(2, Genre::FnValue, "1", "#[error"),
            fault(3, Genre::BinaryOperator, "||", "&&"),
            fault(4, Genre::UnaryOperator, "", "!odd"),
            fault(5, Genre::MatchArm, "", "Some(n)"),
            fault(6, Genre::MatchArmGuard, "true", "n > 1"),
            fault(7, Genre::StructField, "", "x: n"),
            fault(8, Genre::BinaryOperator, "-", "+ 4"),
        ];
        let constant = constant.iter().map(|&name| name.to_owned()).collect();
        let mut sites = Vec::new();
        let text = plant(SOURCE, faults, &constant, &mut sites).unwrap();
        (text, sites.into_iter().map(|site| site.faults).collect())
    }

    #[test]
    fn each_place_is_a_choice_and_constants_are_left() {
        let (text, sites) = planted(&[]);
        assert_eq!(sites, [vec![4], vec![3], vec![1, 2], vec![7], vec![6], vec![5]]);
        let tokens: String = text.split_whitespace().collect();
        for piece in [
            "#[error(if*a==1{'a'}else{'b'})]",
            "pubfnleast(a:u32)->u32{matchcrate::__switch::fault(2u32){1u32=>{return0;}2u32=>{return1;}_=>{}}",
            "matchcrate::__switch::fault(0u32){4u32=>odd(a),_=>!odd(a),}",
            "matchcrate::__switch::fault(4u32){6u32=>true,_=>n>1,}",
            "ifcrate::__switch::fault(5u32)!=5u32&&(",
            "7u32=>Point{..ORIGIN},_=>Point{x:n,..ORIGIN},",
            "constSIZE:usize=4+4;",
        ] {
            assert!(tokens.contains(piece), "{piece} is not in {text}");
        }
    }

    #[test]
    fn a_function_that_must_be_constant_stays_as_it_is() {
        let (text, sites) = planted(&["least"]);
        assert_eq!(sites, [[7], [6], [5]]);
        assert!(text.contains("pub const fn least(a: u32) -> u32 {\n    if a > 3 && !odd(a)"), "{text}");
    }
}
