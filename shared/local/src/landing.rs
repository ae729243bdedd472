//! The folder of landed runs: where it is, whether there is room, and that it goes when the job is over.

use crate::objects::write_error;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use timelake_engine::{Engine, store};
use timelake_model::land::{LandPlan, LandReceipt};
use timelake_model::ledger::JobRecord;
use timelake_model::request::{OnBadRow, RunOptions};
use timelake_model::{Error, Reason, Result};

/// Room that runs take, per byte of the source: typed columns are about half of their text, and compressed text unpacks
/// to more than runs take.
const RUN_BYTES_PER_TEXT_BYTE: f64 = 0.5;
const RUN_BYTES_PER_COMPRESSED_BYTE: f64 = 2.0;

/// The job's own folder, in the lake or where the user wants temporary files.
pub fn runs_folder(engine: &Engine, job: &JobRecord, options: &RunOptions) -> Result<String> {
    let Some(folder) = &options.work_dir else { return Ok(store::runs_uri(engine, &job.job, job.generation)) };
    Ok(format!("{}/{}-g{}-runs", work_dir(folder)?.display(), job.job, job.generation))
}

/// `--work-dir`, made when it is absent.
pub fn work_dir(folder: &str) -> Result<PathBuf> {
    let unusable = |e: std::io::Error| {
        if matches!(
            e.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
        ) {
            return write_error(Path::new(folder), e);
        }
        Error::invalid(Reason::InvalidOption, format!("--work-dir {folder} cannot be used: {e}"))
            .hint("name a folder that can be written to")
            .at(|p| {
                p.option = Some("--work-dir".into());
                p.value = Some(folder.to_string());
            })
    };
    std::fs::create_dir_all(folder).map_err(unusable)?;
    Path::new(folder).canonicalize().map_err(unusable)
}

/// Refuses before hours of work what would end with a full disk.
pub fn check_space(plan: &LandPlan, pending: &[u32]) -> Result<()> {
    let needed: f64 = pending
        .iter()
        .filter_map(|i| plan.inventory.objects.get(*i as usize))
        .map(|o| {
            let name = o.object.uri.to_lowercase();
            let plain = o.text && ![".gz", ".gzip", ".zst", ".zstd"].iter().any(|end| name.ends_with(end));
            o.object.size as f64 * if plain { RUN_BYTES_PER_TEXT_BYTE } else { RUN_BYTES_PER_COMPRESSED_BYTE }
        })
        .sum();
    std::fs::create_dir_all(&plan.folder).map_err(|e| {
        let error = write_error(Path::new(&plan.folder), e);
        let hint = format!("{}; or name another folder with --work-dir", error.hint.as_deref().unwrap_or("check the folder"));
        error.hint(hint)
    })?;
    // Where the system does not tell, the run finds out.
    let Ok(disk) = rustix::fs::statvfs(plan.folder.as_str()) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free as f64 >= needed {
        return Ok(());
    }
    let size = |bytes: f64| if bytes < 1e9 { format!("{:.1} MB", bytes / 1e6) } else { format!("{:.1} GB", bytes / 1e9) };
    Err(Error::unavailable(
        Reason::DiskFull,
        format!("sorting the source takes about {} in {}, {} are free", size(needed), plan.folder, size(free as f64)),
    )
    .hint("free some space, or name a folder on a larger disk with --work-dir")
    .at(|p| p.file = Some(plan.folder.clone())))
}

/// Joins the splits' lists of rows that were left out, in source order.
pub async fn list_rejected(engine: &Engine, job: &JobRecord, receipts: &[LandReceipt]) -> Result<()> {
    if job.request.rows.on_bad_row != OnBadRow::Quarantine {
        return Ok(());
    }
    let target = store::rejected_uri(engine, &job.job);
    let failed = |e: std::io::Error| write_error(Path::new(&target), e);
    // Written beside and renamed: a reader never sees a part of it.
    let beside = format!("{target}.part");
    let mut out = std::io::BufWriter::new(std::fs::File::create(&beside).map_err(failed)?);
    for path in receipts.iter().filter_map(|r| r.rejected.as_ref()) {
        std::io::copy(&mut std::fs::File::open(path).map_err(failed)?, &mut out).map_err(failed)?;
    }
    out.into_inner().map_err(|e| failed(e.into_error()))?.sync_all().map_err(failed)?;
    std::fs::rename(&beside, &target).map_err(failed)
}

/// Removes the runs of a job that is over. They are copies: its sources are untouched.
pub async fn remove_runs(engine: &Engine, job: &JobRecord) -> Result<()> {
    // Those of earlier lives as well: a process of theirs may have ended without a chance to.
    for generation in 1..=job.generation {
        let folder = match store::load_land_plan(engine, &job.job, generation).await {
            Ok(Some(plan)) => plan.folder,
            Ok(None) => continue,
            // What stands in a damaged plan is not worth an error any more; runs are here unless --work-dir was given.
            Err(e) if e.reason == Reason::LedgerDamaged => store::runs_uri(engine, &job.job, generation),
            Err(e) => return Err(e),
        };
        remove_folder(&folder);
    }
    Ok(())
}

pub fn remove_folder(folder: &str) {
    if let Err(e) = std::fs::remove_dir_all(folder)
        && e.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(folder, error = %e, "the temporary files of a job that is over cannot be removed");
    }
}
