//! What `main` must hold, by a model that knows nothing of files: rows by key, changed where the catalog swaps its pointer.

use std::collections::{BTreeMap, BTreeSet};
use timelake_model::request::Mode;
use timelake_model::{GroupName, JobId};

/// A row: its key, and a value that is written once in a seed, so that it tells who wrote it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub key: Key,
    pub value: u32,
}

/// Time in microseconds, and device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub time_us: i64,
    pub device: String,
}

/// Rows as a bag: live writers may write a key twice.
pub type Rows = BTreeMap<Row, u32>;

pub fn add(rows: &mut Rows, row: Row) {
    *rows.entry(row).or_default() += 1;
}

fn has(rows: &Rows, key: &Key) -> bool {
    let from = Row { key: key.clone(), value: 0 };
    rows.range(from..).next().is_some_and(|(row, _)| row.key == *key)
}

/// What an actor is about to do to the rows of `main`; said before its commit, true once the commit went in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intent {
    /// Rows stay as they are: compaction.
    Nothing,
    Append(Vec<Row>),
    /// Keys go, rows come.
    Upsert(Vec<Key>, Vec<Row>),
    /// These rows go, and no others of their keys.
    Remove(Vec<Row>),
    /// `main` is set to a snapshot it had.
    Rewind(i64),
}

/// Jobs, lives and groups.
pub type Life = (JobId, u32, GroupName);

#[derive(Default)]
pub struct Model {
    pub rows: Rows,
    /// Rows at each snapshot that `main` was at.
    at: BTreeMap<i64, Rows>,
    /// Rows that each publish added.
    pub published: BTreeMap<Life, u64>,
    /// Groups of which nothing may come to `main` any more.
    pub given_up: BTreeSet<Life>,
}

impl Model {
    pub fn apply(&mut self, intent: Intent) -> Result<(), String> {
        match intent {
            Intent::Nothing => {}
            Intent::Append(rows) => rows.into_iter().for_each(|row| add(&mut self.rows, row)),
            Intent::Upsert(keys, rows) => {
                self.rows.retain(|row, _| !keys.contains(&row.key));
                rows.into_iter().for_each(|row| add(&mut self.rows, row));
            }
            Intent::Remove(rows) => {
                for row in rows {
                    let times = self.rows.get_mut(&row).ok_or("a row is removed that is not there")?;
                    *times -= 1;
                    if *times == 0 {
                        self.rows.remove(&row);
                    }
                }
            }
            Intent::Rewind(to) => self.rows = self.at.get(&to).cloned().ok_or("main is set to a snapshot it never had")?,
        }
        Ok(())
    }

    /// A publish at this moment: incoming rows whose key is not there go in. `rows`: one per key.
    pub fn publish(&mut self, life: Life, rows: &[Row], mode: Mode) -> Result<(), (u32, String)> {
        let told = format!("group {} of generation {} of {}", life.2, life.1, life.0);
        if self.published.contains_key(&life) {
            return Err((2, format!("{told} is published twice")));
        }
        if self.given_up.contains(&life) {
            return Err((3, format!("{told} is published after it was given up")));
        }
        if mode == Mode::Fail
            && let Some(row) = rows.iter().find(|row| has(&self.rows, &row.key))
        {
            return Err((1, format!("{told} is published although {:?} exists", row.key)));
        }
        let new: Vec<Row> = rows.iter().filter(|row| !has(&self.rows, &row.key)).cloned().collect();
        self.published.insert(life, new.len() as u64);
        new.into_iter().for_each(|row| add(&mut self.rows, row));
        Ok(())
    }

    pub fn moved_to(&mut self, snapshot: i64) {
        self.at.insert(snapshot, self.rows.clone());
    }
}

/// The first difference, in words.
pub fn difference(expected: &Rows, found: &Rows) -> Option<String> {
    let count = |rows: &Rows, row: &Row| rows.get(row).copied().unwrap_or(0);
    let all: BTreeSet<&Row> = expected.keys().chain(found.keys()).collect();
    let wrong: Vec<&&Row> = all.iter().filter(|row| count(expected, row) != count(found, row)).collect();
    let first = wrong.first()?;
    let times = |n: u32| match n {
        0 => "not there".to_string(),
        1 => "there once".into(),
        n => format!("there {n} times"),
    };
    Some(format!(
        "{} rows differ; the first, {} {} value {}, is {} and should be {}",
        wrong.len(),
        timelake_model::TimestampUs(first.key.time_us).short(),
        first.key.device,
        first.value,
        times(count(found, first)),
        times(count(expected, first)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(time_us: i64, value: u32) -> Row {
        Row { key: Key { time_us, device: "a".into() }, value }
    }

    #[test]
    fn a_publish_adds_what_is_not_there_at_that_moment() {
        let mut model = Model::default();
        model.apply(Intent::Append(vec![row(1, 1), row(2, 2)])).unwrap();
        model.apply(Intent::Upsert(vec![row(2, 0).key], vec![])).unwrap();
        let life = |n: u32| (JobId("j".into()), n, GroupName::all());
        model.publish(life(1), &[row(1, 10), row(2, 11), row(3, 12)], Mode::Merge).unwrap();
        let expected: Rows = [row(1, 1), row(2, 11), row(3, 12)].map(|r| (r, 1)).into();
        assert_eq!(difference(&expected, &model.rows), None);
        assert_eq!(model.published[&life(1)], 2);
        assert_eq!(model.publish(life(1), &[], Mode::Merge).unwrap_err().0, 2);
        model.given_up.insert(life(2));
        assert_eq!(model.publish(life(2), &[], Mode::Merge).unwrap_err().0, 3);
        assert_eq!(model.publish(life(3), &[row(3, 9)], Mode::Fail).unwrap_err().0, 1);
        assert!(difference(&expected, &Rows::new()).is_some_and(|d| d.starts_with("3 rows differ")));
    }
}
