//! Others at work on the table: live writers, a compactor, a tool that expires snapshots. They know nothing of jobs.

use super::catalog::ident;
use super::desk::{Desk, runtime};
use super::files::{Live, Writer, at, branch, head, live_files, onto_main, rows_after_deletes, wrong};
use super::model::{Intent, Key, Row};
use super::process::now;
use super::scene::{key, rows};
use bytes::Bytes;
use iceberg::spec::MAIN_BRANCH;
use iceberg::table::Table;
use iceberg::{TableRequirement, TableUpdate};
use std::collections::BTreeMap;
use timelake_engine::ports::CommitOutcome;
use timelake_model::Result;

/// Times a commit is tried.
const TRIES: u32 = 6;

/// What one of them does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    Append,
    /// Onto a branch, and `main` follows.
    Audit,
    /// Equality deletes, and mostly new rows for the keys.
    Upsert,
    /// Rewrites the files of a day, or all; deletes are applied, and go when all is rewritten.
    Compact,
    /// Removes a file with its rows.
    Remove,
    /// Sets `main` back to a snapshot it had.
    Rewind,
    Expire,
}

pub struct Other {
    pub desk: Desk,
    pub deed: Deed,
    /// Different in each deed of a seed.
    pub number: u32,
}

impl Other {
    pub fn act(&self) {
        let _inside = runtime().enter();
        let done = now(async {
            match self.deed {
                Deed::Expire => super::expirer::expire(&self.desk).await,
                Deed::Audit => self.audit().await,
                Deed::Rewind => self.rewind().await,
                _ => self.write().await,
            }
        });
        if let Err(e) = done {
            self.desk.say(&format!("gives up: {e}"));
        }
    }

    /// Numbers of this actor alone.
    fn dice(&self) -> super::dice::Dice {
        super::dice::Dice::new(self.desk.world.lock().random(self.desk.id))
    }

    fn commit(&self, table: &Table, commit: (Vec<TableRequirement>, Vec<TableUpdate>), intent: Intent) -> Result<bool> {
        // Whoever does not know whether the commit went in leaves it at that.
        match self.desk.commit(table, commit.0, commit.1, Some(intent))? {
            CommitOutcome::Done(_) | CommitOutcome::Unknown(_) => Ok(true),
            CommitOutcome::Conflict(_) => Ok(false),
        }
    }

    async fn write(&self) -> Result<()> {
        let mut dice = self.dice();
        let count = 1 + dice.below(5);
        let new = rows(&mut dice, count, 500_000 + self.number * 1_000);
        for attempt in 0..TRIES {
            let table = self.desk.load(&ident())?;
            let from = head(&table)?;
            let mut writer = Writer::new(&self.desk, &table, format!("{:?}-{}-{attempt}", self.deed, self.number).to_lowercase());
            let (snapshot, intent) = match self.deed {
                Deed::Append => {
                    let files = writer.data(new.clone()).await?;
                    (writer.snapshot(from, files, vec![], &[]).await?, Intent::Append(new.clone()))
                }
                Deed::Upsert => {
                    let mut keys: Vec<Key> = new.iter().map(|r| r.key.clone()).chain([key(&mut dice)]).collect();
                    keys.sort();
                    keys.dedup();
                    let come: Vec<Row> = if dice.once_in(3) { vec![] } else { once_per_key(new.clone()) };
                    let (data, deletes) = (writer.data(come.clone()).await?, writer.deletes(&keys).await?);
                    (writer.snapshot(from, data, deletes, &[]).await?, Intent::Upsert(keys, come))
                }
                Deed::Compact => {
                    let live = live_files(&table, from).await?;
                    let Some((data, removed)) = self.compacted(&mut dice, &mut writer, &live).await? else { return Ok(()) };
                    (writer.snapshot(from, data, vec![], &removed).await?, Intent::Nothing)
                }
                _ => {
                    let live = live_files(&table, from).await?;
                    let data: Vec<Live> = live.iter().filter(|f| f.is_data()).cloned().collect();
                    if data.is_empty() || data.len() < live.len() {
                        return Ok(()); // which rows of a file are alive would have to be told
                    }
                    let victim = dice.pick(&data).clone();
                    let gone = self.rows(&table, std::slice::from_ref(&victim)).await?;
                    (writer.snapshot(from, vec![], vec![], &[victim]).await?, Intent::Remove(gone))
                }
            };
            if self.commit(&table, onto_main(from, snapshot), intent)? {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn rows(&self, table: &Table, files: &[Live]) -> Result<Vec<Row>> {
        let mut bytes: BTreeMap<String, Bytes> = BTreeMap::new();
        for file in files {
            let input = table.file_io().new_input(file.file().file_path()).map_err(wrong)?;
            bytes.insert(file.file().file_path().into(), input.read().await.map_err(wrong)?);
        }
        let rows = rows_after_deletes(files, |path| bytes.get(path).cloned().ok_or_else(|| wrong(path)))?;
        Ok(rows.into_iter().flat_map(|(row, times)| std::iter::repeat_n(row, times as usize)).collect())
    }

    /// New files, and those they replace.
    async fn compacted(
        &self,
        dice: &mut super::dice::Dice,
        writer: &mut Writer<'_>,
        live: &[Live],
    ) -> Result<Option<(Vec<iceberg::spec::DataFile>, Vec<Live>)>> {
        let days: Vec<_> = live.iter().map(Live::day).collect();
        let all = days.is_empty() || dice.once_in(2);
        let day = if all { None } else { dice.pick(&days).clone() };
        let chosen: Vec<Live> = live.iter().filter(|f| all || f.day() == day).cloned().collect();
        if chosen.iter().filter(|f| f.is_data()).count() == 0 {
            return Ok(None);
        }
        let rows = self.rows(writer.table, &chosen).await?;
        Ok(Some((writer.data(rows).await?, chosen)))
    }

    async fn audit(&self) -> Result<()> {
        let mut dice = self.dice();
        let count = 1 + dice.below(5);
        let new = once_per_key(rows(&mut dice, count, 700_000 + self.number * 1_000));
        let name = format!("audit-{}", self.number);
        let table = self.desk.load(&ident())?;
        let from = head(&table)?;
        let mut writer = Writer::new(&self.desk, &table, name.clone());
        let files = writer.data(new.clone()).await?;
        let snapshot = writer.snapshot(from, files, vec![], &[]).await?;
        let id = snapshot.snapshot_id();
        let staged = (vec![at(&name, None)], vec![TableUpdate::AddSnapshot { snapshot }, branch(&name, id)]);
        let CommitOutcome::Done(table) = self.desk.commit(&table, staged.0, staged.1, None)? else { return Ok(()) };
        match dice.once_in(2) {
            true => self.desk.wait_for_staged(&mut dice),
            false => drop(self.desk.pause(std::time::Duration::from_millis(dice.below(400)))),
        }
        // Only forward: `main` is where the branch left it.
        let follow = (
            vec![at(MAIN_BRANCH, Some(from)), at(&name, Some(id))],
            vec![branch(MAIN_BRANCH, id), TableUpdate::RemoveSnapshotRef { ref_name: name.clone() }],
        );
        let table = self.desk.load(table.identifier())?;
        self.commit(&table, follow, Intent::Append(new)).map(|_| ())
    }

    async fn rewind(&self) -> Result<()> {
        let table = self.desk.load(&ident())?;
        let from = head(&table)?;
        let Some(to) = table.metadata().snapshot_by_id(from).and_then(|s| s.parent_snapshot_id()) else { return Ok(()) };
        if table.metadata().snapshot_by_id(to).is_none() {
            return Ok(());
        }
        self.commit(&table, (vec![at(MAIN_BRANCH, Some(from))], vec![branch(MAIN_BRANCH, to)]), Intent::Rewind(to)).map(|_| ())
    }
}

/// The last of each key.
fn once_per_key(rows: Vec<Row>) -> Vec<Row> {
    let by_key: BTreeMap<Key, Row> = rows.into_iter().map(|r| (r.key.clone(), r)).collect();
    by_key.into_values().collect()
}
