//! Calls and answers in few words, for schedules that a person reads.

use super::catalog::{Committed, Loaded};
use bytes::Bytes;
use iceberg::TableUpdate;
use iceberg::table::Table;
use timelake_engine::ports::{Claim, EndOutcome, UnitEnd};
use timelake_model::ledger::{CounterRecord, GroupRecord, JobRecord, Phase, PlanRecord, RoundKey, UnitMessage, UnitRecord};
use timelake_model::{AttemptId, GroupName, JobId, Result};

pub trait Tell {
    fn tell(&self) -> String;
}

macro_rules! tell {
    ($($type:ty: |$value:ident| $text:expr;)*) => {
        $(impl Tell for $type {
            fn tell(&self) -> String { let $value = self; $text }
        })*
    };
}

tell! {
    (): |_v| "done".into();
    bool: |v| v.to_string();
    u64: |v| v.to_string();
    i64: |v| short(*v);
    // Numbers are told by what they belong to.
    u32: |v| v.to_string();
    String: |v| v.rsplit('/').next().unwrap_or_default().to_string();
    JobId: |_v| String::new(); // there is one
    GroupName: |_v| String::new();
    Phase: |_v| String::new();
    AttemptId: |v| format!("attempt {}", v.0.chars().take(4).collect::<String>());
    RoundKey: |v| format!("gen {} round {}", v.generation, v.round);
    UnitMessage: |v| format!("unit {} of {}", v.unit, v.key.tell());
    UnitEnd: |v| match v { UnitEnd::Done(_) => "done".into(), UnitEnd::Failed(e) => format!("failed: {}", e.reason) };
    Bytes: |v| format!("{} bytes", v.len());
    JobRecord: |v| format!("job gen {} {} v{}", v.generation, v.state, v.version);
    GroupRecord: |v| format!(
        "gen {} {} round {}{}{}{}",
        v.generation, v.state, v.round,
        v.branch_snapshot.map_or(String::new(), |s| format!(" branch at {}", short(s))),
        v.next_snapshot.map_or(String::new(), |s| format!(" next {}", short(s))),
        if v.cancel_requested { " cancel requested" } else { "" },
    );
    PlanRecord: |v| format!("round {} of {} units, cursor {}", v.key.round, v.units.len(), v.cursor);
    CounterRecord: |v| format!("{} remain", v.remaining);
    UnitRecord: |v| format!("{}.{} {:?}", v.unit, v.key.round, v.state);
    EndOutcome: |v| format!("{v:?}");
    Claim: |v| format!("unit {} round {} of gen {}, message {} try {}", v.message.unit, v.message.key.round, v.message.key.generation, v.id, v.tries);
    Loaded: |v| match &v.0 { Ok(t) => table(t), Err(e) => e.to_string() };
    Committed: |v| match v {
        Committed::Done(_) => "done".into(),
        Committed::Conflict(why) => format!("conflict: {why}"),
        Committed::Unknown(why) => format!("unknown: {why}"),
        Committed::Failed(e) => e.to_string(),
    };
}

macro_rules! tell_arguments {
    ($($name:ident)*) => {
        impl<$($name: Tell),*> Tell for ($($name,)*) {
            #[allow(non_snake_case)] // a type and its value, by one name
            fn tell(&self) -> String {
                let ($($name,)*) = self;
                let told = [$($name.tell()),*];
                told.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ")
            }
        }
    };
}
tell_arguments!(A);
tell_arguments!(A B);
tell_arguments!(A B C);
tell_arguments!(A B C D);

impl<T: Tell> Tell for Option<T> {
    fn tell(&self) -> String {
        self.as_ref().map_or("nothing".into(), T::tell)
    }
}
impl<T: Tell> Tell for Result<T> {
    fn tell(&self) -> String {
        self.as_ref().map_or_else(|e| format!("error: {e}"), T::tell)
    }
}
impl<T: Tell> Tell for Vec<T> {
    fn tell(&self) -> String {
        format!("[{}]", self.iter().map(T::tell).collect::<Vec<_>>().join(", "))
    }
}

/// Ids are random; four digits tell them apart.
pub fn short(id: i64) -> String {
    format!("{:04x}", id & 0xffff)
}

/// Branches and tags.
pub fn table(table: &Table) -> String {
    let refs = timelake_table::refs(table.metadata()).unwrap_or_default();
    let refs: Vec<String> = refs.iter().map(|(name, r)| format!("{name} at {}", short(r.snapshot_id))).collect();
    refs.join(", ")
}

/// What a commit changes.
pub fn updates(updates: &[TableUpdate]) -> String {
    let told: Vec<String> = updates
        .iter()
        .map(|u| match u {
            TableUpdate::AddSnapshot { snapshot } => format!("add snapshot {}", short(snapshot.snapshot_id())),
            TableUpdate::SetSnapshotRef { ref_name, reference } => format!("{ref_name} to {}", short(reference.snapshot_id)),
            TableUpdate::RemoveSnapshotRef { ref_name } => format!("remove {ref_name}"),
            TableUpdate::RemoveSnapshots { snapshot_ids } => format!("remove {} snapshots", snapshot_ids.len()),
            TableUpdate::SetProperties { .. } => "lock".into(),
            TableUpdate::RemoveProperties { .. } => "unlock".into(),
            other => format!("{other:?}").chars().take(40).collect(),
        })
        .collect();
    format!("commit({})", told.join(", "))
}
