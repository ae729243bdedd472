//! A request as it is typed: the command that made a job, so that it can be read, copied and run again. Takes the
//! stored request; gives one word list with only what differs from the defaults.

use crate::output::{Layout, quoted};
use console::measure_text_width;
use serde::Serialize;
use timelake_model::BackfillRequest;
use timelake_model::request::{OnSourceConflict, RowOptions, TextOptions};

/// The whole command. Where it does not fit beside `label_chars` of label, it goes on in the next line as a shell reads it.
pub fn command(request: &BackfillRequest, lake: &str, label_chars: usize, layout: Layout) -> String {
    const INDENT_AND_GAP: usize = 4;
    const GOES_ON: &str = " \\";
    let room = layout.width.map_or(usize::MAX, |width| width.saturating_sub(label_chars + INDENT_AND_GAP + GOES_ON.len()));
    let mut words = words(request);
    if !lake.is_empty() {
        words.push(lake.trim().into());
    }
    let mut lines = vec!["timelake backfill".to_string()];
    for word in words {
        match lines.last_mut() {
            Some(line) if measure_text_width(line) + 1 + measure_text_width(&word) <= room => line.push_str(&format!(" {word}")),
            _ => lines.push(word),
        }
    }
    lines.join(&format!("{GOES_ON}\n"))
}

/// The words after `timelake backfill`. Options of the run (`--threads`, `--memory`, ...) change no row and are left out.
fn words(request: &BackfillRequest) -> Vec<String> {
    // Destructured so that a new option cannot be forgotten here.
    let RowOptions {
        from,
        format,
        map,
        set,
        hive,
        tz,
        ts_unit,
        ts_format,
        ambiguous,
        nonexistent,
        start,
        end,
        min_ts,
        max_ts,
        on_out_of_range,
        on_bad_row,
        max_bad_rows,
        on_source_conflict,
        mode,
        allow_duplicates,
        only_missing,
        version_column,
        override_retention,
        clip_retention,
        text,
    } = &request.rows;
    let TextOptions { delimiter, decimal, thousands, encoding, null, null_number, bad_text_to, header_line, skip_after_header, columns } =
        text;
    let plain = RowOptions::default();
    let mut out = vec![quoted(&request.table), "--from".into()];
    out.extend(from.iter().map(|path| quoted(path)));
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // A value that looks like an option is bound to its name.
            match value.starts_with('-') {
                true => out.push(format!("{name}={}", quoted(&value))),
                false => out.extend([name.to_string(), quoted(&value)]),
            }
        }
    };
    option("--format", format.clone());
    option("--map", (!map.is_empty()).then(|| map.join(",")));
    for pair in set {
        option("--set", Some(pair.clone()));
    }
    option("--delimiter", delimiter.clone());
    option("--decimal", decimal.clone());
    option("--thousands", thousands.clone());
    option("--encoding", encoding.clone());
    for text in null {
        option("--null", Some(text.replace(',', "\\,")));
    }
    for pair in null_number {
        option("--null-number", Some(pair.clone()));
    }
    option("--bad-text-to", bad_text_to.clone());
    option("--header-line", header_line.map(|line| line.to_string()));
    option("--skip-after-header", (*skip_after_header > 0).then(|| skip_after_header.to_string()));
    for name in columns {
        option("--columns", Some(name.replace(',', "\\,")));
    }
    option("--tz", tz.clone());
    option("--ts-unit", ts_unit.as_ref().and_then(word));
    option("--ts-format", ts_format.clone());
    option("--ambiguous", changed(ambiguous, &plain.ambiguous));
    option("--nonexistent", changed(nonexistent, &plain.nonexistent));
    option("--start", start.clone());
    option("--end", end.clone());
    option("--min-ts", min_ts.clone());
    option("--max-ts", max_ts.clone());
    option("--on-out-of-range", changed(on_out_of_range, &plain.on_out_of_range));
    option("--on-bad-row", changed(on_bad_row, &plain.on_bad_row));
    option("--max-bad-rows", max_bad_rows.map(|rows| rows.to_string()));
    option("--on-source-conflict", changed::<OnSourceConflict>(on_source_conflict, &plain.on_source_conflict));
    option("--version-column", version_column.clone());
    option("--mode", changed(mode, &plain.mode));
    for (name, is_set) in [
        ("--hive", hive),
        ("--allow-duplicates", allow_duplicates),
        ("--only-missing", only_missing),
        ("--override-retention", override_retention),
        ("--clip-retention", clip_retention),
    ] {
        if *is_set {
            out.push(name.into());
        }
    }
    out
}

fn changed<T: Serialize + PartialEq>(value: &T, plain: &T) -> Option<String> {
    if value == plain { None } else { word(value) }
}

/// The option's word is the value's serialised name.
fn word<T: Serialize>(value: &T) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::load::backfill_request;
    use clap::Parser;

    #[test]
    fn the_command_of_a_request_gives_the_same_request() {
        for typed in [
            "iot.sensor --from a",
            "iot.sensor --from a b --format parquet --map ts=time,v=x+y --map q= --set s=a,b --hive --tz Europe/Berlin --ts-unit ms \
             --ambiguous later --nonexistent shift --start 2024-01-01T00:00Z --end 2024-02-01T00:00Z --min-ts 2000-01-01T00:00Z \
             --max-ts 2030-01-01T00:00Z --on-out-of-range skip --on-bad-row skip --on-source-conflict newest --version-column ver \
             --clip-retention",
            "iot.sensor --from a --override-retention --tz=-03:00",
            "iot.sensor --from a --mode append --allow-duplicates --only-missing",
            "iot.sensor --from a --format csv --delimiter x --decimal , --thousands . --encoding latin1 --null -,NA --null n \
             --null-number v=-1 --null-number w=9 --bad-text-to s --header-line 3 --skip-after-header 1 --ts-format %Y \
             --on-bad-row quarantine --max-bad-rows 5 --ambiguous infer",
            "iot.sensor --from a --columns ts,b",
        ] {
            let request = |words: Vec<String>| {
                let all = ["timelake".to_string(), "backfill".into()].into_iter().chain(words);
                let Command::Backfill(args) = Cli::try_parse_from(all).unwrap().command else { panic!() };
                backfill_request(&args.load, None, 1).unwrap().0
            };
            let first = request(typed.split_whitespace().map(String::from).collect());
            assert_eq!(request(words(&first)), first, "{typed}");
        }
    }

    #[test]
    fn a_long_command_goes_on_as_a_shell_reads_it() {
        let rows = RowOptions { from: vec!["a b".into(), "x".repeat(30)], tz: Some("Europe/Berlin".into()), ..RowOptions::default() };
        let request = BackfillRequest { table: "iot.sensor".into(), rows, run: Default::default() };
        let narrow = command(&request, " --lake ./l", 7, Layout { width: Some(60), color: false });
        let x = "x".repeat(30);
        assert_eq!(narrow, format!("timelake backfill iot.sensor --from 'a b' \\\n{x} --tz \\\nEurope/Berlin --lake ./l"));
        assert!(!command(&request, "", 7, Layout::default()).contains('\n'));
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        let rows = RowOptions { from: vec!["my export/*.parquet".into()], ..RowOptions::default() };
        let request = BackfillRequest { table: "iot.sensor".into(), rows, run: Default::default() };
        assert_eq!(words(&request), ["iot.sensor", "--from", "'my export/*.parquet'"]);
    }
}
