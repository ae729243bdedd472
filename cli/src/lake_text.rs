//! `backfill locks`, `backfill gc` and `worker` for people.

use crate::output::{Grid, Layout, counted, duration, left, minute, number, right, size, window};
use std::collections::BTreeMap;
use timelake_engine::gc::Litter;
use timelake_engine::locks::LockedWindow;
use timelake_engine::upkeep::Collected;
use timelake_local::Worked;

/// More things than this are counted by kind and job, not listed.
const MOST_ITEMS: usize = 40;

pub fn locks(locks: &[LockedWindow], layout: Layout) -> String {
    if locks.is_empty() {
        return "no window is locked\n".into();
    }
    let mut grid =
        Grid::new(vec![left("TABLE", 0), left("WINDOW", 0), left("JOB", 0), left("STATE", 0), right("GEN", 2), left("UPDATED", 1)]);
    for lock in locks {
        grid.row(vec![
            lock.table.clone(),
            window(&lock.window),
            lock.job.to_string(),
            lock.state.map_or("not in this lake".into(), |state| state.to_string()),
            lock.generation.to_string(),
            lock.updated.map_or("-".into(), minute),
        ]);
    }
    grid.render(0, layout)
}

fn word(kind: Litter) -> &'static str {
    match kind {
        Litter::File => "file",
        Litter::Runs => "temporary files",
        Litter::Branch => "branch",
        Litter::Lock => "lock",
        Litter::Tag => "tag",
        Litter::Job => "job",
    }
}

pub fn collected(collected: &Collected, layout: Layout) -> String {
    let verb = if collected.dry_run { "would be removed" } else { "removed" };
    if collected.items.is_empty() {
        return format!("nothing {}\n", if collected.dry_run { "would be removed" } else { "to remove" });
    }
    let mut out;
    if collected.items.len() <= MOST_ITEMS {
        let mut grid = Grid::new(vec![left("WHAT", 0), right("SIZE", 2), left("NAME", 0), left("WHY", 1)]);
        for item in &collected.items {
            let bytes = if item.bytes > 0 { size(item.bytes) } else { "-".into() };
            grid.row(vec![word(item.kind).into(), bytes, item.name.clone(), item.why.into()]);
        }
        out = grid.render(0, layout);
    } else {
        let mut kinds: BTreeMap<(&str, Litter, &str), (u64, u64)> = BTreeMap::new();
        for item in &collected.items {
            let known = kinds.entry((&item.job, item.kind, item.why)).or_default();
            *known = (known.0 + 1, known.1 + item.bytes);
        }
        let mut grid = Grid::new(vec![left("JOB", 0), left("WHAT", 0), right("COUNT", 0), right("SIZE", 0), left("WHY", 1)]);
        for ((job, kind, why), (count, bytes)) in kinds {
            grid.row(vec![job.into(), word(kind).into(), number(count), size(bytes), why.into()]);
        }
        out = grid.render(0, layout);
    }
    out.push_str(&format!("{}, {} {verb}\n", counted(collected.items.len() as u64, "thing"), size(collected.bytes)));
    out
}

pub fn worked(worked: &Worked) -> String {
    if worked.units == 0 {
        return "there was nothing to do\n".into();
    }
    format!(
        "{} of {} done, {} in {}\n",
        counted(worked.units, "unit"),
        worked.jobs.join(", "),
        counted(worked.rows, "row"),
        duration(worked.seconds)
    )
}
