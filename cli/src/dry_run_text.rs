//! The report of a dry run for people: aligned, as wide as the terminal, every figure with what it rests on.

use crate::output::{Align, Fields, Grid, Layout, Paint, counted, duration, instant, left, number, padded, right, shortened, size, window};
use crate::report::{MOST_WARNINGS_OF_A_SUMMARY, next_lines, repeated_hour, row_lines, sum, warnings};
use console::measure_text_width;
use timelake_model::cost::{CostEstimate, digits, usd};
use timelake_model::dry_run::{Basis, ChunkFigures, DryRun, Figure};
use timelake_model::ledger::State;
use timelake_model::manifest::RunManifest;
use timelake_model::time::Period;

/// Of a pipe.
const USUAL_WIDTH: usize = 80;
/// More chunks share lines.
const MOST_BARS: usize = 40;
const SHORTEST_BAR: usize = 10;
const LONGEST_BAR: usize = 60;
const MOST_BAD_ROWS: usize = 20;
const LONGEST_CELL: usize = 32;
const LONGEST_TEXT: usize = 60;
/// Eighths of a block, the whole one last.
const BLOCKS: [&str; 8] = ["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];

pub fn report(d: &DryRun, m: &RunManifest, command: &str, layout: Layout) -> String {
    let mut out = head(d, layout);
    out.push_str(&overview(d, m, layout));
    out.push('\n');
    out.push_str(&rows(d, m, layout));
    for part in [chunks(d, layout), columns(d, layout), first_rows(d, layout), bad_rows(d, layout), cost(d.cost.as_ref(), layout)] {
        if !part.is_empty() {
            out.push_str(&format!("\n{part}"));
        }
    }
    out.push_str(&warnings(m, MOST_WARNINGS_OF_A_SUMMARY, layout));
    let next = match d.error {
        None => command.to_string(),
        Some(_) => "mend what the error says; the run itself would end the same way".into(),
    };
    out.push_str(&next_lines(&[next], layout));
    out
}

fn head(d: &DryRun, layout: Layout) -> String {
    let would = match d.state {
        _ if d.error.is_some() => "the run would fail",
        State::Staged | State::Validating => "the run would stage it",
        _ if value(d, "rows_written") == 0 => "the run would add no row",
        _ => "the run would publish it",
    };
    let paint = if d.error.is_some() { Paint::Bad } else { Paint::Good };
    let sample = d.sample.map_or(String::new(), |rows| format!(", by the first {} of each file", counted(rows, "row")));
    format!("{}  {}{sample}; nothing was changed\n", layout.paint(d.job.as_str(), Paint::Strong), layout.paint(would, paint))
}

fn value(d: &DryRun, name: &str) -> u64 {
    d.rows.get(name).map_or(0, |figure| figure.value)
}

fn basis(basis: Basis) -> &'static str {
    match basis {
        Basis::Exact => "exact",
        Basis::Estimated => "estimated",
    }
}

/// `(exact)`
fn marked<T>(figure: &Figure<T>, text: String) -> String {
    format!("{text} ({})", basis(figure.basis))
}

fn heading(title: &str, of: Basis, layout: Layout) -> String {
    format!("  {} ({})\n", layout.paint(title, Paint::Strong), basis(of))
}

/// What all figures of the rows rest on.
fn of_rows(d: &DryRun) -> Basis {
    if d.sample.is_some() { Basis::Estimated } else { Basis::Exact }
}

fn overview(d: &DryRun, m: &RunManifest, layout: Layout) -> String {
    let mut fields = Fields::default();
    fields.add("table", d.table.clone());
    let included = if d.window.end.is_some() { " UTC (end not included)" } else { "" };
    fields.add("window", format!("{}{included} ({})", window(&d.window), basis(of_rows(d))));
    if let Some(range) = &d.time_range {
        let (first, last) = range.value;
        fields.add("times to write", marked(range, format!("{} .. {} UTC", instant(first), instant(last))));
    }
    let source = &d.source;
    for hour in &m.repeated_hours {
        fields.add("repeated hour", repeated_hour(hour));
    }
    fields.add("source", marked(&source.files, format!("{}, {}", counted(source.files.value, "file"), size(source.bytes.value))));
    fields.add("rows in it", marked(&source.rows, number(source.rows.value)));
    if d.sample.is_some() {
        fields.add("rows read", marked(&source.rows_seen, number(source.rows_seen.value)));
    }
    let overlap = &d.overlap;
    if let Some(keys) = &overlap.keys {
        let different = overlap.keys_different.as_ref().filter(|n| n.value > 0);
        let different = different.map_or(String::new(), |n| format!(", {} of them with other values", number(n.value)));
        fields.add("keys the table has", marked(keys, format!("{}{different}", number(keys.value))));
    }
    if let (Some(files), Some(rows)) = (&overlap.files, &overlap.rows) {
        fields.add("table in the window", marked(files, format!("{}, {}", counted(files.value, "file"), counted(rows.value, "row"))));
    }
    let plan = &d.plan;
    if plan.units.value > 0 {
        let limit = counted(plan.unit_rows_limit.value, "row");
        fields.add("units", marked(&plan.units, format!("{}, at most {limit} each", number(plan.units.value))));
        let amplification = format!("{:.2} rows decoded per row", plan.read_amplification.value);
        fields.add("read amplification", marked(&plan.read_amplification, amplification));
    }
    if let Some(landed) = plan.landed_bytes.as_ref().filter(|landed| landed.value > 0) {
        fields.add("temporary files", marked(landed, size(landed.value)));
    }
    let written = &d.written;
    let (files, partitions) = (counted(written.files.value, "file"), counted(written.partitions.value, "partition"));
    fields.add("files to write", marked(&written.files, format!("{files} in {partitions}")));
    if written.files.value > 0 {
        let sizes = match written.files.value {
            1 => String::new(),
            _ => format!(": {} to {}", size(written.smallest_file_bytes.value), size(written.largest_file_bytes.value)),
        };
        fields.add("their size", marked(&written.bytes, format!("{}{sizes}", size(written.bytes.value))));
    }
    let memory = &d.memory;
    fields.add("memory", marked(&memory.limit_bytes, format!("at most {}", size(memory.limit_bytes.value))));
    if let Some(peak) = &memory.peak_bytes {
        fields.add("peak", marked(peak, size(peak.value)));
    }
    let took = &d.duration;
    let range = format!("{} to {}", duration(took.at_least_seconds.value), duration(took.at_most_seconds.value));
    fields.add(
        "duration",
        marked(&took.seconds, format!("about {} ({range}), {}", duration(took.seconds.value), counted(took.threads, "thread"))),
    );
    fields.render(2, layout)
}

/// The lines add up to the rows that are read, also where a sample was scaled up.
fn rows(d: &DryRun, m: &RunManifest, layout: Layout) -> String {
    let mut scaled = m.clone();
    let counts = &mut scaled.counts;
    for (name, count) in [
        ("rejected", &mut counts.rejected),
        ("outside_range", &mut counts.outside_range),
        ("outside_retention", &mut counts.outside_retention),
        ("skipped_chunk", &mut counts.skipped_chunk),
        ("duplicates_collapsed", &mut counts.duplicates_collapsed),
        ("in_source_conflicts", &mut counts.in_source_conflicts),
        ("kept_existing", &mut counts.kept_existing),
        ("kept_existing_different", &mut counts.kept_existing_different),
        ("rows_written", &mut counts.rows_written),
    ] {
        *count = value(d, name);
    }
    let total = scaled.counts.accounted();
    let title = format!("rows ({})", basis(of_rows(d)));
    sum(&title, "read", total, &row_lines(&scaled), layout)
}

fn chunks(d: &DryRun, layout: Layout) -> String {
    let (Some(period), Some(_)) = (d.period, d.chunks.first()) else { return String::new() };
    let lines: Vec<Bar> = d.chunks.chunks(d.chunks.len().div_ceil(MOST_BARS)).map(Bar::of).collect();
    let wide = |of: fn(&Bar) -> String| lines.iter().map(of).map(|text| measure_text_width(&text)).max().unwrap_or(0);
    let names = wide(|line| line.name.clone());
    let written = wide(|line| number(line.written));
    let existing = |line: &Bar| line.existing.map_or(String::new(), |rows| format!("  + {} in the table", number(rows)));
    let notes = lines.iter().map(existing).map(|text| text.len()).max().unwrap_or(0);
    let room = layout.width.unwrap_or(USUAL_WIDTH).saturating_sub(4 + names + 2 + 2 + written + notes);
    let room = room.clamp(SHORTEST_BAR, LONGEST_BAR);
    let most = lines.iter().map(|line| line.written).max().unwrap_or(0).max(1);
    let each = match period {
        Period::Hour => "hour",
        Period::Day => "day",
        Period::Month => "month",
        Period::Year => "year",
    };
    let mut out = heading(&format!("rows to write per {each}"), of_rows(d), layout);
    for line in &lines {
        let bar = padded(&bar(line.written, most, room), room, Align::Left);
        let count = padded(&number(line.written), written, Align::Right);
        let text = format!("    {}  {bar}  {count}{}", padded(&line.name, names, Align::Left), existing(line));
        out.push_str(text.trim_end());
        out.push('\n');
    }
    let across = d.existing_across_chunks.value;
    if across > 0 {
        out.push_str(&format!("    {} more in the table in files that span several of these\n", counted(across, "row")));
    }
    out
}

/// A line of the chart: a chunk, or neighbours.
struct Bar {
    name: String,
    written: u64,
    /// None that is known of, or none: nothing is said.
    existing: Option<u64>,
}

impl Bar {
    fn of(chunks: &[ChunkFigures]) -> Bar {
        let name = match chunks {
            [] => String::new(),
            [one] => one.chunk.clone(),
            [first, .., last] => format!("{} .. {}", first.chunk, last.chunk),
        };
        let known: Vec<u64> = chunks.iter().filter_map(|c| c.existing.as_ref().map(|f| f.value)).collect();
        let existing = Some(known.iter().sum()).filter(|rows| *rows > 0);
        Bar { name, written: chunks.iter().map(|c| c.written.value).sum(), existing }
    }
}

/// A part of `width`, to an eighth of a character; something is more than nothing.
fn bar(value: u64, most: u64, width: usize) -> String {
    let eighths = (u128::from(value) * (width * 8) as u128 / u128::from(most.max(1))) as usize;
    let eighths = if value > 0 { eighths.max(1) } else { 0 };
    let mut out = BLOCKS[7].repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        out.push_str(BLOCKS[eighths % 8 - 1]);
    }
    out
}

fn columns(d: &DryRun, layout: Layout) -> String {
    if d.columns.is_empty() {
        return String::new();
    }
    let mut grid = Grid::new(vec![left("COLUMN", 0), left("TYPE", 2), left("MIN", 0), left("MAX", 0), right("NULL", 1)]);
    let cell = |figure: &Option<Figure<String>>| figure.as_ref().map_or("-".into(), |f| shortened(&f.value, LONGEST_CELL));
    for column in &d.columns {
        grid.row(vec![column.column.clone(), column.column_type.clone(), cell(&column.min), cell(&column.max), number(column.nulls.value)]);
    }
    format!("{}{}", heading("columns of the rows to write", of_rows(d), layout), grid.render(4, layout))
}

fn first_rows(d: &DryRun, layout: Layout) -> String {
    if d.first_rows.is_empty() {
        return String::new();
    }
    // Where it gets narrow the last columns go first, the first one never.
    let titles = d.columns.iter().enumerate().map(|(i, column)| left(column.column.clone(), i.min(usize::from(u8::MAX)) as u8));
    let mut grid = Grid::new(titles.collect());
    for row in &d.first_rows {
        grid.row(row.iter().map(|cell| shortened(cell, LONGEST_CELL)).collect());
    }
    format!("{}{}", heading("first rows as they would be stored", of_rows(d), layout), grid.render(4, layout))
}

fn bad_rows(d: &DryRun, layout: Layout) -> String {
    if d.bad_rows.is_empty() {
        return String::new();
    }
    let mut grid = Grid::new(vec![left("REASON", 0), left("COLUMN", 0), right("COUNT", 0), left("EFFECT", 2), left("FIRST", 1)]);
    for bad in d.bad_rows.iter().take(MOST_BAD_ROWS) {
        let effect = if bad.left_out { "left out" } else { "stops the run" };
        let first = bad.places.first().map_or(String::new(), |place| shortened(place, LONGEST_TEXT));
        grid.row(vec![bad.reason.clone(), bad.column.clone().unwrap_or_default(), number(bad.count.value), effect.into(), first]);
    }
    let mut out = format!("{}{}", heading("bad rows", of_rows(d), layout), grid.render(4, layout));
    if d.bad_rows.len() > MOST_BAD_ROWS {
        out.push_str(&format!("    ... and {} more (--json has all)\n", number((d.bad_rows.len() - MOST_BAD_ROWS) as u64)));
    }
    let mut texts = Fields::default();
    for bad in d.bad_rows.iter().filter(|bad| bad.reason == "bad_number" && !bad.distinct.is_empty()) {
        let shown: Vec<String> =
            bad.distinct.iter().map(|text| format!("\"{}\"", shortened(&text.escape_debug().to_string(), LONGEST_CELL))).collect();
        texts.add(bad.column.as_deref().unwrap_or("-"), shown.join(", "));
    }
    if !texts.is_empty() {
        out.push_str(&format!("\n{}{}", heading("texts in numeric columns", of_rows(d), layout), texts.render(4, layout)));
    }
    out
}

fn cost(cost: Option<&CostEstimate>, layout: Layout) -> String {
    let Some(cost) = cost else { return String::new() };
    let mut grid = Grid::new(vec![left("SERVICE", 0), right("X86", 0), right("ARM64", 0), left("FOR", 1)]);
    let amount = |usd: f64| format!("{usd:.*}", digits(cost.total_x86) + 1);
    for line in &cost.services {
        grid.row(vec![line.service.clone(), amount(line.x86), amount(line.arm64), line.detail.clone()]);
    }
    let prices = format!("{}, prices of {}", cost.region, cost.prices_as_of);
    grid.row(vec!["total".into(), amount(cost.total_x86), amount(cost.total_arm64), prices]);
    let mut out = format!("{}{}", heading("cost on AWS in USD", Basis::Estimated, layout), grid.render(4, layout));
    out.push_str(&format!("    and {} a month for the files, while they are kept\n", usd(cost.storage_per_month)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{published, rejected};
    use serde_json::{Value, from_value, json};
    use timelake_engine::dry_run::{Facts, Seen, report as facts_report};
    use timelake_engine::plan::PlanLimits;
    use timelake_model::cost::Prices;
    use timelake_model::inventory::ExistingFile;
    use timelake_model::manifest::ChunkRows;
    use timelake_model::request::{DEFAULT_MEMORY_BYTES, RowOptions};

    const COMMAND: &str = "timelake backfill iot.sensor --from export/";
    const PIPED: Layout = Layout { width: None, color: false };

    fn figure(value: Value, basis: Basis) -> Value {
        json!({"value": value, "basis": basis})
    }

    /// Of 24 months of uneven size.
    fn with_chunks(mut m: RunManifest) -> RunManifest {
        m.plan.period = Some(Period::Month);
        let chunk = |i: i64| ChunkRows {
            chunk: format!("{}-{:02}", 2022 + i / 12, i % 12 + 1),
            start: timelake_model::TimestampUs(Period::Month.start(624 + i)),
            existing: Some(if i == 3 { 1_200 } else { 0 }),
            written: [820_000, 3, 0, 1_640_000, 410_000, 833_000][i as usize % 6],
        };
        m.chunks = (0..24).map(chunk).collect();
        m
    }

    fn told(m: &RunManifest, sample: Option<u64>) -> DryRun {
        told_of(m, sample, false)
    }

    fn told_of(m: &RunManifest, sample: Option<u64>, by_functions: bool) -> DryRun {
        let files = [ExistingFile { path: "x".into(), bytes: 9, rows: 31_200, spec_id: 0, time: None, sequence: 1, partition: 0 }];
        let mut report = facts_report(&Facts {
            manifest: m,
            error: None,
            seen: &Seen::default(),
            columns: &[],
            existing: Some(&files),
            rows: &RowOptions::default(),
            limits: if by_functions { PlanLimits::of_functions(1 << 30) } else { PlanLimits::new(DEFAULT_MEMORY_BYTES, 2) },
            threads: 2,
            by_functions,
            sample,
            source_rows: if sample.is_some() { 201_000_000 } else { m.source.rows },
            lands: false,
            prices: &Prices::shipped().unwrap(),
        })
        .unwrap();
        let of = of_rows(&report);
        let column = |name: &str, of_type: &str, low: &str, high: &str, nulls: u64| json!({"column": name, "type": of_type, "min": figure(json!(low), of), "max": figure(json!(high), of), "nulls": figure(json!(nulls), of)});
        report.columns = from_value(json!([
            column("ts", "timestamptz", "2024-01-01T00:00:00Z", "2024-06-30T23:59:59.500Z", 0),
            column("device_id", "string", "plant-1.boiler", "plant-9.valve", 0),
            column("value", "double", "-40.25", "1250.0", 1_204),
        ]))
        .unwrap();
        report.first_rows = vec![
            vec!["2024-01-01T00:00:00Z".into(), "plant-1.boiler".into(), "20.5".into()],
            vec!["2024-01-01T00:00:10Z".into(), "plant-1.boiler".into(), "NULL".into()],
        ];
        report
    }

    #[test]
    fn reports_of_pinned_figures() {
        let good = with_chunks(published());
        insta::assert_snapshot!("narrow", report(&told(&good, None), &good, COMMAND, Layout { width: Some(80), color: false }));
        insta::assert_snapshot!("sample", report(&told(&good, Some(1_000)), &good, COMMAND, PIPED));
        let bad = rejected();
        let mut told = told(&bad, None);
        let first = told.bad_rows[0].clone();
        told.bad_rows.push(timelake_model::dry_run::BadRows {
            reason: "bad_number".into(),
            column: Some("value".into()),
            distinct: vec!["n/a".into(), "off\t".into()],
            left_out: true,
            ..first
        });
        (told.columns, told.first_rows) = (vec![], vec![]);
        insta::assert_snapshot!("bad", report(&told, &bad, COMMAND, PIPED));
    }

    #[test]
    fn a_run_of_functions_takes_their_memory_and_their_time() {
        let m = published();
        let (here, there) = (told(&m, None), told_of(&m, None, true));
        assert_eq!((here.state, there.state), (State::Published, State::Refreshed));
        assert_eq!((there.memory.limit_bytes.value, there.memory.peak_bytes), ((1 << 30) * 70 / 100, None));
        assert!(here.memory.peak_bytes.is_some());
        // All units at once, each with a call around it.
        assert_eq!((here.duration.threads, there.duration.threads), (2, m.plan.units));
        assert!(there.duration.at_least_seconds.value > timelake_model::cost::CALL_SECONDS);
        assert_eq!((here.cost, here.written), (there.cost, there.written));
    }

    #[test]
    fn charts_fit_the_terminal() {
        let m = with_chunks(published());
        for width in [60, 80, 132, 200] {
            let chart = chunks(&told(&m, None), Layout { width: Some(width), color: false });
            assert_eq!(chart.lines().count(), 25);
            assert!(chart.lines().all(|line| measure_text_width(line) <= width), "{width}\n{chart}");
        }
        // More chunks than lines: neighbours share one.
        let mut many = m.clone();
        many.chunks = (0..3_650).map(|i| ChunkRows { chunk: format!("d{i}"), written: 1, ..m.chunks[0].clone() }).collect();
        let chart = chunks(&told(&many, None), PIPED);
        assert!(chart.lines().count() <= MOST_BARS + 1, "{chart}");
        assert!(chart.contains("d0 .. d91 "), "{chart}");
    }

    #[test]
    fn bars_are_exact_to_an_eighth() {
        assert_eq!([0, 1, 50, 99, 100].map(|v| bar(v, 100, 4)), ["", "▏", "██", "███▉", "████"]);
        assert_eq!(bar(1, u64::MAX, 10), "▏");
    }
}
