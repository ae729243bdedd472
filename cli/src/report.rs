//! The run manifest for people: a summary after a run, everything on `report`. Takes the manifest, gives text;
//! the row counts stand as a sum that can be checked by eye.

use crate::output::{
    Align, Fields, Grid, Layout, Paint, counted, duration, instant, left, minute, number, padded, rate, right, shortened, size, window,
    wrapped,
};
use crate::{command_text, error_text};
use timelake_engine::jobs::needs_new_plan;
use timelake_model::ledger::{JobRecord, State};
use timelake_model::manifest::{RepeatedHour, RunManifest};
use timelake_model::{Counts, Error, JobId, TimestampUs};

/// More lines of one kind than this are counted, not printed.
const MOST_LINES: usize = 20;
/// Of warnings, a summary shows fewer: it is the rows that are to be seen.
pub const MOST_WARNINGS_OF_A_SUMMARY: usize = 5;
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

/// What only the run itself knows.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThisRun {
    /// Rows it read: fewer than the job's when it went on with an earlier run's work.
    pub rows_read: u64,
}

/// What a finished `backfill`, `resume`, `publish` or `cancel` prints.
pub fn summary(m: &RunManifest, run: &ThisRun, layout: Layout, again: &Again) -> String {
    let mut out = head(m, layout);
    out.push_str(&overview(m, run.rows_read).render(2, layout));
    out.push('\n');
    out.push_str(&rows(m, layout));
    out.push_str(&warnings(m, MOST_WARNINGS_OF_A_SUMMARY, layout));
    out.push_str(&next_lines(&next(m.state, &m.job, m.error.as_ref(), again), layout));
    out
}

/// What a run prints that found its job published: it did nothing, so there are no rows to account for.
pub fn nothing_to_do(m: &RunManifest, published: TimestampUs, layout: Layout) -> String {
    let mut out = format!("{} by an earlier run\n", head(m, layout).trim_end());
    let mut fields = Fields::default();
    fields.add("table", m.table.clone()).add("published", format!("{} UTC", minute(published)));
    out.push_str(&fields.render(2, layout));
    out.push_str(&next_lines(&["nothing changed; --again loads the source again".into()], layout));
    out
}

/// What `report JOB` prints.
pub fn full(m: &RunManifest, record: &JobRecord, layout: Layout, again: &Again) -> String {
    let mut out = head(m, layout);
    let mut fields = Fields::default();
    fields.add("command", command_text::command(&record.request, &again.lake, "read amplification".len(), layout));
    fields.append(all_fields(m));
    out.push_str(&fields.render(2, layout));
    out.push('\n');
    if let Some(error) = standing_error(m, layout) {
        out.push_str(&format!("{error}\n"));
    }
    out.push_str(&rows(m, layout));
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
    out.push_str(&warnings(m, MOST_LINES, layout));
    if !m.state.is_published() {
        out.push_str(&next_lines(&next(m.state, &m.job, m.error.as_ref(), again), layout));
    }
    out
}

/// The overview, and what only a report needs.
pub fn all_fields(m: &RunManifest) -> Fields {
    let mut fields = overview(m, 0);
    fields.add("as of", format!("{} UTC", instant(m.as_of)));
    let plan = &m.plan;
    if !plan.hash.is_empty() {
        let limit = number(plan.unit_rows_limit);
        fields.add("plan", format!("{}, at most {limit} rows each, hash {}", counted(plan.units, "unit"), plan.hash));
        fields.add("base snapshot", plan.base_snapshot.map_or("-".into(), |id| id.to_string()));
    }
    fields.add("key hash", m.key_hash.clone());
    if let Some(bytes) = m.peak_memory_bytes {
        fields.add("peak memory", size(bytes));
    }
    fields
}

fn head(m: &RunManifest, layout: Layout) -> String {
    let generation = if m.generation > 1 { format!(" (generation {})", m.generation) } else { String::new() };
    format!("{}  {}{generation}\n", layout.paint(m.job.as_str(), Paint::Strong), layout.paint(&m.state.to_string(), state_paint(m.state)))
}

pub fn state_paint(state: State) -> Paint {
    match state {
        State::Published | State::Refreshed => Paint::Good,
        State::Hold | State::Rejected => Paint::Bad,
        State::Cancelled | State::RolledBack => Paint::Dim,
        State::Planning | State::Landing | State::Writing | State::Staged | State::Validating => Paint::Waiting,
    }
}

/// `rows_of_run`: what the run that is summed up has read, for its rate; 0 when that is not known.
fn overview(m: &RunManifest, rows_of_run: u64) -> Fields {
    let mut fields = Fields::default();
    fields.add("table", m.table.clone());
    let mut window_text = window(&m.window);
    if m.window.end.is_some() {
        window_text.push_str(" UTC (end not included)");
    }
    fields.add("window", window_text);
    if let Some((first, last)) = m.time_range {
        fields.add("written times", format!("{} .. {} UTC", instant(first), instant(last)));
    }
    let pruned = match m.source.row_groups_pruned {
        0 => String::new(),
        n => format!(", {} of them outside the window", number(n)),
    };
    fields.add(
        "source",
        format!(
            "{}, {}, {}, {}{pruned}",
            counted(m.source.files, "file"),
            size(m.source.bytes),
            counted(m.source.rows, "row"),
            counted(m.source.row_groups, "row group")
        ),
    );
    if m.source.landed_bytes > 0 {
        fields.add("landed", format!("read once in order, sorted into {} of temporary files", size(m.source.landed_bytes)));
    }
    for hour in &m.repeated_hours {
        fields.add("repeated hour", repeated_hour(hour));
    }
    let sizes = match m.written.files {
        0 => String::new(),
        1 => format!(", {}", size(m.written.bytes)),
        _ => format!(", {} ({} to {})", size(m.written.bytes), size(m.written.smallest_file_bytes), size(m.written.largest_file_bytes)),
    };
    let unseen = if m.written.files > 0 && is_unpublished(m.state) { "; not published" } else { "" };
    fields.add("written", format!("{} in {}{sizes}{unseen}", counted(m.written.files, "file"), counted(m.written.partitions, "partition")));
    let seconds: f64 = m.steps.iter().map(|step| step.seconds).sum();
    if seconds > 0.0 {
        let rate = if rows_of_run > 0 { format!(", {}", rate(rows_of_run as f64 / seconds)) } else { String::new() };
        fields.add("time", format!("{}{rate}", duration(seconds)));
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

pub fn repeated_hour(hour: &RepeatedHour) -> String {
    format!("{} {}: both passes told apart for {} series", hour.local, hour.zone, number(hour.series))
}

/// No reader sees its rows.
pub fn is_unpublished(state: State) -> bool {
    !state.is_published() && state != State::RolledBack
}

/// A line of the first conservation equation.
pub struct RowLine {
    pub name: &'static str,
    pub rows: u64,
    pub note: String,
}

/// What became of each row: the lines add up to the rows that were read.
pub fn row_lines(m: &RunManifest) -> Vec<RowLine> {
    let counts = &m.counts;
    let part = |n: u64, words: &str| if n > 0 { format!("{} {words}", number(n)) } else { String::new() };
    let written = match counts.rows_written {
        n if n > 0 && is_unpublished(m.state) => "not published".to_string(),
        _ => part(counts.rows_replacing, "replace an existing row"),
    };
    let lines = [
        ("written", counts.rows_written, written),
        ("kept existing", counts.kept_existing, part(counts.kept_existing_different, "had other values and were not taken")),
        ("duplicates collapsed", counts.duplicates_collapsed, String::new()),
        ("conflicts in the source", counts.in_source_conflicts, String::new()),
        ("rejected", counts.rejected, String::new()),
        ("outside range", counts.outside_range, String::new()),
        ("outside retention", counts.outside_retention, String::new()),
        ("chunk skipped", counts.skipped_chunk, String::new()),
    ];
    lines
        .into_iter()
        // Only --only-missing skips chunks; else the line would only ask for an explanation.
        .filter(|(name, n, _)| *n > 0 || *name != "chunk skipped")
        .map(|(name, rows, note)| RowLine { name, rows, note })
        .collect()
}

/// A rejected job may have stopped where rows that are good had not been counted yet.
pub fn uncounted_note(m: &RunManifest) -> Option<String> {
    (m.state == State::Rejected && m.counts.rows_read < m.source.rows)
        .then(|| format!("Of the {} only those are counted that ended before the job was rejected.", counted(m.source.rows, "source row")))
}

/// The lines as a sum, and below all that were read.
fn rows(m: &RunManifest, layout: Layout) -> String {
    let counts = &m.counts;
    let mut out = sum("rows", "read", counts.rows_read, &row_lines(m), layout);
    for part in uncounted_note(m).iter().flat_map(|note| wrapped(note, layout.width.map(|width| width.saturating_sub(2)))) {
        out.push_str(&format!("  {part}\n"));
    }
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
    let line = |name, rows| RowLine { name, rows, note: String::new() };
    let lines = [
        line("carried over", counts.carried),
        line("replaced", counts.replaced),
        line("deleted", counts.deleted),
        line("deleted before", counts.already_deleted),
    ];
    format!("\n{}", sum("rows of removed files", "in removed files", counts.rows_removed_files, &lines, layout))
}

pub fn sum(title: &str, total_name: &str, total: u64, lines: &[RowLine], layout: Layout) -> String {
    let names = lines.iter().map(|line| line.name).chain([total_name]).map(str::len).max().unwrap_or(0);
    let digits = lines.iter().map(|line| line.rows).chain([total]).map(|n| number(n).len()).max().unwrap_or(0);
    let mut out = format!("  {}\n", layout.paint(title, Paint::Strong));
    for RowLine { name, rows, note } in lines {
        let line = format!("    {}  {}  {note}", padded(name, names, Align::Left), padded(&number(*rows), digits, Align::Right));
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out.push_str(&format!("    {:names$}  {}\n", "", "-".repeat(digits)));
    out.push_str(&format!("    {}  {}\n", padded(total_name, names, Align::Left), padded(&number(total), digits, Align::Right)));
    out
}

/// What happened to single cells, no rows.
pub fn cell_fields(counts: &Counts) -> Fields {
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
    fields
}

fn cells(counts: &Counts, layout: Layout) -> String {
    let text = cell_fields(counts).render(4, layout);
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

/// At most `most` of them; the rest is counted.
pub fn warnings(m: &RunManifest, most: usize, layout: Layout) -> String {
    const LABEL: &str = "warning";
    let mut lines: Vec<String> = m.warnings.iter().take(most).cloned().collect();
    if m.warnings.len() > most {
        lines.push(format!("and {} (--json has all)", counted((m.warnings.len() - most) as u64, "more warning")));
    }
    let room = layout.width.map(|width| width.saturating_sub(LABEL.len() + 4));
    let mut out = String::new();
    for line in lines {
        for (i, part) in wrapped(&line, room).iter().enumerate() {
            let start = if i == 0 { format!("{}: ", layout.paint(LABEL, Paint::Waiting)) } else { " ".repeat(LABEL.len() + 2) };
            out.push_str(&format!("  {start}{part}\n"));
        }
    }
    if out.is_empty() { out } else { format!("\n{out}") }
}

/// Never broken: what stands here is copied into a shell.
pub fn next_lines(lines: &[String], layout: Layout) -> String {
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        let start = if i == 0 { format!("\n  {}: ", layout.paint("next", Paint::Strong)) } else { " ".repeat(8) };
        out.push_str(&format!("{start}{line}\n"));
    }
    out
}

/// What to do about a job that stands like this, one thing per line.
pub fn next(state: State, job: &JobId, error: Option<&Error>, again: &Again) -> Vec<String> {
    let command = |verb| again.job(verb, job);
    match state {
        State::Staged | State::Validating if error.is_none() => vec![command("publish")],
        State::Published | State::Refreshed => vec![command("report")],
        State::Hold if error.is_some_and(needs_new_plan) => {
            vec![command("cancel"), "then its command again, which makes a new plan".into()]
        }
        State::Hold => {
            vec![format!("{}   (when the cause is mended)", command("resume")), format!("{}   (to give it up)", command("cancel"))]
        }
        State::Rejected => {
            vec!["nothing was published; mend the source or the options, run it again".into(), FILES_STAY.into()]
        }
        State::Cancelled => vec!["nothing was published; the same command starts anew".into(), FILES_STAY.into()],
        State::RolledBack => vec!["the table is as it was before; the same command loads again".into()],
        State::Planning | State::Landing | State::Writing | State::Staged | State::Validating => vec![command("resume")],
    }
}

/// No command removes them yet, and nothing shall say that they are gone.
const FILES_STAY: &str = "(files it may have written stay where they are; no table refers to them)";
/// Of a place with its value, in a list of places.
const LONGEST_PLACE_CHARS: usize = 60;

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
    let error = m.error.as_ref().filter(|_| matches!(m.state, State::Hold | State::Rejected | State::Published))?;
    let mut out = error_text::for_people(error, layout);
    // The first one in source order is the error; the others are worth a line each.
    for other in m
        .errors
        .iter()
        .filter(|errors| errors.first.reason != error.reason || errors.first.place.column != error.place.column)
        .take(MOST_LINES)
    {
        let column = other.first.place.column.as_ref().map_or(String::new(), |column| format!(" in column {column}"));
        let shown: Vec<String> = other.places.iter().map(|place| shortened(place, LONGEST_PLACE_CHARS)).collect();
        let places = if shown.is_empty() { String::new() } else { format!(", first at {}", shown.join(", ")) };
        out.push_str(&format!("also: {} {}{column}{places}\n", counted(other.count, "row"), other.first.reason));
    }
    Some(out)
}
