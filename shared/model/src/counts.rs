//! Conservation: the numbers that must agree. Each source row counts once, at the first that fits.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    pub rows_read: u64,
    /// Bad rows, and times outside min/max.
    pub rejected: u64,
    /// Outside `--start`, `--end`.
    pub outside_range: u64,
    pub outside_retention: u64,
    pub skipped_chunk: u64,
    pub duplicates_collapsed: u64,
    pub in_source_conflicts: u64,
    pub kept_existing: u64,
    pub rows_written: u64,
    /// Part of `rows_written`.
    pub rows_replacing: u64,
    /// Part of `kept_existing`: the existing row has other values.
    pub kept_existing_different: u64,

    // second equation, for commits that remove files
    pub rows_removed_files: u64,
    pub carried: u64,
    pub replaced: u64,
    pub deleted: u64,
    pub already_deleted: u64,
    pub rows_added_files: u64,

    // cells and notes, no rows
    pub precision_truncated: u64,
    pub leap_seconds: u64,
    pub repeated_headers: u64,
    pub nulled: BTreeMap<String, u64>,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        let Counts {
            rows_read,
            rejected,
            outside_range,
            outside_retention,
            skipped_chunk,
            duplicates_collapsed,
            in_source_conflicts,
            kept_existing,
            rows_written,
            rows_replacing,
            kept_existing_different,
            rows_removed_files,
            carried,
            replaced,
            deleted,
            already_deleted,
            rows_added_files,
            precision_truncated,
            leap_seconds,
            repeated_headers,
            nulled,
        } = other;
        self.rows_read += rows_read;
        self.rejected += rejected;
        self.outside_range += outside_range;
        self.outside_retention += outside_retention;
        self.skipped_chunk += skipped_chunk;
        self.duplicates_collapsed += duplicates_collapsed;
        self.in_source_conflicts += in_source_conflicts;
        self.kept_existing += kept_existing;
        self.rows_written += rows_written;
        self.rows_replacing += rows_replacing;
        self.kept_existing_different += kept_existing_different;
        self.rows_removed_files += rows_removed_files;
        self.carried += carried;
        self.replaced += replaced;
        self.deleted += deleted;
        self.already_deleted += already_deleted;
        self.rows_added_files += rows_added_files;
        self.precision_truncated += precision_truncated;
        self.leap_seconds += leap_seconds;
        self.repeated_headers += repeated_headers;
        for (column, n) in nulled {
            *self.nulled.entry(column.clone()).or_default() += n;
        }
    }

    /// The classes a source row can end in.
    pub fn accounted(&self) -> u64 {
        self.rejected
            + self.outside_range
            + self.outside_retention
            + self.skipped_chunk
            + self.duplicates_collapsed
            + self.in_source_conflicts
            + self.kept_existing
            + self.rows_written
    }

    /// Both equations; the text says which numbers disagree.
    pub fn check(&self) -> Result<(), String> {
        if self.accounted() != self.rows_read {
            return Err(format!(
                "rows_read {} is not the sum {} of rejected {}, outside_range {}, outside_retention {}, skipped_chunk {}, duplicates_collapsed {}, in_source_conflicts {}, kept_existing {}, rows_written {}",
                self.rows_read,
                self.accounted(),
                self.rejected,
                self.outside_range,
                self.outside_retention,
                self.skipped_chunk,
                self.duplicates_collapsed,
                self.in_source_conflicts,
                self.kept_existing,
                self.rows_written
            ));
        }
        let removed = self.carried + self.replaced + self.deleted + self.already_deleted;
        if removed != self.rows_removed_files {
            return Err(format!(
                "rows of removed files {} are not carried {} + replaced {} + deleted {} + already_deleted {}",
                self.rows_removed_files, self.carried, self.replaced, self.deleted, self.already_deleted
            ));
        }
        if self.rows_written + self.carried != self.rows_added_files {
            return Err(format!(
                "rows in added files {} are not rows_written {} + carried {}",
                self.rows_added_files, self.rows_written, self.carried
            ));
        }
        if self.kept_existing_different > self.kept_existing || self.rows_replacing > self.rows_written {
            return Err("a part is larger than its whole".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_lost_row_is_seen() {
        let mut c = Counts {
            rows_read: 10,
            rejected: 1,
            duplicates_collapsed: 2,
            kept_existing: 3,
            rows_written: 4,
            rows_added_files: 4,
            ..Default::default()
        };
        c.check().unwrap();
        c.rows_read = 11;
        assert!(c.check().is_err());
        c.rows_read = 10;
        c.rows_added_files = 3;
        assert!(c.check().is_err());
    }
}
