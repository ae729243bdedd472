//! Over `cargo metadata`: dependencies run one way, and every licence is one we know.

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// What each crate may depend on among ours: model ← {source, table} ← engine ← {local, aws} ← {functions, cli}.
const MAY_USE: &[(&str, &[&str])] = &[
    ("timelake-model", &[]),
    ("timelake-source", &["timelake-model"]),
    ("timelake-table", &["timelake-model"]),
    ("timelake-engine", &["timelake-model", "timelake-source", "timelake-table"]),
    ("timelake-local", &["timelake-model", "timelake-source", "timelake-table", "timelake-engine"]),
    ("timelake-aws", &["timelake-model", "timelake-source", "timelake-table", "timelake-engine"]),
    ("timelake-cli", &["timelake-model", "timelake-source", "timelake-table", "timelake-engine", "timelake-local", "timelake-aws"]),
    ("timelake-functions", &["timelake-model", "timelake-engine", "timelake-aws"]),
    ("timelake-planner", &["timelake-model", "timelake-engine", "timelake-functions"]),
    ("timelake-writer", &["timelake-model", "timelake-engine", "timelake-functions"]),
    ("timelake-finalizer", &["timelake-model", "timelake-engine", "timelake-functions"]),
    ("timelake-refresher", &["timelake-model", "timelake-engine", "timelake-functions"]),
    ("timelake-sweeper", &["timelake-model", "timelake-engine", "timelake-aws", "timelake-functions"]),
    // For tests only: nothing but tests may depend on it (see below).
    ("timelake-testkit", &["timelake-model", "timelake-source", "timelake-table", "timelake-engine"]),
    ("timelake-tests", &[]),
    // The floor of the bench: usual crates only, nothing of ours.
    ("timelake-floor", &[]),
    ("timelake-kernels", &["timelake-model", "timelake-source", "timelake-engine"]),
    ("timelake-bench", &["timelake-model", "timelake-engine"]),
    ("timelake-metadata", &["timelake-bench", "timelake-model", "timelake-table", "timelake-engine", "timelake-local"]),
    ("timelake-units", &["timelake-bench", "timelake-model", "timelake-engine", "timelake-aws", "timelake-functions"]),
];

/// Packages that must not be anywhere below a crate, by the start of their name.
const MUST_NOT_REACH: &[(&str, &[&str])] = &[
    ("timelake-model", &["arrow", "parquet", "iceberg", "tokio", "rusqlite", "aws-"]),
    ("timelake-source", &["iceberg", "rusqlite", "aws-"]),
    ("timelake-table", &["rusqlite", "aws-"]),
    ("timelake-engine", &["rusqlite", "libsqlite3-sys", "aws-"]),
    ("timelake-local", &["aws-"]),
    ("timelake-aws", &["rusqlite", "libsqlite3-sys"]),
    ("timelake-functions", &["rusqlite", "libsqlite3-sys"]),
    // One TLS stack.
    ("timelake-cli", &["native-tls", "openssl-sys", "aws-lc", "s2n-tls"]),
];

/// Licences under which the packages of the tree can be taken. A new one is a decision, so it fails here first.
const LICENCES: &[&str] = &["Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "Unicode-3.0", "Zlib"];

fn metadata() -> Metadata {
    let version = Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let version = String::from_utf8(version.stdout).expect("rustc writes text");
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc knows its host");
    MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
        // Packages of other systems are not downloaded here.
        .other_options(["--locked".to_string(), format!("--filter-platform={host}")])
        .exec()
        .expect("cargo metadata")
}

/// Everything below a package by dependencies that are built into it (not those of its tests).
fn reach<'a>(metadata: &'a Metadata, from: &PackageId) -> BTreeSet<&'a PackageId> {
    let resolve = metadata.resolve.as_ref().expect("a resolved tree");
    let nodes: BTreeMap<_, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let (mut seen, mut open) = (BTreeSet::new(), vec![nodes[from]]);
    while let Some(node) = open.pop() {
        for dependency in &node.deps {
            let built_in = dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal);
            if built_in && seen.insert(&dependency.pkg) {
                open.push(nodes[&dependency.pkg]);
            }
        }
    }
    seen
}

fn ours(package: &Package) -> bool {
    package.name.starts_with("timelake-")
}

#[test]
fn crates_depend_one_way() {
    let metadata = metadata();
    let may_use: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    let mut wrong = Vec::new();
    for package in metadata.workspace_packages() {
        let Some(allowed) = may_use.get(package.name.as_str()) else {
            wrong.push(format!("{} has no line in MAY_USE", package.name));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| d.name.starts_with("timelake-") && d.kind != DependencyKind::Development) {
            if !allowed.contains(&dependency.name.as_str()) {
                wrong.push(format!("{} must not depend on {}", package.name, dependency.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_world_stays_behind_the_adapters() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for (name, forbidden) in MUST_NOT_REACH {
        let package = metadata.workspace_packages().into_iter().find(|p| p.name == *name).expect("a crate of that name");
        let below = reach(&metadata, &package.id);
        assert!(!below.is_empty(), "{name} depends on nothing: the test does not see the tree");
        for id in below {
            let found = &metadata[id].name;
            if forbidden.iter().any(|start| found.starts_with(start)) {
                wrong.push(format!("{name} reaches {found}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_testkit_is_for_tests_only() {
    let metadata = metadata();
    for package in metadata.workspace_packages() {
        let reaches = reach(&metadata, &package.id).iter().any(|id| metadata[*id].name == "timelake-testkit");
        assert!(!reaches, "{} has timelake-testkit built in: make it a dev-dependency", package.name);
    }
}

#[test]
fn all_licences_are_known() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in metadata.packages.iter().filter(|p| !ours(p)) {
        match &package.license {
            Some(text) if licence_allowed(text) => {}
            Some(text) => wrong.push(format!("{} {}: {text}", package.name, package.version)),
            None => wrong.push(format!("{} {}: no licence named", package.name, package.version)),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// SPDX expressions as crates write them: `A OR B`, `A/B`, `A AND (B OR C)`; an exception (`WITH`) only gives more rights.
fn licence_allowed(text: &str) -> bool {
    let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any_of(&mut rest) && rest.is_empty()
}

fn any_of(rest: &mut &[&str]) -> bool {
    let mut allowed = all_of(rest);
    while let ["OR", after @ ..] = *rest {
        *rest = after;
        allowed |= all_of(rest);
    }
    allowed
}

fn all_of(rest: &mut &[&str]) -> bool {
    let mut allowed = one(rest);
    while let ["AND", after @ ..] = *rest {
        *rest = after;
        allowed &= one(rest);
    }
    allowed
}

fn one(rest: &mut &[&str]) -> bool {
    match *rest {
        ["(", after @ ..] => {
            *rest = after;
            let allowed = any_of(rest);
            let closed = rest.first() == Some(&")");
            *rest = rest.get(1..).unwrap_or_default();
            allowed && closed
        }
        [name, "WITH", _, after @ ..] | [name, after @ ..] => {
            *rest = after;
            LICENCES.contains(name)
        }
        [] => false,
    }
}

#[test]
fn licence_expressions_are_read_rightly() {
    for (text, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR GPL-3.0) AND Apache-2.0", true),
        ("MIT AND (GPL-3.0 OR AGPL-3.0)", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
        ("(MIT", false),
        ("MIT Apache-2.0", false),
        ("", false),
    ] {
        assert_eq!(licence_allowed(text), expected, "{text}");
    }
}
