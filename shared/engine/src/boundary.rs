//! Named step boundaries: after each, a process may die, and the same command must end at the same result.
//!
//! Without the cargo feature `failpoints` a boundary is nothing at all. With it, a test installs a hook that kills or
//! delays the process there. Release builds do not have the feature.

macro_rules! boundaries {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// A point between two effects.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Boundary { $($(#[$doc])* $name),* }
        impl Boundary {
            pub const ALL: &'static [Boundary] = &[$(Boundary::$name),*];
            pub fn name(self) -> &'static str {
                match self { $(Boundary::$name => $text),* }
            }
        }
    };
}
boundaries! {
    // open
    /// An empty table has its first snapshot.
    MainStarted = "main-started",
    JobStored = "job-stored",
    GenerationStored = "generation-stored",
    // land
    LandPlanStored = "land-plan-stored",
    JobLanding = "job-landing",
    LandRoundStored = "land-round-stored",
    LandUnitsStored = "land-units-stored",
    LandMessagesSent = "land-messages-sent",
    RunsWritten = "runs-written",
    RunsDurable = "runs-durable",
    RejectedListed = "rejected-listed",
    // plan
    /// The table has the partition specs of its layouts.
    SpecsAdded = "specs-added",
    InventoryStored = "inventory-stored",
    PlanStored = "plan-stored",
    // open the round
    GroupsStored = "groups-stored",
    /// Branches and lock are in the table, the ledger does not know.
    BranchesCommitted = "branches-committed",
    GroupWriting = "group-writing",
    RoundStored = "round-stored",
    UnitsStored = "units-stored",
    MessagesSent = "messages-sent",
    // write
    AttemptBegun = "attempt-begun",
    FilesWritten = "files-written",
    FilesDurable = "files-durable",
    UnitEnded = "unit-ended",
    MessageAcknowledged = "message-acknowledged",
    // stage
    NextSnapshotStored = "next-snapshot-stored",
    StagedListWritten = "staged-list-written",
    /// The branch is at the staged snapshot, the ledger does not know.
    StageCommitted = "stage-committed",
    GroupStaged = "group-staged",
    // validate
    Validated = "validated",
    // publish
    HeadChecked = "head-checked",
    ManifestsMerged = "manifests-merged",
    /// Rows are visible, the ledger does not know.
    PublishCommitted = "publish-committed",
    GroupPublished = "group-published",
    JobSettled = "job-settled",
    RunsRemoved = "runs-removed",
    ManifestStored = "manifest-stored",
    // a further round
    BaseStored = "base-stored",
    NextRoundOpened = "next-round-opened",
    RoundClosed = "round-closed",
    GroupInNextRound = "group-in-next-round",
    // cancel, reject
    JobMarkedCancelled = "job-marked-cancelled",
    CancelRequested = "cancel-requested",
    BranchDropped = "branch-dropped",
    RoundsClosed = "rounds-closed",
    GroupStoodDown = "group-stood-down",
    MessagesPurged = "messages-purged",
    // gc
    TagsDropped = "tags-dropped",
    FileRemoved = "file-removed",
}

#[cfg(feature = "failpoints")]
static HOOK: std::sync::OnceLock<fn(Boundary)> = std::sync::OnceLock::new();

/// What happens at boundaries in this process. Only the first call counts.
#[cfg(feature = "failpoints")]
pub fn install(hook: fn(Boundary)) {
    let _ = HOOK.set(hook);
}

/// A boundary is reached.
#[inline]
pub fn reached(boundary: Boundary) {
    #[cfg(feature = "failpoints")]
    if let Some(hook) = HOOK.get() {
        hook(boundary);
    }
    #[cfg(not(feature = "failpoints"))]
    let _ = boundary;
}
