//! `backfill list`, `status` and `validate` for people.

use crate::output::{Fields, Grid, Layout, Paint, counted, left, minute, number, right, shortened, size, window};
use crate::report::{Again, next, next_lines, section, state_paint};
use crate::{command_text, error_text};
use console::measure_text_width;
use serde::Serialize;
use std::collections::BTreeSet;
use timelake_aws::Submitted;
use timelake_engine::jobs::{JobStatus, JobSummary};
use timelake_model::JobId;
use timelake_model::ledger::{State, UnitState};
use timelake_model::verdict::Verdict;

/// Answer of `backfill --detach`.
#[derive(Debug, Serialize)]
pub struct Detached<'a> {
    job: &'a JobId,
    #[serde(rename = "gen")]
    generation: u32,
    state: State,
    /// Of the state machine, if it plans the job.
    execution: Option<&'a str>,
}

impl Detached<'_> {
    pub fn of(submitted: &Submitted) -> Detached<'_> {
        let Submitted { job, execution, .. } = submitted;
        Detached { job: &job.job, generation: job.generation, state: job.state, execution: execution.as_deref() }
    }

    pub fn text(&self, layout: Layout, again: &Again) -> String {
        let life = if self.generation > 1 { format!(", generation {}", self.generation) } else { String::new() };
        let mut out =
            format!("{}{life}  {}  goes on by itself\n", self.job, layout.paint(&self.state.to_string(), state_paint(self.state)));
        let follow = format!("{}   (follows it to its end)", again.job("resume", self.job));
        out.push_str(&next_lines(&[again.job("status", self.job), follow], layout));
        out
    }
}

/// More units than this are counted, not printed; failed ones come first.
const MOST_UNITS: usize = 100;

/// On a terminal too narrow for all columns ids are cut to a beginning that names the job as well, then table names
/// are cut; the window goes first, the table and the time of the last change stay.
pub fn list(jobs: &[JobSummary], layout: Layout) -> String {
    if jobs.is_empty() {
        return "no jobs\n".into();
    }
    let all = list_grid(jobs, layout, usize::MAX, usize::MAX);
    let Some(limit) = layout.width.filter(|limit| all.width() > *limit) else { return all.render(0, layout) };
    let digits = digits_that_differ(jobs);
    let longest = jobs.iter().map(|job| job.table.chars().count()).max().unwrap_or(0);
    let narrow = |table_chars| list_grid(jobs, layout, digits, table_chars).render(0, layout);
    const LEAST_TABLE_CHARS: usize = 12;
    // Columns that can go are gone when the title no longer has them; then names give way, a letter at a time.
    (LEAST_TABLE_CHARS.min(longest)..=longest)
        .rev()
        .map(narrow)
        .find(|text| text.lines().all(|line| measure_text_width(line) <= limit) && text.lines().next().is_some_and(|t| t.contains(LAST)))
        .unwrap_or_else(|| narrow(LEAST_TABLE_CHARS))
}

const LAST: &str = "UPDATED";

/// `digits`: how many of an id's last part are shown; `table_chars`: how much of a table's name.
fn list_grid(jobs: &[JobSummary], layout: Layout, digits: usize, table_chars: usize) -> Grid {
    let mut grid = Grid::new(vec![
        left("JOB", 0),
        left("STATE", 0),
        left("TABLE", 0),
        left("WINDOW", 4),
        right("UNITS", 3),
        right("ROWS", 2),
        left(LAST, 1),
    ]);
    for job in jobs {
        grid.row(vec![
            beginning(job.job.as_str(), digits),
            layout.paint(&job.state.to_string(), state_paint(job.state)),
            shortened(&job.table, table_chars),
            window(&job.window),
            format!("{}/{}", number(job.units_done), number(job.units)),
            number(job.rows_written),
            minute(job.updated),
        ]);
    }
    grid
}

/// An id up to so many characters of its last part, the hash: every command takes it as well.
fn beginning(job: &str, digits: usize) -> String {
    let hash_at = job.rfind('-').map_or(0, |at| at + 1);
    job.chars().take(hash_at.saturating_add(digits)).collect()
}

/// The fewest digits, at least four, with which no two of the jobs begin alike.
fn digits_that_differ(jobs: &[JobSummary]) -> usize {
    const LEAST: usize = 4;
    const ALL: usize = 64;
    let differ = |digits: usize| {
        let short: BTreeSet<String> = jobs.iter().map(|job| beginning(job.job.as_str(), digits)).collect();
        short.len() == jobs.len()
    };
    (LEAST..ALL).find(|digits| differ(*digits)).unwrap_or(ALL)
}

pub fn status(status: &JobStatus, layout: Layout, again: &Again) -> String {
    let job = &status.job;
    let generation = if job.generation > 1 { format!(" (generation {})", job.generation) } else { String::new() };
    let mut out = format!(
        "{}  {}{generation}\n",
        layout.paint(job.job.as_str(), Paint::Strong),
        layout.paint(&job.state.to_string(), state_paint(job.state))
    );
    let mut fields = Fields::default();
    fields
        .add("table", job.table.clone())
        .add("window", window(&job.window))
        .add("command", command_text::command(&job.request, &again.lake, "updated".len(), layout))
        .add("made", format!("{} UTC", minute(job.created)))
        .add("updated", format!("{} UTC", minute(job.updated)));
    out.push_str(&fields.render(2, layout));
    if !status.groups.is_empty() {
        out.push('\n');
        out.push_str(&groups(status, layout));
    }
    if !status.units.is_empty() {
        out.push('\n');
        out.push_str(&units(status, layout));
    }
    let errors = job.error.iter().chain(status.groups.iter().filter_map(|group| group.error.as_ref()));
    let errors = errors.chain(status.units.iter().filter_map(|unit| unit.error.as_ref()));
    let mut shown = Vec::new();
    for error in errors {
        if !shown.contains(&error) {
            shown.push(error);
        }
    }
    const MOST_ERRORS: usize = 3;
    for error in shown.iter().take(MOST_ERRORS) {
        out.push('\n');
        out.push_str(&error_text::for_people(error, layout));
    }
    if shown.len() > MOST_ERRORS {
        out.push_str(&format!("... and {} (--json has all)\n", counted((shown.len() - MOST_ERRORS) as u64, "more error")));
    }
    let error = job.error.as_ref().or_else(|| status.groups.iter().find_map(|group| group.error.as_ref()));
    out.push_str(&next_lines(&next(job.state, &job.job, error, again), layout));
    out
}

fn groups(status: &JobStatus, layout: Layout) -> String {
    let mut grid =
        Grid::new(vec![left("GROUP", 0), left("STATE", 0), right("ROUND", 2), right("UNITS", 0), right("ROWS", 0), right("SIZE", 1)]);
    for group in &status.groups {
        let units = || status.units.iter().filter(|unit| unit.group == group.group.as_str());
        grid.row(vec![
            group.group.to_string(),
            layout.paint(&group.state.to_string(), state_paint(group.state)),
            number(u64::from(group.round)),
            format!("{}/{}", number(units().filter(|unit| unit.state == UnitState::Done).count() as u64), number(units().count() as u64)),
            number(units().map(|unit| unit.rows).sum()),
            size(units().map(|unit| unit.bytes).sum()),
        ]);
    }
    grid.render(2, layout)
}

fn units(status: &JobStatus, layout: Layout) -> String {
    let mut grid = Grid::new(vec![
        left("GROUP", 4),
        right("UNIT", 0),
        left("STATE", 0),
        left("WINDOW", 2),
        right("EXPECTED", 3),
        right("ROWS", 0),
        right("SIZE", 1),
        right("ATTEMPTS", 5),
        left("ERROR", 2),
    ]);
    let mut units: Vec<_> = status.units.iter().collect();
    if units.len() > MOST_UNITS {
        units.sort_by_key(|unit| match unit.state {
            UnitState::Failed => 0,
            UnitState::Pending => 1,
            UnitState::Done => 2,
        });
    }
    for unit in units.iter().take(MOST_UNITS) {
        let (state, paint) = match unit.state {
            UnitState::Pending => ("PENDING", Paint::Waiting),
            UnitState::Done => ("DONE", Paint::Good),
            UnitState::Failed => ("FAILED", Paint::Bad),
        };
        grid.row(vec![
            unit.group.clone(),
            number(u64::from(unit.unit)),
            layout.paint(state, paint),
            window(&unit.window),
            number(unit.estimated_rows),
            number(unit.rows),
            size(unit.bytes),
            number(u64::from(unit.attempts)),
            unit.error.as_ref().map_or(String::new(), |error| error.reason.to_string()),
        ]);
    }
    let mut out = grid.render(2, layout);
    if units.len() > MOST_UNITS {
        out.push_str(&format!("  ... and {} (--json has all)\n", counted((units.len() - MOST_UNITS) as u64, "more unit")));
    }
    out
}

/// What was found goes to stderr as errors; this is the answer.
pub fn verdict(verdict: &Verdict, layout: Layout) -> String {
    match verdict {
        Verdict::Approved { checks } => {
            let mut out = format!("{}\n", layout.paint("APPROVED", Paint::Good));
            section(&mut out, "checks", checks.iter().map(|check| (check.name.clone(), check.detail.clone())), layout);
            out
        }
        Verdict::Rejected { findings } => {
            format!("{}: {}\n", layout.paint("REJECTED", Paint::Bad), counted(findings.len() as u64, "finding"))
        }
    }
}
