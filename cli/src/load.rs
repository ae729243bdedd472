//! From what was typed for a load to a [`BackfillRequest`]. Takes the clap struct and the saved request beside which it
//! stands, if any; gives the model's request or an `invalid_option` error that names the option. What was typed
//! overrides what was saved, option by option; the rules between options hold for what comes of both.

use crate::args::LoadArgs;
use crate::request_file::Saved;
use crate::resolve::{memory_bytes, option_error, table_name, threads};
use timelake_engine::open::Earlier;
use timelake_model::request::{Mode, OnBadRow, OnSourceConflict, RowOptions, RunOptions, TextOptions};
use timelake_model::{BackfillRequest, Error, Result, TimestampUs};

pub fn backfill_request(load: &LoadArgs, saved: Option<Saved>, available_threads: usize) -> Result<(BackfillRequest, Earlier)> {
    let Saved { table, rows, run, threads: saved_threads } = saved.unwrap_or_default();
    let Some(table) = load.table.as_deref().or(table.as_deref()) else {
        return Err(option_error("TABLE", None, "no table is named".into())
            .hint("write the table first: timelake backfill TABLE --from PATH... (words after --from are all sources)"));
    };
    let table = table_name(table)?;
    let rows = row_options(load, rows);
    check(&rows)?;
    let run = RunOptions {
        threads: threads(load.threads.or(saved_threads), available_threads)?,
        memory_bytes: load.memory.as_deref().map_or(Ok(run.memory_bytes), memory_bytes)?,
        verify_full: load.verify.is_some() || run.verify_full,
        stage_only: load.stage_only || run.stage_only,
        work_dir: load.work_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned()).or(run.work_dir),
        keep_runs: load.keep_runs || run.keep_runs,
        allow_overlap: load.allow_overlap || run.allow_overlap,
        max_in_flight: load.max_in_flight.or(run.max_in_flight),
    };
    Ok((BackfillRequest { table, rows, run }, Earlier { again: load.again, new: load.new, ..Earlier::default() }))
}

/// An option that excludes a saved one puts it out of force, and one that a saved one needs takes that along.
fn row_options(load: &LoadArgs, saved: RowOptions) -> RowOptions {
    let map: Vec<String> = load.map.iter().flat_map(|text| split_unescaped(text, ',')).filter(|pair| !pair.trim().is_empty()).collect();
    let keeps = |needed: bool, changed: bool| needed || !changed;
    let on_source_conflict = load.on_source_conflict.unwrap_or(saved.on_source_conflict);
    let on_bad_row = load.on_bad_row.unwrap_or(saved.on_bad_row);
    let mode = load.mode.unwrap_or(saved.mode);
    let saved_version =
        saved.version_column.filter(|_| keeps(on_source_conflict == OnSourceConflict::Newest, load.on_source_conflict.is_some()));
    let saved_most_bad = saved.max_bad_rows.filter(|_| keeps(on_bad_row != OnBadRow::Error, load.on_bad_row.is_some()));
    RowOptions {
        from: list(&load.from, saved.from),
        format: load.format.clone().or(saved.format),
        map: list(&map, saved.map),
        set: list(&load.set, saved.set),
        hive: load.hive || saved.hive,
        tz: load.tz.clone().or(saved.tz),
        ts_unit: load.ts_unit.or(saved.ts_unit),
        ts_format: load.ts_format.clone().or(saved.ts_format),
        ambiguous: load.ambiguous.unwrap_or(saved.ambiguous),
        nonexistent: load.nonexistent.unwrap_or(saved.nonexistent),
        start: load.start.clone().or(saved.start),
        end: load.end.clone().or(saved.end),
        min_ts: load.min_ts.clone().or(saved.min_ts),
        max_ts: load.max_ts.clone().or(saved.max_ts),
        on_out_of_range: load.on_out_of_range.unwrap_or(saved.on_out_of_range),
        on_bad_row,
        max_bad_rows: load.max_bad_rows.or(saved_most_bad),
        on_source_conflict,
        mode,
        allow_duplicates: load.allow_duplicates || (saved.allow_duplicates && keeps(mode == Mode::Append, load.mode.is_some())),
        only_missing: load.only_missing || saved.only_missing,
        version_column: load.version_column.clone().or(saved_version),
        override_retention: load.override_retention || (saved.override_retention && !load.clip_retention),
        clip_retention: load.clip_retention || (saved.clip_retention && !load.override_retention),
        text: text_options(load, saved.text),
    }
}

fn text_options(load: &LoadArgs, saved: TextOptions) -> TextOptions {
    let has_header = load.header_line.is_some() || load.skip_after_header.is_some();
    let has_none = !load.columns.is_empty();
    TextOptions {
        delimiter: load.delimiter.clone().or(saved.delimiter),
        decimal: load.decimal.clone().or(saved.decimal),
        thousands: load.thousands.clone().or(saved.thousands),
        encoding: load.encoding.clone().or(saved.encoding),
        null: list(&texts(&load.null), saved.null),
        null_number: list(&load.null_number, saved.null_number),
        bad_text_to: load.bad_text_to.clone().or(saved.bad_text_to),
        header_line: load.header_line.or(saved.header_line.filter(|_| !has_none)),
        skip_after_header: load.skip_after_header.unwrap_or(if has_none { 0 } else { saved.skip_after_header }),
        columns: list(&texts(&load.columns), if has_header { vec![] } else { saved.columns }),
    }
}

fn list(typed: &[String], saved: Vec<String>) -> Vec<String> {
    if typed.is_empty() { saved } else { typed.to_vec() }
}

/// The rules between options that need neither the table nor the source.
fn check(rows: &RowOptions) -> Result<()> {
    if rows.from.is_empty() {
        return Err(option_error("--from", None, "no source is named".into()).hint("name files, folders or globs: --from PATH..."));
    }
    if let Some(empty) = rows.from.iter().find(|from| from.trim().is_empty()) {
        return Err(option_error("--from", Some(empty), "a source is empty".into()).hint("is a variable of the shell not set?"));
    }
    for (option, example, pairs) in [("--map", "ts=time", &rows.map), ("--set", "site=hamburg", &rows.set)] {
        for pair in pairs {
            if split_unescaped(pair, '=').len() < 2 || pair.trim_start().starts_with('=') {
                return Err(option_error(option, Some(pair), format!("{option} {pair} has no name before an equals sign"))
                    .hint(format!("write {option} {example}")));
            }
        }
    }
    for pair in &rows.text.null_number {
        if pair.split_once('=').is_none_or(|(column, number)| column.trim().is_empty() || number.trim().is_empty()) {
            return Err(option_error("--null-number", Some(pair), format!("--null-number {pair} is not COL=N"))
                .hint("write --null-number value=-9999"));
        }
    }
    check_bounds(rows)?;
    let without_effect = |option: &str, value: Option<&str>, hint: &str| {
        Err::<(), Error>(option_error(option, value, format!("{option} has no effect here")).hint(hint))
    };
    if rows.on_source_conflict == OnSourceConflict::Newest && rows.version_column.is_none() {
        return Err(option_error("--on-source-conflict", Some("newest"), "newest needs a column that says which row is newer".into())
            .hint("name it: --version-column COL"));
    }
    if rows.version_column.is_some() && rows.on_source_conflict != OnSourceConflict::Newest {
        return without_effect("--version-column", rows.version_column.as_deref(), "it goes with --on-source-conflict newest");
    }
    if rows.max_bad_rows.is_some() && rows.on_bad_row == OnBadRow::Error {
        return without_effect("--max-bad-rows", None, "the first bad row stops the job; it goes with --on-bad-row skip or quarantine");
    }
    if !rows.text.columns.is_empty() && (rows.text.header_line.is_some() || rows.text.skip_after_header > 0) {
        return without_effect("--columns", None, "it is for files without a header, so leave out --header-line and --skip-after-header");
    }
    Ok(())
}

/// Comma-separated texts; a comma that is part of one has a backslash before it.
fn texts(typed: &[String]) -> Vec<String> {
    typed.iter().flat_map(|list| split_unescaped(list, ',')).map(|text| text.replace("\\,", ",")).collect()
}

/// Bounds are instants, naive ones only where they cannot mean two things, and a window is not empty.
fn check_bounds(rows: &RowOptions) -> Result<()> {
    let naive_is_error = rows.tz.as_deref().is_some_and(|zone| !is_utc(zone));
    let parse = |text: &Option<String>, option: &str| -> Result<Option<TimestampUs>> {
        text.as_ref().map(|text| TimestampUs::parse_bound(text, option, naive_is_error)).transpose()
    };
    let bounds = [
        ("--start", parse(&rows.start, "--start")?, "--end", parse(&rows.end, "--end")?),
        ("--min-ts", parse(&rows.min_ts, "--min-ts")?, "--max-ts", parse(&rows.max_ts, "--max-ts")?),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use timelake_model::Reason;
    use timelake_model::request::{Ambiguous, TimeUnit};

    fn beside(words: &str, saved: Option<Saved>) -> Result<(BackfillRequest, Earlier)> {
        let words = ["timelake", "backfill"].into_iter().chain(words.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Backfill(args) if args.verb.is_none() => backfill_request(&args.load, saved, 3),
            other => panic!("not a load: {other:?}"),
        }
    }
    fn load(words: &str) -> Result<(BackfillRequest, Earlier)> {
        beside(words, None)
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
             --mode append --allow-duplicates --only-missing --allow-overlap --max-in-flight 7",
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
            max_in_flight: Some(7),
        };
        assert_eq!(request.run, run);
        assert!(options.again && options.new);
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

    /// What was saved with some words, as it comes back beside others.
    fn rows_of(saved: &str, typed: &str) -> RowOptions {
        let (request, _) = load(saved).unwrap();
        let saved = Saved { table: Some(request.table), rows: request.rows, run: request.run, threads: None };
        let (request, _) = beside(typed, Some(saved)).unwrap();
        assert_eq!(request.table, "iot.sensor");
        request.rows
    }

    #[test]
    fn typed_options_override_saved_ones() {
        const SAVED: &str = "iot.sensor --from a b --map x=y --tz UTC --ambiguous later --null - --on-source-conflict newest \
                             --version-column v --on-bad-row skip --max-bad-rows 5 --mode append --allow-duplicates --clip-retention \
                             --header-line 3 --skip-after-header 1 --hive";
        assert_eq!(rows_of(SAVED, ""), load(SAVED).unwrap().0.rows);
        let rows = rows_of(SAVED, "--from c --map q= --tz +01:00 --ambiguous error --null NA --set s=1");
        assert_eq!((rows.from, rows.map, rows.set), (vec!["c".to_string()], vec!["q=".to_string()], vec!["s=1".to_string()]));
        assert_eq!((rows.tz.as_deref(), rows.ambiguous, rows.text.null), (Some("+01:00"), Ambiguous::Error, vec!["NA".to_string()]));
        assert!(rows.hive && rows.allow_duplicates && rows.clip_retention);
        assert_eq!((rows.version_column.as_deref(), rows.max_bad_rows, rows.text.header_line), (Some("v"), Some(5), Some(3)));
    }

    #[test]
    fn a_typed_option_puts_out_of_force_what_it_excludes() {
        let first = rows_of("iot.sensor --from a --on-source-conflict newest --version-column v", "--on-source-conflict first");
        assert_eq!((first.on_source_conflict, first.version_column), (OnSourceConflict::First, None));
        assert_eq!(rows_of("iot.sensor --from a --on-bad-row skip --max-bad-rows 5", "--on-bad-row error").max_bad_rows, None);
        assert!(!rows_of("iot.sensor --from a --mode append --allow-duplicates", "--mode merge").allow_duplicates);
        let over = rows_of("iot.sensor --from a --clip-retention", "--override-retention");
        assert!(over.override_retention && !over.clip_retention);
        let text = rows_of("iot.sensor --from a --header-line 3 --skip-after-header 1", "--columns a,b").text;
        assert_eq!((text.header_line, text.skip_after_header, text.columns.len()), (None, 0, 2));
        assert!(rows_of("iot.sensor --from a --columns a,b", "--header-line 2").text.columns.is_empty());
    }

    #[test]
    fn saved_threads_are_those_that_were_asked_for() {
        let threads = |saved, typed: &str| {
            let rows = RowOptions { from: vec!["a".into()], ..Default::default() };
            let saved = Saved { table: Some("iot.sensor".into()), rows, run: RunOptions::default(), threads: saved };
            beside(typed, Some(saved)).unwrap().0.run.threads
        };
        assert_eq!((threads(None, ""), threads(Some(2), ""), threads(Some(2), "--threads 9")), (3, 2, 9));
    }
}
