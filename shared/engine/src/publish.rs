//! publish: Approved → PublishedSnapshot. One metadata compare-and-swap: the staged files become visible on
//! whatever `main` is by then, the tag keeps them, the branch, the staged snapshots and the lock go.
//!
//! Must never happen: rows on `main` whose keys another writer put there since the units looked; a publish
//! without the branch at the validated snapshot (a cancelled or superseded job); a second publish.

use crate::Engine;
use crate::boundary::{Boundary, reached};
use crate::evolution::{same_table, still_fits};
use crate::inventory::{existing_rows, existing_rows_since, table_ident};
use crate::layouts;
use crate::overlap;
use crate::ports::CommitOutcome;
use crate::rounds::table_replaced;
use crate::stage::{added, branch_moved, list_path, summary};
use crate::store::{RoundBase, StoredPlan, load_base};
use crate::tries::{Tries, change_group};
use crate::{tries, write};
use iceberg::spec::ManifestFile;
use iceberg::table::Table;
use timelake_model::ids::{branch_name, lock_property, published_tag};
use timelake_model::ledger::{GroupRecord, JobRecord, State};
use timelake_model::receipt::ManifestRef;
use timelake_model::request::Mode;
use timelake_model::time::IsoDuration;
use timelake_model::{Error, Reason, Result, UnitReceipt};
use timelake_table::{Append, Publish};

/// Iceberg's property for the size of manifests, and its default.
const MANIFEST_TARGET_SIZE: &str = "commit.manifest.target-size-bytes";
const MANIFEST_TARGET_BYTES: i64 = 8 << 20;

/// How a try at publishing ended.
pub enum Published {
    Done(GroupRecord),
    /// `main` has rows that these units must look at first.
    Again {
        units: Vec<u32>,
        base: RoundBase,
    },
    Cancelled(GroupRecord),
}

/// Publishes a validated group.
pub async fn publish(
    engine: &Engine,
    job: &JobRecord,
    stored: &StoredPlan,
    group: &GroupRecord,
    receipts: &[UnitReceipt],
) -> Result<Published> {
    let ident = table_ident(&job.table)?;
    let branch = branch_name(&job.job, job.generation, &group.group);
    let tag = published_tag(&job.job, job.generation, &group.group);
    // The spec wants more than zero, and readers refuse the whole table otherwise.
    let undo_ms = IsoDuration::parse(&stored.inventory.table.contract.undo)?.upper_ms().max(1);
    let mut merged: Option<Vec<ManifestRef>> = None;
    let mut looked: Option<RoundBase> = None;
    let mut tries = Tries::new(engine.clock.as_ref(), "publishing");
    let mut group = group.clone();
    loop {
        let table = engine.catalog.load(&ident).await?;
        same_table(&table, &stored.plan)?;
        let metadata = table.metadata();
        let refs = timelake_table::refs(metadata)?;
        if let Some(done) = refs.get(&tag) {
            return finish(engine, &group, done.snapshot_id, receipts, &ident).await.map(Published::Done);
        }
        let staged = group.branch_snapshot.ok_or_else(|| Error::internal("a group without a branch cannot be published"))?;
        match refs.get(&branch).map(|r| r.snapshot_id) {
            Some(at) if at == staged => {}
            at => {
                let now = change_group(engine, &group, |_| false).await?;
                if now.cancel_requested {
                    return Ok(Published::Cancelled(now));
                }
                return Err(branch_moved(&branch, at, staged));
            }
        }
        still_fits(&table, stored)?;
        if !layouts::used(stored).is_empty() {
            layouts::refuse_partitioned_deletes(&table).await.map_err(|e| {
                e.hint("compact the table with its deletes applied and resume the job; or cancel it, take the layout off (timelake table contract TABLE --layout none) and run its command again")
            })?;
        }
        let head = metadata.current_snapshot().ok_or_else(|| table_replaced(&job.table))?.clone();
        match look_again(engine, job, stored, &group, receipts, &table, looked.take()).await? {
            Overlap::Clear(base) => looked = base,
            Overlap::Again { units, base } => return Ok(Published::Again { units, base }),
        }
        if group.checked_snapshot != Some(head.snapshot_id()) {
            group = change_group(engine, &group, |g| {
                g.checked_snapshot = Some(head.snapshot_id());
                true
            })
            .await?;
            reached(Boundary::HeadChecked);
        }
        let manifests = match &merged {
            Some(merged) => merged,
            None => {
                let made = merge(engine, &table, job, receipts).await?;
                reached(Boundary::ManifestsMerged);
                merged.insert(made)
            }
        };
        let id = tries::new_snapshot_id(engine.clock.as_ref(), &table);
        let properties = summary(job, &group, Some(staged));
        let ours: Vec<ManifestFile> = manifests.iter().map(|m| timelake_table::manifest_file(m, id)).collect();
        let append = Append {
            snapshot_id: id,
            manifests: ours,
            added: added(receipts),
            properties: &properties,
            now_ms: engine.clock.now().0.div_euclid(1000),
            list_path: list_path(metadata.location(), &group, id, engine.clock.random()),
        };
        let snapshot = timelake_table::append_snapshot(&table, &head, append).await?;
        let commit = timelake_table::publish(
            &table,
            Publish {
                main_at: head.snapshot_id(),
                branch: &branch,
                branch_at: staged,
                snapshot,
                tag: &tag,
                max_ref_age_ms: undo_ms,
                staged_to_remove: &group.staged,
                remove_lock: is_last(engine, &group).await?.then(|| lock_property(&job.job)),
            },
        )?;
        match engine.catalog.commit(&table, commit.requirements, commit.updates).await? {
            // The next load finds the tag: `main` is read again before we say so.
            CommitOutcome::Done(_) => reached(Boundary::PublishCommitted),
            CommitOutcome::Conflict(why) | CommitOutcome::Unknown(why) => tries.again(&why).await?,
        }
    }
}

/// Is the group on `main` already? A run that ended between the commit and the ledger finds its tag here.
pub async fn found_published(
    engine: &Engine,
    job: &JobRecord,
    group: &GroupRecord,
    receipts: &[UnitReceipt],
) -> Result<Option<GroupRecord>> {
    let ident = table_ident(&job.table)?;
    let table = engine.catalog.load(&ident).await?;
    match timelake_table::refs(table.metadata())?.get(&published_tag(&job.job, job.generation, &group.group)) {
        Some(tag) => finish(engine, group, tag.snapshot_id, receipts, &ident).await.map(Some),
        None => Ok(None),
    }
}

/// What became of the overlap since the units looked.
pub enum Overlap {
    /// Nothing that concerns their rows. What was seen of `main`, if it was looked at.
    Clear(Option<RoundBase>),
    /// These units must look at `main` as it is now.
    Again { units: Vec<u32>, base: RoundBase },
}

/// Compares what is live at the head of `main` with what the units saw, or with what was `looked` at since.
pub async fn look_again(
    engine: &Engine,
    job: &JobRecord,
    stored: &StoredPlan,
    group: &GroupRecord,
    receipts: &[UnitReceipt],
    table: &Table,
    looked: Option<RoundBase>,
) -> Result<Overlap> {
    same_table(table, &stored.plan)?;
    let head = table.metadata().current_snapshot_id().ok_or_else(|| table_replaced(&job.table))?;
    let checked = group.checked_snapshot.unwrap_or(stored.plan.base_snapshot);
    // What is only appended meets no row, whatever others do to theirs.
    if head == checked || job.request.rows.mode == Mode::Append {
        return Ok(Overlap::Clear(looked));
    }
    let before = match looked {
        Some(looked) => looked,
        None => load_base(engine, stored, &group.group, group.round).await?,
    };
    let existing = existing_rows_since(table, &before, head, &stored.inventory.table.contract, &stored.plan.window).await?;
    let units = overlap::check(table, stored, group, receipts, &before.existing, &existing).await?;
    let base = RoundBase { snapshot: head, existing };
    Ok(if units.is_empty() { Overlap::Clear(Some(base)) } else { Overlap::Again { units, base } })
}

/// A base to go on from when units could not read the files of theirs: its snapshot expired before the branch held it.
pub async fn lost_base(
    engine: &Engine,
    job: &JobRecord,
    stored: &StoredPlan,
    group: &GroupRecord,
    error: &Error,
) -> Result<Option<RoundBase>> {
    if error.reason != Reason::TableChanged {
        return Ok(None);
    }
    let table = engine.catalog.load(&table_ident(&job.table)?).await?;
    still_fits(&table, stored)?;
    let base = load_base(engine, stored, &group.group, group.round).await?;
    let Some(head) = table.metadata().current_snapshot_id().filter(|_| table.metadata().snapshot_by_id(base.snapshot).is_none()) else {
        return Ok(None);
    };
    let existing = existing_rows(&table, head, &stored.inventory.table.contract, &stored.plan.window).await?;
    Ok(Some(RoundBase { snapshot: head, existing }))
}

/// A manifest path means one thing to readers' caches, so `main` gets manifests of its own: those of the units, which are in
/// the order of time, merged to the size that the table asks for.
async fn merge(engine: &Engine, table: &Table, job: &JobRecord, receipts: &[UnitReceipt]) -> Result<Vec<ManifestRef>> {
    let manifests: Vec<ManifestRef> = receipts.iter().flat_map(|r| r.manifests.clone()).collect();
    let run = engine.clock.random() & 0xffff_ffff_ffff;
    let metadata = table.metadata();
    let location = metadata.location().trim_end_matches('/');
    let path = |i: usize| format!("{location}/metadata/{}-g{}-pub-{run:012x}-{i:05}.avro", job.job, job.generation);
    let target = metadata.properties().get(MANIFEST_TARGET_SIZE).and_then(|size| size.parse().ok()).unwrap_or(MANIFEST_TARGET_BYTES);
    let merged = timelake_table::merge_manifests(table.file_io(), &manifests, target, path).await?;
    engine.objects.make_durable(&merged.iter().map(|m| m.path.clone()).collect::<Vec<_>>()).await?;
    Ok(merged)
}

async fn is_last(engine: &Engine, group: &GroupRecord) -> Result<bool> {
    let groups = engine.jobs.groups(&group.job, group.generation).await?;
    Ok(groups.iter().all(|g| g.group == group.group || g.state.is_final()))
}

/// The tag is there: `main` is read again, and the group is PUBLISHED.
async fn finish(
    engine: &Engine,
    group: &GroupRecord,
    snapshot_id: i64,
    receipts: &[UnitReceipt],
    ident: &iceberg::TableIdent,
) -> Result<GroupRecord> {
    let table = engine.catalog.load(ident).await?;
    let snapshot = table.metadata().snapshot_by_id(snapshot_id).ok_or_else(|| Error::internal("the published snapshot is gone"))?;
    let manifests = timelake_table::manifests_of(&table, snapshot).await?;
    let ours: Vec<&ManifestFile> = manifests.iter().filter(|m| m.added_snapshot_id == snapshot_id).collect();
    let rows: u64 = ours.iter().map(|m| m.added_rows_count.unwrap_or(0)).sum();
    let files: u64 = ours.iter().map(|m| u64::from(m.added_files_count.unwrap_or(0))).sum();
    let expected = added(receipts);
    if (rows, files) != (expected.rows, expected.files) {
        return Err(Error::internal(format!(
            "the published snapshot adds {rows} rows in {files} files, the receipts say {} in {}",
            expected.rows, expected.files
        )));
    }
    change_group(engine, group, |g| {
        if g.state.is_published() {
            return false;
        }
        g.state = State::Published;
        g.published_snapshot = Some(snapshot_id);
        g.committed = true;
        g.error = None;
        true
    })
    .await
    .inspect(|_| reached(Boundary::GroupPublished))
}

/// A group that adds nothing: its branch goes, nothing is committed to `main`.
pub async fn publish_nothing(engine: &Engine, job: &JobRecord, group: &GroupRecord) -> Result<GroupRecord> {
    drop_branch(engine, job, group).await?;
    change_group(engine, group, |g| {
        if g.state.is_final() {
            return false;
        }
        g.state = State::Published;
        g.committed = false;
        g.error = None;
        true
    })
    .await
}

/// Removes the group's branch and staged snapshots, and the lock when no other group needs it. No error when
/// they are gone. Returns the published snapshot when the tag is there instead.
pub async fn drop_branch(engine: &Engine, job: &JobRecord, group: &GroupRecord) -> Result<Option<i64>> {
    let ident = table_ident(&job.table)?;
    let branch = branch_name(&group.job, group.generation, &group.group);
    let tag = published_tag(&group.job, group.generation, &group.group);
    let lock = lock_property(&group.job);
    let staged: Vec<i64> = group.staged.iter().copied().chain(group.next_snapshot).chain(group.next_kept).collect();
    let mut tries = Tries::new(engine.clock.as_ref(), "removing the staging branch");
    loop {
        let table = match engine.catalog.load(&ident).await {
            Ok(table) => table,
            Err(e) if e.reason == Reason::TableNotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let refs = timelake_table::refs(table.metadata())?;
        if let Some(done) = refs.get(&tag) {
            return Ok(Some(done.snapshot_id));
        }
        // A later life of the job may hold the window by now: that is not ours to give back.
        let ours = crate::locks::lock_of(table.metadata().properties(), &lock).is_none_or(|l| l.generation <= group.generation);
        let release = (ours && is_last(engine, group).await?).then(|| lock.clone());
        let commit = match refs.get(&branch) {
            Some(at) => timelake_table::drop_branch(&table, &branch, at.snapshot_id, &staged, release)?,
            None => match release.filter(|l| table.metadata().properties().contains_key(l)) {
                Some(lock) => timelake_table::Commit {
                    requirements: vec![iceberg::TableRequirement::UuidMatch { uuid: table.metadata().uuid() }],
                    updates: vec![iceberg::TableUpdate::RemoveProperties { removals: vec![lock] }],
                },
                None => return Ok(None),
            },
        };
        match engine.catalog.commit(&table, commit.requirements, commit.updates).await? {
            CommitOutcome::Done(_) => {
                reached(Boundary::BranchDropped);
                return Ok(None);
            }
            CommitOutcome::Conflict(why) | CommitOutcome::Unknown(why) => tries.again(&why).await?,
        }
    }
}

/// Rows and files that publishing would add, for messages.
pub fn describe(receipts: &[UnitReceipt]) -> String {
    let added = added(receipts);
    format!("{} rows in {} files of {} partitions", added.rows, added.files, write::partitions(receipts))
}
