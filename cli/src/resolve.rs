//! From what was typed to a [`BackfillRequest`]: rules between options, sizes, defaults of the machine.
//! Takes the clap structs; gives the model's request or an `invalid_option` error that names the option.
//! Opens nothing: what needs the table or the source is checked by the engine.

use crate::args::{ContractArgs, CreateArgs, JOB_VERBS, LoadArgs, WorkerArgs};
use crate::choices::nearest;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use timelake_engine::tables::{ContractChange, CreateTable};
use timelake_local::{BackfillOptions, GcOptions, WorkerOptions};
use timelake_model::request::{OnBadRow, OnSourceConflict, RowOptions, RunOptions, TextOptions};
use timelake_model::time::IsoDuration;
use timelake_model::{BackfillRequest, Error, Reason, Result, TimestampUs};

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
    Err(match nearest(text, &JOB_VERBS) {
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
    nearest(word, &JOB_VERBS).map(|_| error)
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

/// A lake is a folder here; other kinds are named by a prefix.
pub fn lake_folder(lake: &Path) -> Result<&Path> {
    match lake.to_str() {
        Some(text) if text.starts_with("aws:") => Err(Error::invalid(
            Reason::NotYetSupported,
            format!("the lake {text} is on AWS, and only lakes in a folder can be opened so far"),
        )
        .hint("give a folder: --lake DIR")
        .at(|p| p.option = Some("--lake".into()))),
        _ => Ok(lake),
    }
}

pub fn backfill_request(load: &LoadArgs, available_threads: usize) -> Result<(BackfillRequest, BackfillOptions)> {
    let Some(table) = &load.table else {
        return Err(option_error("TABLE", None, "no table is named".into())
            .hint("write the table first: timelake backfill TABLE --from PATH... (words after --from are all sources)"));
    };
    let table = table_name(table)?;
    if load.from.is_empty() {
        return Err(option_error("--from", None, "no source is named".into()).hint("name files, folders or globs: --from PATH..."));
    }
    if let Some(empty) = load.from.iter().find(|from| from.trim().is_empty()) {
        return Err(option_error("--from", Some(empty), "a source is empty".into()).hint("is a variable of the shell not set?"));
    }
    let map: Vec<String> = load.map.iter().flat_map(|text| split_unescaped(text, ',')).filter(|pair| !pair.trim().is_empty()).collect();
    for (option, example, pairs) in [("--map", "ts=time", &map), ("--set", "site=hamburg", &load.set)] {
        for pair in pairs {
            if split_unescaped(pair, '=').len() < 2 || pair.trim_start().starts_with('=') {
                return Err(option_error(option, Some(pair), format!("{option} {pair} has no name before an equals sign"))
                    .hint(format!("write {option} {example}")));
            }
        }
    }
    check_bounds(load)?;
    if load.on_source_conflict == OnSourceConflict::Newest && load.version_column.is_none() {
        return Err(option_error("--on-source-conflict", Some("newest"), "newest needs a column that says which row is newer".into())
            .hint("name it: --version-column COL"));
    }
    if load.version_column.is_some() && load.on_source_conflict != OnSourceConflict::Newest {
        return Err(option_error("--version-column", load.version_column.as_deref(), "--version-column has no effect here".into())
            .hint("it goes with --on-source-conflict newest"));
    }
    let threads = threads(load.threads, available_threads)?;
    let rows = RowOptions {
        from: load.from.clone(),
        format: load.format.clone(),
        map,
        set: load.set.clone(),
        hive: load.hive,
        tz: load.tz.clone(),
        ts_unit: load.ts_unit,
        ts_format: load.ts_format.clone(),
        ambiguous: load.ambiguous,
        nonexistent: load.nonexistent,
        start: load.start.clone(),
        end: load.end.clone(),
        min_ts: load.min_ts.clone(),
        max_ts: load.max_ts.clone(),
        on_out_of_range: load.on_out_of_range,
        on_bad_row: load.on_bad_row,
        max_bad_rows: load.max_bad_rows,
        on_source_conflict: load.on_source_conflict,
        mode: load.mode,
        allow_duplicates: load.allow_duplicates,
        only_missing: load.only_missing,
        version_column: load.version_column.clone(),
        override_retention: load.override_retention,
        clip_retention: load.clip_retention,
        text: text_options(load)?,
    };
    let run = RunOptions {
        threads,
        memory_bytes: memory_bytes(&load.memory)?,
        verify_full: load.verify.is_some(),
        stage_only: load.stage_only,
        work_dir: load.work_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned()),
        keep_runs: load.keep_runs,
        allow_overlap: load.allow_overlap,
    };
    Ok((BackfillRequest { table, rows, run }, BackfillOptions { again: load.again, new: load.new }))
}

fn threads(given: Option<usize>, available: usize) -> Result<usize> {
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

/// How text is read, and what makes no sense together.
fn text_options(load: &LoadArgs) -> Result<TextOptions> {
    for pair in &load.null_number {
        if pair.split_once('=').is_none_or(|(column, number)| column.trim().is_empty() || number.trim().is_empty()) {
            return Err(option_error("--null-number", Some(pair), format!("--null-number {pair} is not COL=N"))
                .hint("write --null-number value=-9999"));
        }
    }
    if load.max_bad_rows.is_some() && load.on_bad_row == OnBadRow::Error {
        return Err(option_error("--max-bad-rows", None, "--max-bad-rows has no effect here: the first bad row stops the job".into())
            .hint("it goes with --on-bad-row skip or quarantine"));
    }
    Ok(TextOptions {
        delimiter: load.delimiter.clone(),
        decimal: load.decimal.clone(),
        thousands: load.thousands.clone(),
        encoding: load.encoding.clone(),
        null: texts(&load.null),
        null_number: load.null_number.clone(),
        bad_text_to: load.bad_text_to.clone(),
        header_line: load.header_line,
        skip_after_header: load.skip_after_header,
        columns: texts(&load.columns),
    })
}

/// Comma-separated texts; a comma that is part of one has a backslash before it.
fn texts(typed: &[String]) -> Vec<String> {
    typed.iter().flat_map(|list| split_unescaped(list, ',')).map(|text| text.replace("\\,", ",")).collect()
}

/// A dedup key or a retention that is not there.
const NONE: &str = "none";

fn dedup_key(text: &str) -> Option<Vec<String>> {
    (text.trim() != NONE).then(|| column_names(text))
}

fn column_names(text: &str) -> Vec<String> {
    text.split(',').map(|name| name.trim().to_string()).filter(|name| !name.is_empty()).collect()
}

/// Bounds are instants, naive ones only where they cannot mean two things, and a window is not empty.
fn check_bounds(load: &LoadArgs) -> Result<()> {
    let naive_is_error = load.tz.as_deref().is_some_and(|zone| !is_utc(zone));
    let parse = |text: &Option<String>, option: &str| -> Result<Option<TimestampUs>> {
        text.as_ref().map(|text| TimestampUs::parse_bound(text, option, naive_is_error)).transpose()
    };
    let bounds = [
        ("--start", parse(&load.start, "--start")?, "--end", parse(&load.end, "--end")?),
        ("--min-ts", parse(&load.min_ts, "--min-ts")?, "--max-ts", parse(&load.max_ts, "--max-ts")?),
    ];
    for (low_option, low, high_option, high) in bounds {
        if let (Some(low), Some(high)) = (low, high)
            && low >= high
        {
            return Err(option_error(
                high_option,
                Some(&high.short()),
                format!("{low_option} {} is not before {high_option} {}: nothing could be loaded", low.short(), high.short()),
            )
            .hint(format!("{high_option} is the first time that is not loaded any more")));
        }
    }
    Ok(())
}

fn is_utc(zone: &str) -> bool {
    matches!(zone.to_ascii_lowercase().as_str(), "utc" | "z" | "zulu" | "etc/utc" | "etc/zulu" | "gmt" | "etc/gmt" | "+00:00" | "-00:00")
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

/// Splits at a character that no backslash precedes. Escapes stay as they are.
fn split_unescaped(text: &str, separator: char) -> Vec<String> {
    let (mut parts, mut current, mut escaped) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        if c == separator && !escaped {
            parts.push(std::mem::take(&mut current));
        } else {
            current.push(c);
        }
        escaped = c == '\\' && !escaped;
    }
    parts.push(current);
    parts
}

fn option_error(option: &str, value: Option<&str>, message: String) -> Error {
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
    use timelake_model::request::{Ambiguous, TimeUnit};

    fn load(words: &str) -> Result<(BackfillRequest, BackfillOptions)> {
        let words = ["timelake", "backfill"].into_iter().chain(words.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Backfill(args) if args.verb.is_none() => backfill_request(&args.load, 3),
            other => panic!("not a load: {other:?}"),
        }
    }
    fn refused(words: &str) -> (Reason, Option<String>, String) {
        let error = load(words).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error:?}");
        assert!(error.hint.is_some(), "{error:?}");
        (error.reason, error.place.option.clone(), error.message)
    }

    #[test]
    fn defaults_are_the_models() {
        let (request, options) = load("iot.sensor --from a").unwrap();
        assert_eq!(request.table, "iot.sensor");
        assert_eq!(request.rows, RowOptions { from: vec!["a".into()], ..Default::default() });
        assert_eq!(request.run, RunOptions { threads: 3, ..Default::default() });
        assert!(!options.again && !options.new);
    }

    #[test]
    fn every_option_arrives() {
        let (request, options) = load(
            "iot.sensor --from a b --from c --format parquet --map ts=time,v=x\\,y --map q= --set s=a,b --hive --tz Europe/Berlin --ts-unit ms \
             --ambiguous later --nonexistent shift --start 2024-01-01T00:00Z --end 2024-02-01T00:00Z --min-ts 2000-01-01T00:00Z \
             --max-ts 2030-01-01T00:00Z --on-out-of-range skip --on-bad-row skip --on-source-conflict newest --version-column ver \
             --clip-retention --stage-only --verify full --again --new --threads 7 --memory 512MiB --ts-format %s \
             --delimiter ; --decimal , --thousands . --encoding latin1 --null -,n\\,a --null ? --null-number v=-1 --bad-text-to s \
             --header-line 3 --skip-after-header 1 --max-bad-rows 5 --work-dir w --keep-runs \
             --mode append --allow-duplicates --only-missing --allow-overlap",
        )
        .unwrap();
        let rows = &request.rows;
        assert_eq!(rows.from, ["a", "b", "c"]);
        assert_eq!(rows.map, ["ts=time", "v=x\\,y", "q="]);
        assert_eq!(rows.set, ["s=a,b"]);
        assert_eq!((rows.ts_unit, rows.ambiguous, rows.hive), (Some(TimeUnit::Millis), Ambiguous::Later, true));
        assert!(rows.clip_retention && !rows.override_retention);
        // No option of the command may be dropped on the way: everything but the default differs.
        let typed = serde_json::to_value(rows).unwrap();
        let plain = serde_json::to_value(RowOptions::default()).unwrap();
        for (name, value) in typed.as_object().unwrap() {
            let only_one_choice = name == "override_retention";
            assert!(only_one_choice || plain[name] != *value, "{name} was not set");
        }
        for (name, value) in typed["text"].as_object().unwrap() {
            assert!(name == "columns" || plain["text"][name] != *value, "{name} was not set");
        }
        assert_eq!(rows.text.null, ["-", "n,a", "?"]);
        let run = RunOptions {
            threads: 7,
            memory_bytes: 512 << 20,
            verify_full: true,
            stage_only: true,
            work_dir: Some("w".into()),
            keep_runs: true,
            allow_overlap: true,
        };
        assert_eq!(request.run, run);
        assert!(options.again && options.new);
    }

    #[test]
    fn verbs_and_tables_share_their_place() {
        for (words, is_verb) in [("list", true), ("list iot.sensor", true), ("--json list", true), ("iot.list --from a", false)] {
            let words = ["timelake", "backfill"].into_iter().chain(words.split_whitespace());
            let Command::Backfill(args) = Cli::try_parse_from(words.clone()).unwrap().command else { panic!() };
            assert_eq!(args.verb.is_some(), is_verb, "{words:?}");
        }
        let (_, option, message) = refused("lst --from a");
        assert_eq!((option.as_deref(), message.contains("backfill lst")), (Some("TABLE"), true));
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
    fn what_is_missing_or_contradicts_is_named() {
        let option = |words: &str| refused(words).1.unwrap();
        assert_eq!(option("--from a"), "TABLE");
        assert_eq!(option("iot.sensor"), "--from");
        assert_eq!(option("iot.sensor --from a --map ts"), "--map");
        assert_eq!(option("iot.sensor --from a --map ts\\=x"), "--map");
        assert_eq!(option("iot.sensor --from a --set =x"), "--set");
        assert_eq!(option("iot.sensor --from a --threads 0"), "--threads");
        assert_eq!(option("iot.sensor --from a --start 2024-02-01 --end 2024-02-01"), "--end");
        assert_eq!(option("iot.sensor --from a --start soon"), "--start");
        assert_eq!(option("iot.sensor --from a --on-source-conflict newest"), "--on-source-conflict");
        assert_eq!(option("iot.sensor --from a --version-column v"), "--version-column");
        assert_eq!(refused("iot.sensor --from a --tz Europe/Berlin --start 2024-02-01").0, Reason::NaiveBound);
        assert!(load("iot.sensor --from a --tz UTC --start 2024-02-01").is_ok());
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
    fn lakes_elsewhere_are_refused() {
        assert_eq!(lake_folder(Path::new("aws:plant")).unwrap_err().reason, Reason::NotYetSupported);
        assert!(lake_folder(Path::new("./lake")).is_ok());
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
