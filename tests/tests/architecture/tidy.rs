//! What must not stand in the code, and where it may, with the reason.

use std::fs;
use std::path::{Path, PathBuf};

const LINES_LIMIT: usize = 600;

/// A rule: these words do not stand in code (comments aside), but for files under these paths.
struct Rule {
    words: &'static [&'static str],
    why: &'static str,
    /// Modules of tests are free of it.
    not_in_tests: bool,
    /// Start of a path from the root of the project, and the reason.
    allowed: &'static [(&'static str, &'static str)],
}

// `concat!`, so that this file does not break its own rules.
const RULES: &[Rule] = &[
    Rule {
        words: &[concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")],
        why: "unfinished code",
        not_in_tests: false,
        allowed: &[],
    },
    Rule {
        words: &[concat!(".unw", "rap()"), concat!(".exp", "ect(")],
        why: "a panic instead of an error that says what, where and how to mend it",
        not_in_tests: true,
        allowed: &[("shared/testkit/", "only tests are built with it"), ("tests/", "tests"), ("bench/", "a failed measurement may panic")],
    },
    Rule {
        words: &[concat!("Utc::", "now"), concat!("Local::", "now"), concat!("SystemTime::", "now"), concat!("env::", "var")],
        why: "only adapters read the clock or the environment",
        not_in_tests: true,
        allowed: &[
            ("shared/local/src/clock.rs", "the adapter of the clock"),
            ("shared/aws/src/clock.rs", "the adapter of the clock"),
            ("shared/aws/src/client.rs", "asks for the settings that the SDK does not pass on"),
            ("shared/aws/src/config.rs", "asks for the settings that the SDK does not pass on"),
            ("shared/aws/src/settings.rs", "what a process on AWS is told by its environment"),
            ("cli/", "takes its options and the terminal's width from the environment"),
            ("tests/", "tests find their tools through the environment"),
            ("bench/", "measures time"),
        ],
    },
];

struct Source {
    /// From the root of the project, with `/`.
    path: String,
    text: String,
}

impl Source {
    fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        self.path.contains("/tests/") || name == "tests.rs" || name.ends_with("_tests.rs")
    }

    /// Numbered lines without comments; without modules of tests when `code_only`.
    fn lines(&self, code_only: bool) -> impl Iterator<Item = (usize, &str)> {
        // Test modules stand at the end of a file (a rule of its own below).
        let end = if code_only { test_module(&self.text).unwrap_or(usize::MAX) } else { usize::MAX };
        self.text.lines().enumerate().take(end).filter(|(_, line)| !line.trim_start().starts_with("//")).map(|(n, line)| (n + 1, line))
    }
}

/// Index of the line where the module of tests starts.
fn test_module(text: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().enumerate().position(|(n, line)| {
        let next = lines[n + 1..].iter().find(|l| !l.starts_with("#[")).copied().unwrap_or_default();
        *line == "#[cfg(test)]" && next.starts_with("mod ")
    })
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the project");
    let mut found = Vec::new();
    for top in ["shared", "cli", "tests", "functions", "bench"] {
        collect(&root.join(top), root, &mut found);
    }
    assert!(found.len() > 30, "{} files: the test does not see the code", found.len());
    found
}

fn collect(folder: &Path, root: &Path, found: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(folder) else { return }; // not built yet
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder can be listed").path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            collect(&path, root, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file can be read");
            let path = path.strip_prefix(root).expect("it was found there").to_string_lossy().replace('\\', "/");
            found.push(Source { path, text });
        }
    }
}

fn breaches(rule: &Rule, source: &Source) -> Vec<String> {
    if rule.not_in_tests && source.is_test() || rule.allowed.iter().any(|(path, _)| source.path.starts_with(path)) {
        return vec![];
    }
    let breaks = |line: &str| rule.words.iter().any(|word| line.contains(word));
    source
        .lines(rule.not_in_tests)
        .filter(|(_, line)| breaks(line))
        .map(|(number, line)| format!("{}:{number}: {} ({})", source.path, line.trim(), rule.why))
        .collect()
}

#[test]
fn no_file_is_longer_than_a_reader_can_hold() {
    let long: Vec<String> = sources()
        .iter()
        .map(|s| (s.text.lines().count(), &s.path))
        .filter(|(lines, _)| *lines > LINES_LIMIT)
        .map(|(lines, path)| format!("{path}: {lines} lines, at most {LINES_LIMIT}"))
        .collect();
    assert!(long.is_empty(), "split by what the parts do: {long:#?}");
}

#[test]
fn forbidden_words_do_not_stand_in_code() {
    let wrong: Vec<String> = sources().iter().flat_map(|s| RULES.iter().flat_map(|rule| breaches(rule, s))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Else the rules above would not look at what comes after it.
#[test]
fn modules_of_tests_stand_at_the_end() {
    let wrong: Vec<String> = sources()
        .iter()
        .filter_map(|s| {
            let start = test_module(&s.text)?;
            // Items of the file itself start in the first column; the module's end does, too.
            let closing = s.text.lines().skip(start).position(|line| line == "}" || line.starts_with("mod ") && line.ends_with(';'))?;
            let after = s.text.lines().skip(start + closing + 1).any(|line| !line.trim().is_empty());
            after.then(|| s.path.clone())
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_breach_is_seen() {
    let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let all = |s: &Source| RULES.iter().flat_map(|rule| breaches(rule, s)).count();
    let panics = concat!("fn f() { g().unw", "rap(); }\n");
    let unfinished = concat!("fn f() { todo", "!() }\n");
    let clock = concat!("fn f() { chrono::Utc::", "now(); }\n");
    let in_tests = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{panics}}}\n");
    for (path, text, expected) in [
        ("shared/engine/src/write.rs", panics, 1),
        ("shared/engine/src/write.rs", in_tests.as_str(), 0),
        ("shared/engine/tests/write.rs", panics, 0),
        ("shared/testkit/src/lib.rs", panics, 0),
        ("shared/testkit/src/lib.rs", unfinished, 1),
        ("shared/engine/tests/write.rs", unfinished, 1),
        ("shared/engine/src/write.rs", clock, 1),
        ("shared/local/src/clock.rs", clock, 0),
        ("shared/local/src/objects.rs", clock, 1),
    ] {
        assert_eq!(all(&source(path, text)), expected, "{path}: {text}");
    }
    assert_eq!(all(&source("shared/engine/src/a.rs", &format!("// {panics}"))), 0);
}
