//! From what was typed to what the lake takes: names, sizes, defaults of the machine. Takes the clap structs; gives the
//! lake's options or an `invalid_option` error that names the option. Loads are resolved in [`crate::load`].
//! Opens nothing: what needs the table or the source is checked by the engine.

use crate::args::{ContractArgs, CreateArgs, JOB_VERBS, WorkerArgs};
use std::ffi::OsString;
use std::time::Duration;
use timelake_engine::tables::{ContractChange, CreateTable};
use timelake_engine::upkeep::GcOptions;
use timelake_local::WorkerOptions;
use timelake_model::similar::nearest;
use timelake_model::time::IsoDuration;
use timelake_model::{Error, Reason, Result};

/// More threads than this help nobody and cost a unit's memory each.
pub const MAX_THREADS: usize = 1024;
/// Below this not even one row group fits.
pub const MIN_MEMORY_BYTES: u64 = 1_000_000;

/// A table's name as typed: it always holds a dot, so that it cannot be taken for a verb.
pub fn table_name(text: &str) -> Result<String> {
    let parts: Vec<&str> = text.split('.').collect();
    if parts.len() >= 2 && parts.iter().all(|part| !part.trim().is_empty()) {
        return Ok(text.to_string());
    }
    let error = |message: String| {
        Error::invalid(Reason::InvalidOption, message).at(|p| {
            p.option = Some("TABLE".into());
            p.value = Some(text.into());
        })
    };
    Err(match nearest(text, JOB_VERBS) {
        Some(verb) => error(format!("there is no command `backfill {text}`, and a table's name holds a dot"))
            .hint(format!("did you mean `timelake backfill {verb}`?")),
        None => error(format!("{text} is not a table name: it has no namespace"))
            .hint(format!("write the namespace before a dot, for example {}", example_name(text))),
    })
}

/// What was typed with its separators made dots, in a namespace if it has none.
fn example_name(text: &str) -> String {
    let parts: Vec<&str> = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-')).filter(|part| !part.is_empty()).collect();
    match parts[..] {
        [] => "iot.sensor".into(),
        [table] => format!("iot.{table}"),
        _ => parts.join("."),
    }
}

/// The first word after `backfill` that is neither a table nor a verb: what clap says about the words after it would
/// miss the point.
pub fn misspelt_verb(words: &[String]) -> Option<Error> {
    let at = words.iter().position(|word| word == "backfill")?;
    let word = words.get(at + 1).filter(|word| !word.starts_with('-') && !JOB_VERBS.contains(&word.as_str()))?;
    let error = table_name(word).err()?;
    nearest(word, JOB_VERBS).map(|_| error)
}

/// `timelake help`, `timelake backfill help list`: the same as `--help` of the words without it.
pub fn with_help(words: Vec<OsString>) -> Vec<OsString> {
    let is = |at: usize, word: &str| words.get(at).is_some_and(|w| w == word);
    let at = match (is(1, "help"), is(1, "backfill") || is(1, "table"), is(2, "help")) {
        (true, ..) => 1,
        (_, true, true) => 2,
        _ => return words,
    };
    let mut out = words;
    out.remove(at);
    out.push("--help".into());
    out
}

pub fn threads(given: Option<usize>, available: usize) -> Result<usize> {
    let threads = given.unwrap_or_else(|| available.clamp(1, MAX_THREADS));
    if threads == 0 || threads > MAX_THREADS {
        let text = threads.to_string();
        return Err(option_error("--threads", Some(&text), format!("{threads} is no usable number of threads"))
            .hint(format!("write a number from 1 to {MAX_THREADS}"))
            .at(|p| p.limit = Some(MAX_THREADS as u64)));
    }
    Ok(threads)
}

fn duration(option: &str, text: &str) -> Result<IsoDuration> {
    IsoDuration::parse(text)
        .map_err(|e| option_error(option, Some(text), format!("{option} {text} is no duration")).hint(e.hint.unwrap_or_default()))
}

pub fn worker(worker: &WorkerArgs, available_threads: usize) -> Result<WorkerOptions> {
    let wait_ms = duration("--wait", &worker.wait)?.upper_ms();
    Ok(WorkerOptions {
        job: worker.job.clone(),
        threads: threads(worker.threads, available_threads)?,
        memory_bytes: memory_bytes(&worker.memory)?,
        wait: Duration::from_millis(wait_ms.unsigned_abs()),
    })
}

pub fn gc(older_than: &str, dry_run: bool) -> Result<GcOptions> {
    Ok(GcOptions { older_than: duration("--older-than", older_than)?, dry_run })
}

/// The prefix that a new table's location starts with.
pub fn warehouse(prefix: &str) -> Result<&str> {
    let bucket = prefix.strip_prefix("s3://").and_then(|rest| rest.split('/').next());
    if bucket.is_some_and(|bucket| !bucket.is_empty()) && !prefix.contains(['#', '?']) {
        return Ok(prefix);
    }
    Err(Error::invalid(Reason::InvalidOption, format!("--warehouse {prefix} is no prefix of a bucket"))
        .hint("write s3://bucket/prefix; without the option a table's files are in the lake's folder")
        .at(|p| {
            p.option = Some("--warehouse".into());
            p.value = Some(prefix.into());
        }))
}

pub fn create_table(create: &CreateArgs) -> Result<CreateTable> {
    Ok(CreateTable {
        name: table_name(&create.table)?,
        columns: create.columns.clone(),
        time_column: create.time_column.clone(),
        series_key: create.series_key.iter().flat_map(|names| column_names(names)).collect(),
        dedup_key: create.dedup_key.as_deref().map(dedup_key),
        partition: create.partition.clone(),
        retention: create.retention.clone(),
        lateness: create.lateness.clone(),
        undo: create.undo.clone(),
        layout: create.layout.clone(),
    })
}

/// `None`: nothing is to be changed, the contract is only to be shown.
pub fn contract_change(contract: &ContractArgs) -> Option<ContractChange> {
    let change = ContractChange {
        time_column: contract.time_column.clone(),
        series_key: contract.series_key.as_deref().map(column_names),
        dedup_key: contract.dedup_key.as_deref().map(dedup_key),
        retention: contract.retention.as_ref().map(|text| (text.trim() != NONE).then(|| text.clone())),
        lateness: contract.lateness.clone(),
        undo: contract.undo.clone(),
        layout: contract.layout.as_ref().map(|text| if text.trim() == NONE { "[]".into() } else { text.clone() }),
    };
    (change != ContractChange::default()).then_some(change)
}

/// A dedup key or a retention that is not there.
const NONE: &str = "none";

fn dedup_key(text: &str) -> Option<Vec<String>> {
    (text.trim() != NONE).then(|| column_names(text))
}

fn column_names(text: &str) -> Vec<String> {
    text.split(',').map(|name| name.trim().to_string()).filter(|name| !name.is_empty()).collect()
}

/// `512MiB`, `1GB`, `1.5 GB`: a number with a unit.
pub fn memory_bytes(text: &str) -> Result<u64> {
    let bad = |message: String| option_error("--memory", Some(text), message).hint("write for example 512MiB or 2GB");
    let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let unit_at = compact.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(compact.len());
    let (number, unit) = compact.split_at(unit_at);
    let unit_bytes: u64 = match unit.to_ascii_lowercase().as_str() {
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        "" => return Err(bad(format!("--memory {text} has no unit"))),
        _ => return Err(bad(format!("--memory {text} is not a size"))),
    };
    let number: f64 = number.parse().map_err(|_| bad(format!("--memory {text} is not a size")))?;
    let bytes = number * unit_bytes as f64;
    if bytes < MIN_MEMORY_BYTES as f64 || bytes > u64::MAX as f64 / 2.0 {
        return Err(bad(format!("--memory {text} is too small or too large")).at(|p| p.limit = Some(MIN_MEMORY_BYTES)));
    }
    Ok(bytes as u64)
}

pub fn option_error(option: &str, value: Option<&str>, message: String) -> Error {
    Error::invalid(Reason::InvalidOption, message).at(|p| {
        p.option = Some(option.into());
        p.value = value.map(String::from);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command, TableVerb};
    use clap::Parser;

    #[test]
    fn verbs_and_tables_share_their_place() {
        for (words, is_verb) in [("list", true), ("list iot.sensor", true), ("--json list", true), ("iot.list --from a", false)] {
            let words = ["timelake", "backfill"].into_iter().chain(words.split_whitespace());
            let Command::Backfill(args) = Cli::try_parse_from(words.clone()).unwrap().command else { panic!() };
            assert_eq!(args.verb.is_some(), is_verb, "{words:?}");
        }
        let error = table_name("lst").unwrap_err();
        assert_eq!((error.place.option.as_deref(), error.message.contains("backfill lst")), (Some("TABLE"), true));
        assert!(table_name("lst").unwrap_err().hint.unwrap().contains("timelake backfill list"));
        assert!(table_name("sensor").unwrap_err().hint.unwrap().contains("iot.sensor"));
        assert!(table_name("iot/s").unwrap_err().hint.unwrap().ends_with("for example iot.s"));
        assert!(table_name("").unwrap_err().hint.unwrap().ends_with("for example iot.sensor"));
        for bad in ["", ".", "a.", ".a", "a..b", "iot/s"] {
            assert!(table_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn misspelt_verbs_are_told_from_tables() {
        let guess = |words: &str| misspelt_verb(&words.split(' ').map(String::from).collect::<Vec<_>>()).and_then(|e| e.hint);
        assert!(guess("timelake backfill pubish iot-s-1").unwrap().contains("timelake backfill publish"));
        assert_eq!(guess("timelake backfill publish"), None);
        assert_eq!(guess("timelake backfill iot.sensor x"), None);
        assert_eq!(guess("timelake backfill --fromm x"), None);
    }

    #[test]
    fn help_is_a_word_too() {
        let asked =
            |words: &str| with_help(words.split(' ').map(OsString::from).collect()).join(std::ffi::OsStr::new(" ")).into_string().unwrap();
        assert_eq!(asked("timelake help"), "timelake --help");
        assert_eq!(asked("timelake help table"), "timelake table --help");
        assert_eq!(asked("timelake backfill help list"), "timelake backfill list --help");
        assert_eq!(asked("timelake backfill iot.help --from help"), "timelake backfill iot.help --from help");
    }

    #[test]
    fn memory_needs_a_number_and_a_unit() {
        assert_eq!(memory_bytes("1GB").unwrap(), 1_000_000_000);
        assert_eq!(memory_bytes("1.5 gib").unwrap(), 3 << 29);
        for bad in ["", "1", "GB", "-1GB", "1.2.3GB", "1XB", "1kB", "99999999TB", "1e3GB"] {
            assert!(memory_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_are_lists_and_none_is_a_word() {
        let words = |words: &str| Cli::try_parse_from(["timelake", "table"].into_iter().chain(words.split_whitespace())).unwrap().command;
        let change = |options: &str| match words(&format!("contract iot.s {options}")) {
            Command::Table { verb: TableVerb::Contract(args) } => contract_change(&args),
            other => panic!("{other:?}"),
        };
        assert_eq!(change(""), None);
        let both = change("--dedup-key none --retention none --series-key a,b").unwrap();
        assert_eq!((both.dedup_key, both.retention, both.series_key), (Some(None), Some(None), Some(vec!["a".into(), "b".into()])));
        let set = change("--dedup-key a,ts --retention P2Y").unwrap();
        assert_eq!((set.dedup_key, set.retention), (Some(Some(vec!["a".into(), "ts".into()])), Some(Some("P2Y".into()))));
        let Command::Table { verb: TableVerb::Create(args) } =
            words("create iot.s --columns ts:timestamptz --time-column ts --series-key a,b --series-key c --undo P1D")
        else {
            panic!()
        };
        let create = create_table(&args).unwrap();
        assert_eq!(create.series_key, ["a", "b", "c"]);
        assert_eq!((create.dedup_key, create.retention, create.undo.as_deref()), (None, None, Some("P1D")));
    }
}
