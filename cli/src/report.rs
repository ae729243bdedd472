//! The run manifest for people: a summary after a run, everything on `report`. Takes the manifest, gives text;
//! the row counts stand as a sum that can be checked by eye.

use crate::error_text;
use crate::output::{
    Align, Fields, Grid, Layout, Paint, counted, duration, instant, left, number, padded, rate, right, size, window, wrapped,
};
use timelake_model::Counts;
use timelake_model::ledger::State;
use timelake_model::manifest::RunManifest;

/// More lines of one kind than this are counted, not printed.
const MOST_LINES: usize = 20;
/// From here on the plan reads so much twice that a person should know.
const NOTABLE_READ_AMPLIFICATION: f64 = 2.0;

/// How to call the command again: `timelake backfill`, with the lake when it is not the usual one.
#[derive(Debug, Clone, Default)]
pub struct Again {
    /// For example ` --lake ./other`.
    pub lake: String,
}

impl Again {
    pub fn job(&self, verb: &str, job: &impl std::fmt::Display) -> String {
        format!("timelake backfill {verb} {job}{}", self.lake)
    }
}

/// What a finished `backfill`, `resume`, `publish` or `cancel` prints.
pub fn summary(m: &RunManifest, layout: Layout, again: &Again) -> String {
    let mut out = head(m, layout);
    out.push_str(&overview(m).render(2, layout));
    out.push('\n');
    out.push_str(&rows(&m.counts, layout));
    out.push_str(&tail(m, layout, again));
    out
}

/// What `report JOB` prints.
pub fn full(m: &RunManifest, layout: Layout, again: &Again) -> String {
    let mut out = head(m, layout);
    let mut fields = overview(m);
    fields
        .add("as of", instant(m.as_of))
        .add(
            "plan",
            format!("{}, at most {} rows each, hash {}", counted(m.plan.units, "unit"), number(m.plan.unit_rows_limit), m.plan.hash),
        )
        .add("base snapshot", m.plan.base_snapshot.map_or("-".into(), |id| id.to_string()))
        .add("key hash", m.key_hash.clone());
    if let Some(bytes) = m.peak_memory_bytes {
        fields.add("peak memory", size(bytes));
    }
    out.push_str(&fields.render(2, layout));
    out.push('\n');
    out.push_str(&rows(&m.counts, layout));
    out.push_str(&removed_files(&m.counts, layout));
    out.push_str(&cells(&m.counts, layout));
    out.push_str(&steps(m, layout));
    out.push_str(&groups(m, layout));
    section(&mut out, "checks", m.checks.iter().map(|check| (check.name.clone(), check.detail.clone())), layout);
    out.push_str(&row_errors(m, layout));
    let missing = m.files_missing_column.iter().map(|(column, files)| (column.clone(), some_of(files)));
    section(&mut out, "columns missing in files (NULL there)", missing, layout);
    section(&mut out, "column sums", m.column_sums.iter().map(|(column, sum)| (column.clone(), sum.clone())), layout);
    if !m.rollup_ranges.is_empty() {
        let ranges: Vec<String> = m.rollup_ranges.iter().map(window).collect();
        section(&mut out, "changed ranges", [(counted(ranges.len() as u64, "range"), some_of(&ranges))].into_iter(), layout);
    }
    out.push_str(&tail(m, layout, again));
    out
}

fn head(m: &RunManifest, layout: Layout) -> String {
    let generation = if m.generation > 1 { format!(" (generation {})", m.generation) } else { String::new() };
    let already = if m.already_published { ", by an earlier run: nothing changed" } else { "" };
    format!(
        "{}  {}{generation}{already}\n",
        layout.paint(m.job.as_str(), Paint::Strong),
        layout.paint(&m.state.to_string(), state_paint(m.state))
    )
}

pub fn state_paint(state: State) -> Paint {
    match state {
        State::Published | State::Refreshed => Paint::Good,
        State::Hold | State::Rejected => Paint::Bad,
        State::Cancelled | State::RolledBack => Paint::Dim,
        State::Planning | State::Landing | State::Writing | State::Staged | State::Validating => Paint::Waiting,
    }
}

fn overview(m: &RunManifest) -> Fields {
    let mut fields = Fields::default();
    fields.add("table", m.table.clone());
    let mut window_text = window(&m.window);
    if m.window.end.is_some() {
        window_text.push_str(" (UTC, end not included)");
    }
    fields.add("window", window_text);
    if let Some((first, last)) = m.time_range {
        fields.add("written times", format!("{} .. {}", first.short(), last.short()));
    }
    let pruned = match m.source.row_groups_pruned {
        0 => String::new(),
        n => format!(", {} of them outside the window", number(n)),
    };
    fields.add(
        "source",
        format!("{}, {}, {}{pruned}", counted(m.source.files, "file"), size(m.source.bytes), counted(m.source.row_groups, "row group")),
    );
    let sizes = match m.written.files {
        0 => String::new(),
        1 => format!(", {}", size(m.written.bytes)),
        _ => format!(", {} ({} to {})", size(m.written.bytes), size(m.written.smallest_file_bytes), size(m.written.largest_file_bytes)),
    };
    fields.add("written", format!("{} in {}{sizes}", counted(m.written.files, "file"), counted(m.written.partitions, "partition")));
    let seconds: f64 = m.steps.iter().map(|step| step.seconds).sum();
    if seconds > 0.0 {
        fields.add("time", format!("{}, {}", duration(seconds), rate(m.counts.rows_read as f64 / seconds)));
    }
    if m.plan.read_amplification > 0.0 {
        let note = if m.plan.read_amplification >= NOTABLE_READ_AMPLIFICATION {
            " (row groups span many units: the source is badly clustered in time)"
        } else {
            ""
        };
        fields.add("read amplification", format!("{:.2} rows decoded per row{note}", m.plan.read_amplification));
    }
    fields
}

/// The first conservation equation as a sum: what became of each row, and below the line all that were read.
fn rows(counts: &Counts, layout: Layout) -> String {
    let part = |n: u64, words: &str| if n > 0 { format!("{} {words}", number(n)) } else { String::new() };
    let lines = [
        ("written", counts.rows_written, part(counts.rows_replacing, "replace an existing row")),
        ("kept existing", counts.kept_existing, part(counts.kept_existing_different, "had other values and were not taken")),
        ("duplicates collapsed", counts.duplicates_collapsed, String::new()),
        ("conflicts in the source", counts.in_source_conflicts, String::new()),
        ("rejected", counts.rejected, String::new()),
        ("outside range", counts.outside_range, String::new()),
        ("outside retention", counts.outside_retention, String::new()),
        ("chunk skipped", counts.skipped_chunk, String::new()),
    ]
    .into_iter()
    // No option of today skips chunks; the line would only ask for an explanation.
    .filter(|(name, n, _)| *n > 0 || *name != "chunk skipped")
    .collect::<Vec<_>>();
    let mut out = sum("rows", "read", counts.rows_read, &lines, layout);
    if counts.accounted() != counts.rows_read {
        out.push_str(&format!("  {} the lines add up to {}\n", layout.paint("do not agree:", Paint::Bad), number(counts.accounted())));
    }
    out
}

/// The second equation, for commits that remove files.
fn removed_files(counts: &Counts, layout: Layout) -> String {
    if counts.rows_removed_files == 0 {
        return String::new();
    }
    let lines = [
        ("carried over", counts.carried, String::new()),
        ("replaced", counts.replaced, String::new()),
        ("deleted", counts.deleted, String::new()),
        ("deleted before", counts.already_deleted, String::new()),
    ];
    format!("\n{}", sum("rows of removed files", "in removed files", counts.rows_removed_files, &lines, layout))
}

fn sum(title: &str, total_name: &str, total: u64, lines: &[(&str, u64, String)], layout: Layout) -> String {
    let names = lines.iter().map(|(name, ..)| *name).chain([total_name]).map(str::len).max().unwrap_or(0);
    let digits = lines.iter().map(|(_, n, _)| *n).chain([total]).map(|n| number(n).len()).max().unwrap_or(0);
    let mut out = format!("  {}\n", layout.paint(title, Paint::Strong));
    for (name, n, note) in lines {
        let line = format!("    {}  {}  {note}", padded(name, names, Align::Left), padded(&number(*n), digits, Align::Right));
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out.push_str(&format!("    {:names$}  {}\n", "", "-".repeat(digits)));
    out.push_str(&format!("    {}  {}\n", padded(total_name, names, Align::Left), padded(&number(total), digits, Align::Right)));
    out
}

fn cells(counts: &Counts, layout: Layout) -> String {
    let mut fields = Fields::default();
    for (name, n) in [
        ("times cut to microseconds", counts.precision_truncated),
        ("leap seconds", counts.leap_seconds),
        ("repeated headers", counts.repeated_headers),
    ] {
        if n > 0 {
            fields.add(name, number(n));
        }
    }
    for (column, n) in &counts.nulled {
        fields.add(&format!("NULL in {column} instead of a value"), number(*n));
    }
    let text = fields.render(4, layout);
    if text.is_empty() { text } else { format!("\n  cells\n{text}") }
}

fn steps(m: &RunManifest, layout: Layout) -> String {
    if m.steps.is_empty() {
        return String::new();
    }
    let mut grid = Grid::new(vec![left("STEP", 0), right("TIME", 0)]);
    for step in &m.steps {
        grid.row(vec![step.step.clone(), duration(step.seconds)]);
    }
    format!("\n{}", grid.render(2, layout))
}

fn groups(m: &RunManifest, layout: Layout) -> String {
    let mut grid = Grid::new(vec![
        left("GROUP", 0),
        left("STATE", 0),
        right("ROUND", 3),
        right("UNITS", 2),
        right("DERIVED AGAIN", 4),
        left("SNAPSHOT", 1),
    ]);
    for group in m.groups.iter().take(MOST_LINES) {
        let failed = if group.units_failed > 0 { format!(" ({} failed)", number(group.units_failed)) } else { String::new() };
        grid.row(vec![
            group.group.clone(),
            group.state.to_string(),
            number(u64::from(group.round)),
            format!("{}/{}{failed}", number(group.units_done), number(group.units)),
            number(u64::from(group.rederived)),
            group.published_snapshot.map_or("-".into(), |id| id.to_string()),
        ]);
    }
    if m.groups.is_empty() { String::new() } else { format!("\n{}{}", grid.render(2, layout), more(m.groups.len())) }
}

fn row_errors(m: &RunManifest, layout: Layout) -> String {
    let mut grid = Grid::new(vec![left("BAD ROWS", 0), left("COLUMN", 0), right("COUNT", 0), left("FIRST", 1)]);
    for errors in m.errors.iter().take(MOST_LINES) {
        grid.row(vec![
            errors.first.reason.to_string(),
            errors.first.place.column.clone().unwrap_or_default(),
            number(errors.count),
            errors.places.first().cloned().unwrap_or_default(),
        ]);
    }
    if m.errors.is_empty() { String::new() } else { format!("\n{}{}", grid.render(2, layout), more(m.errors.len())) }
}

pub fn section(out: &mut String, title: &str, lines: impl Iterator<Item = (String, String)>, layout: Layout) {
    let lines: Vec<(String, String)> = lines.collect();
    if lines.is_empty() {
        return;
    }
    let mut fields = Fields::default();
    for (name, text) in lines.iter().take(MOST_LINES) {
        fields.add(name, text.clone());
    }
    out.push_str(&format!("\n  {}\n{}{}", layout.paint(title, Paint::Strong), fields.render(4, layout), more(lines.len())));
}

/// The end of a list that was cut.
fn more(all: usize) -> String {
    if all > MOST_LINES { format!("    ... and {} more (--json has all)\n", number((all - MOST_LINES) as u64)) } else { String::new() }
}

fn some_of(words: &[String]) -> String {
    const MOST_WORDS: usize = 5;
    let shown = words.iter().take(MOST_WORDS).cloned().collect::<Vec<_>>().join(", ");
    if words.len() > MOST_WORDS { format!("{shown} and {} more", number((words.len() - MOST_WORDS) as u64)) } else { shown }
}

/// Warnings and what to do next.
fn tail(m: &RunManifest, layout: Layout, again: &Again) -> String {
    let mut out = String::new();
    let mut say = |label: &str, paint: Paint, text: &str| {
        let room = layout.width.map(|width| width.saturating_sub(label.len() + 4));
        for (i, line) in wrapped(text, room).iter().enumerate() {
            let start = if i == 0 { format!("{}: ", layout.paint(label, paint)) } else { " ".repeat(label.len() + 2) };
            out.push_str(&format!("  {start}{line}\n"));
        }
    };
    for warning in m.warnings.iter().take(MOST_LINES) {
        say("warning", Paint::Waiting, warning);
    }
    if m.warnings.len() > MOST_LINES {
        say("warning", Paint::Waiting, &format!("and {} more (--json has all)", m.warnings.len() - MOST_LINES));
    }
    for (i, line) in next(m, again).iter().enumerate() {
        // Never broken: what stands here is copied into a shell.
        let start = if i == 0 { format!("{}: ", layout.paint("next", Paint::Strong)) } else { " ".repeat(6) };
        out.push_str(&format!("  {start}{line}\n"));
    }
    if out.is_empty() { out } else { format!("\n{out}") }
}

/// One thing to do per line.
fn next(m: &RunManifest, again: &Again) -> Vec<String> {
    match m.state {
        State::Staged | State::Validating if m.error.is_none() => vec![again.job("publish", &m.job)],
        State::Published | State::Refreshed if m.already_published => vec!["nothing to do; --again loads the source again".into()],
        State::Published | State::Refreshed => vec![again.job("report", &m.job)],
        State::Hold => vec![
            format!("{}   (when the cause is mended)", again.job("resume", &m.job)),
            format!("{}   (to give it up)", again.job("cancel", &m.job)),
        ],
        State::Rejected => vec!["nothing was published; mend the source or the options, then run it again".into()],
        State::Cancelled => vec!["nothing is left of it; the same command starts anew".into()],
        State::RolledBack => vec!["the table is as it was before; the same command loads again".into()],
        State::Planning | State::Landing | State::Writing | State::Staged | State::Validating => vec![again.job("resume", &m.job)],
    }
}

/// Exit code of a run that gave a manifest: HOLD and REJECTED are no success.
pub fn exit_code(m: &RunManifest) -> u8 {
    const CONFLICT: u8 = 4;
    match m.state {
        State::Hold | State::Rejected => m.error.as_ref().map_or(CONFLICT, |error| error.exit_code()),
        _ => 0,
    }
}

/// Why the job stands still, for stderr.
pub fn standing_error(m: &RunManifest, layout: Layout) -> Option<String> {
    let error = m.error.as_ref().filter(|_| matches!(m.state, State::Hold | State::Rejected))?;
    let mut out = error_text::for_people(error, layout);
    // The first one in source order is the error; the others are worth a line each.
    for other in m
        .errors
        .iter()
        .filter(|errors| errors.first.reason != error.reason || errors.first.place.column != error.place.column)
        .take(MOST_LINES)
    {
        let column = other.first.place.column.as_ref().map_or(String::new(), |column| format!(" in column {column}"));
        let first = other.places.first().map_or(String::new(), |place| format!(", first at {place}"));
        out.push_str(&format!("also: {} {}{column}{first}\n", counted(other.count, "row"), other.first.reason));
    }
    Some(out)
}
