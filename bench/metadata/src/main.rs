//! What metadata costs: `timelake-metadata FOLDER FILES UNITS` makes a table that holds FILES data files already, stages and
//! publishes as many of UNITS units onto it, and prints what that took as JSON. The data files are entries without files:
//! neither step reads them. Others commit to the job's window meanwhile, and before each of the first tries at publishing.

mod world;

use iceberg::spec::ManifestFile;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use timelake_bench::Cost;
use timelake_engine::publish;
use timelake_engine::stage::Staging;
use timelake_model::{Error, Result};
use world::World;

// As in the command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Tries at publishing that others come before.
const MOVES: u32 = 4;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match &arguments[..] {
        [folder, files, units] => files.parse::<u32>().ok().zip(units.parse::<u32>().ok()).map(|counts| (folder, counts)),
        _ => None,
    };
    let Some((folder, (files, units))) = parsed.filter(|(_, (files, units))| *units > 0 && files >= units) else {
        eprintln!("usage: timelake-metadata FOLDER FILES UNITS (at least one file in each unit)");
        return ExitCode::FAILURE;
    };
    match run(Path::new(folder), files, units).await {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("timelake-metadata: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(folder: &Path, files: u32, units: u32) -> Result<Value> {
    let world = World::make(folder, files, units).await?;
    let held_before = memory_bytes("VmRSS:");
    reset_peak();

    let staging = Cost::start();
    let World { engine, job, stored, group, receipts, .. } = &world;
    let group = Staging { engine, job, stored, group, receipts }.stage().await?;
    let staging = staging.end();
    world.catalog.others_come_first(MOVES);
    let publishing = Cost::start();
    match publish::publish(&world.engine, &world.job, &world.stored, &group, &world.receipts).await? {
        publish::Published::Done(_) => {}
        _ => return Err(Error::internal("the group was not published")),
    }
    let publishing = publishing.end();
    let peak = memory_bytes("VmHWM:");

    let tries = world.catalog.tries();
    let Some((first, later)) = tries.split_first() else { return Err(Error::internal("nothing was committed")) };
    let most = later.iter().copied().fold(0.0, f64::max);
    Ok(json!({
        "files": files,
        "units": units,
        "cpu_s": staging.0 + publishing.0,
        "wall_s": staging.1 + publishing.1,
        "stage_cpu_s": staging.0,
        // The first try merges the manifests, the others find them merged.
        "merge_cpu_s": (first - most).max(0.0),
        "try_cpu_s": most,
        "tries": tries.len(),
        "peak_bytes": peak,
        "held_before_bytes": held_before,
        "manifests": manifests(&world).await?,
    }))
}

/// The manifests that the published snapshot added: how large, and how much the ranges of days that they hold overlap.
async fn manifests(world: &World) -> Result<Value> {
    let table = world.table().await?;
    let snapshot = table.metadata().current_snapshot().ok_or_else(|| Error::internal("nothing was published"))?;
    let all = timelake_table::manifests_of(&table, snapshot).await?;
    let ours: Vec<&ManifestFile> = all.iter().filter(|m| m.added_snapshot_id == snapshot.snapshot_id()).collect();
    let day = |bound: &Option<iceberg::spec::ByteBuf>| {
        let bytes = bound.as_ref().map(|b| b.to_vec()).unwrap_or_default();
        bytes.try_into().map(i32::from_le_bytes).map_err(|_| Error::internal("a manifest has no bounds"))
    };
    let mut days = Vec::new();
    for manifest in &ours {
        let of_day = manifest.partitions.as_ref().and_then(|p| p.first()).ok_or_else(|| Error::internal("a manifest has no bounds"))?;
        days.push((day(&of_day.lower_bound)?, day(&of_day.upper_bound)?));
    }
    days.sort_unstable();
    let overlap = days.windows(2).map(|pair| (pair[0].1 - pair[1].0 + 1).max(0)).max().unwrap_or(0);
    let mut bytes: Vec<i64> = ours.iter().map(|m| m.manifest_length).collect();
    bytes.sort_unstable();
    Ok(json!({
        "count": ours.len(),
        "files": ours.iter().map(|m| u64::from(m.added_files_count.unwrap_or(0))).sum::<u64>(),
        "smallest_bytes": bytes.first(),
        "largest_bytes": bytes.last(),
        "days_in_two_at_most": overlap,
    }))
}

fn memory_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// The peak counts from here on (Linux: writing 5 to `clear_refs`).
fn reset_peak() {
    if let Err(error) = std::fs::write("/proc/self/clear_refs", "5") {
        eprintln!("timelake-metadata: the peak includes the preparation: {error}");
    }
}
