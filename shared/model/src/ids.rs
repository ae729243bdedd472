//! Identifiers. All are generated here or by the engine, only `[a-z0-9-]`, so they are safe in paths, refs and SQL.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
        impl $name {
            pub fn as_str(&self) -> &str { &self.0 }
        }
    };
}
text_id!(/// Table slug and a hash of what decides the rows: the same request on the same sources has the same id.
    JobId);
text_id!(/// One try at a unit. Random, and in the ledger before its first upload.
    AttemptId);
text_id!(/// Publish group: the name of its chunk, `all`, or `land`.
    GroupName);

impl GroupName {
    pub fn all() -> Self {
        GroupName("all".into())
    }
    /// The reserved group of the landing units: no branch, no rows of its own.
    pub fn land() -> Self {
        GroupName("land".into())
    }
}

/// Keeps `[a-z0-9]`, turns the rest into single dashes: for names in ids.
pub fn slug(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_alphanumeric() {
            out.push(c);
        } else if !out.ends_with('-') && !out.is_empty() {
            out.push('-');
        }
    }
    out.trim_end_matches('-').chars().take(40).collect::<String>().trim_end_matches('-').to_string()
}

/// The staging branch of a group. The only group of a job's first generation has the short name.
pub fn branch_name(job: &JobId, r#gen: u32, group: &GroupName) -> String {
    if r#gen == 1 && *group == GroupName::all() { format!("backfill/{job}") } else { format!("backfill/{job}/{}/{group}", r#gen) }
}
/// Start of the names of [`published_tag`]s.
pub const PUBLISHED_PREFIX: &str = "timelake/published/";
/// Tag on the snapshot that published a group.
pub fn published_tag(job: &JobId, r#gen: u32, group: &GroupName) -> String {
    format!("{PUBLISHED_PREFIX}{job}/{}/{group}", r#gen)
}
/// The group whose tag has this name.
pub fn published_by(tag: &str) -> Option<(JobId, u32, GroupName)> {
    let mut parts = tag.strip_prefix(PUBLISHED_PREFIX)?.split('/');
    let (job, generation, group) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
    parts.next().is_none().then(|| (JobId(job.into()), generation, GroupName(group.into())))
}
/// Table property by which a compactor sees an unpublished window.
pub fn lock_property(job: &JobId) -> String {
    format!("timelake.lock.{job}")
}
pub const LOCK_PREFIX: &str = "timelake.lock.";

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn slugs_are_safe() {
        assert_eq!(slug("iot.Sensor__Ä b"), "iot-sensor-b");
        assert_eq!(slug("../../etc"), "etc");
    }
}
