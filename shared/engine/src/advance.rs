//! Takes a job's groups from where they stand to where they stop: the decisions between the verbs, the same for every
//! process that runs a job, wherever its units are worked off.

use crate::boundary::{Boundary, reached};
use crate::inventory::table_ident;
use crate::plan::{self, PlanLimits};
use crate::publish::{self, Overlap, Published};
use crate::rounds::{self, Again};
use crate::stage::Staging;
use crate::store::{self, RoundBase, StoredPlan};
use crate::tries::{change_group, change_job, settle_job};
use crate::{Engine, cancel, validate};
use std::future::Future;
use timelake_model::ledger::{GroupRecord, JobRecord, State, UnitRecord, UnitState};
use timelake_model::verdict::{Check, Verdict};
use timelake_model::{Error, Inventory, Kind, Reason, Result, UnitReceipt, WritePlan};

/// One life of a job, and how far it is to go.
#[derive(Clone, Copy)]
pub struct Life<'a> {
    pub engine: &'a Engine,
    pub job: &'a JobRecord,
    pub stored: &'a StoredPlan,
    /// A HOLD is tried again: the user says that its reason is gone.
    pub resume: bool,
    pub stage_only: bool,
}

/// What differs between processes that run jobs.
pub trait Hands {
    /// Before each turn of a group that can go on; `false`: it is somebody else's. What comes next follows from the group as it
    /// is and from the ledger.
    fn turn(&mut self, group: &GroupRecord) -> Result<bool>;
    /// Works off the group's pending units. `false`: others do, and whoever ends the last one calls again.
    fn write(&mut self, group: &GroupRecord) -> impl Future<Output = Result<bool>>;
    fn validate(&mut self, group: &GroupRecord, receipts: &[UnitReceipt]) -> impl Future<Output = Result<Verdict>>;
    /// Around staging.
    fn stage<T>(&mut self, stage: impl Future<Output = Result<T>>) -> impl Future<Output = Result<T>>;
    /// Around publishing.
    fn publish<T>(&mut self, publish: impl Future<Output = Result<T>>) -> impl Future<Output = Result<T>>;
    /// What was checked and found right.
    fn approved(&mut self, checks: Vec<Check>);
    /// A group went as far as it goes. What follows depends on this outcome and the ledger alone.
    fn ended(&mut self, _outcome: &Result<()>) {}
    /// Something that a watching person should know.
    fn note(&mut self, text: &str);
}

impl Life<'_> {
    /// Branches, lock, units and messages are there when it returns.
    pub async fn open(&self) -> Result<()> {
        let Life { engine, job, .. } = *self;
        let window = self.stored.plan.window;
        change_job(engine, &job.job, job.generation, |j| {
            let changes = j.window != window && !j.state.is_final();
            j.window = window;
            changes
        })
        .await?;
        // In another generation than the job is now, this finds out and stands the old one down.
        let Err(e) = rounds::open_generation(engine, job, self.stored).await else { return Ok(()) };
        if e.kind == Kind::Conflict {
            // Nothing is written yet: a later run of the command makes a new plan.
            for group in engine.jobs.groups(&job.job, job.generation).await?.iter().filter(|g| g.state == State::Planning) {
                cancel::stand_down(engine, job, group, State::Rejected, Some(e.clone())).await?;
            }
            settle_job(engine, &job.job, job.generation).await?;
        }
        Err(e)
    }

    /// Takes each group as far as it goes.
    pub async fn go_on(&self, hands: &mut impl Hands) -> Result<()> {
        let Life { engine, job, .. } = *self;
        for group in engine.jobs.groups(&job.job, job.generation).await? {
            let outcome = self.go_on_with(hands, group).await;
            hands.ended(&outcome);
            settle_job(engine, &job.job, job.generation).await?;
            outcome?;
        }
        Ok(())
    }

    /// Takes one group as far as it goes.
    pub async fn go_on_with(&self, hands: &mut impl Hands, mut group: GroupRecord) -> Result<()> {
        let Life { engine, job, .. } = *self;
        if self.resume && group.state == State::Hold {
            group = self.unhold(&group).await?;
        }
        loop {
            // Another process may have cancelled it meanwhile.
            group = change_group(engine, &group, |_| false).await?;
            if group.cancel_requested && !group.state.is_final() {
                group = cancel::stand_down(engine, job, &group, State::Cancelled, None).await?;
            }
            if !matches!(group.state, State::Writing | State::Staged | State::Validating) {
                return Ok(());
            }
            if !hands.turn(&group)? {
                return Ok(());
            }
            let outcome = match group.state {
                State::Writing => self.write_and_stage(hands, &group).await,
                _ => self.validate_and_publish(hands, &group).await,
            };
            group = match outcome {
                Ok(Some(group)) => group,
                Ok(None) => return Ok(()),
                Err(e) if e.kind == Kind::Conflict => {
                    let now = change_group(engine, &group, |_| false).await?;
                    if !now.cancel_requested {
                        self.hold(&group, e).await?;
                        return Ok(());
                    }
                    now
                }
                Err(e) => return Err(e),
            };
        }
    }

    async fn hold(&self, group: &GroupRecord, error: Error) -> Result<GroupRecord> {
        change_group(self.engine, group, |g| {
            let changes = !g.state.is_final();
            if changes {
                g.state = State::Hold;
                g.error = Some(error.clone());
            }
            changes
        })
        .await
    }

    /// Failed units are written again in a new round; everything else is tried from where it stood.
    pub async fn unhold(&self, group: &GroupRecord) -> Result<GroupRecord> {
        let units = rounds::latest_units(self.engine, group).await?;
        let failed: Vec<u32> = units.iter().filter(|u| u.state == UnitState::Failed).map(|u| u.unit).collect();
        if !failed.is_empty() {
            return rounds::next_round(self.engine, self.stored, group, failed, Again::Resumed).await;
        }
        change_group(self.engine, group, |g| {
            let changes = g.state == State::Hold;
            if changes {
                g.rederived = 0; // the user says that the reason is gone
                g.state = if g.staged_round == Some(g.round) { State::Staged } else { State::Writing };
                g.error = None;
            }
            changes
        })
        .await
    }

    /// `None`: units are pending, and others work on them.
    async fn write_and_stage(&self, hands: &mut impl Hands, group: &GroupRecord) -> Result<Option<GroupRecord>> {
        let Life { engine, job, stored, .. } = *self;
        let works = hands.write(group).await?;
        let units = rounds::latest_units(engine, group).await?;
        if units.iter().any(|u| u.state == UnitState::Pending) {
            if !works {
                return Ok(None);
            }
            let now = change_group(engine, group, |_| false).await?;
            if now.cancel_requested || now.state.is_final() {
                return Ok(Some(now));
            }
            return Err(Error::internal("the queue is empty and units are not done"));
        }
        let reject = async |error| cancel::stand_down(engine, job, group, State::Rejected, Some(error)).await.map(Some);
        if let Some(error) = first_failure(stored, &units) {
            if matches!(error.kind, Kind::Invalid | Kind::Corrupt) {
                return reject(error).await;
            }
            if let Some(base) = publish::lost_base(engine, job, stored, group, &error).await? {
                let all = units.iter().map(|u| u.unit).collect();
                return self.derive_again(hands, group, all, base).await.map(Some);
            }
            return self.hold(group, error).await.map(Some);
        }
        let receipts = receipts(units);
        let bad_rows = receipts.iter().map(|r| r.bad_rows).sum();
        if let Some(bad) = validate::bad_rows(&job.request.rows, &validate::all_errors(&receipts), bad_rows) {
            return reject(bad).await;
        }
        if receipts.iter().all(|r| r.files.is_empty()) {
            match validate::conservation(stored, &receipts) {
                Ok(check) => hands.approved(vec![check]),
                Err(finding) => return reject(finding).await,
            }
            let table = engine.catalog.load(&table_ident(&job.table)?).await?;
            return match publish::look_again(engine, job, stored, group, &receipts, &table, None).await? {
                Overlap::Clear(_) => publish::publish_nothing(engine, job, group).await.map(Some),
                Overlap::Again { units, base } => self.derive_again(hands, group, units, base).await.map(Some),
            };
        }
        let staging = Staging { engine, job, stored, group, receipts: &receipts };
        hands.stage(staging.stage()).await.map(Some)
    }

    /// `None`: it stays staged, as asked.
    async fn validate_and_publish(&self, hands: &mut impl Hands, group: &GroupRecord) -> Result<Option<GroupRecord>> {
        let Life { engine, job, stored, .. } = *self;
        let receipts = receipts(rounds::latest_units(engine, group).await?);
        if let Some(done) = publish::found_published(engine, job, group, &receipts).await? {
            return Ok(Some(done));
        }
        let verdict = hands.validate(group, &receipts).await?;
        reached(Boundary::Validated);
        match verdict {
            Verdict::Approved { checks } => hands.approved(checks),
            Verdict::Rejected { findings } => {
                let first = findings.into_iter().next().unwrap_or_else(|| Error::internal("rejected without a finding"));
                return cancel::stand_down(engine, job, group, State::Rejected, Some(first)).await.map(Some);
            }
        }
        if self.stage_only {
            return Ok(None);
        }
        match hands.publish(publish::publish(engine, job, stored, group, &receipts)).await? {
            Published::Done(group) => Ok(Some(group)),
            Published::Cancelled(group) => cancel::stand_down(engine, job, &group, State::Cancelled, None).await.map(Some),
            Published::Again { units, base } => self.derive_again(hands, group, units, base).await.map(Some),
        }
    }

    async fn derive_again(&self, hands: &mut impl Hands, group: &GroupRecord, units: Vec<u32>, base: RoundBase) -> Result<GroupRecord> {
        hands.note(&format!("rows with keys of this job came to main or left it; units to look again: {}", units.len()));
        rounds::next_round(self.engine, self.stored, group, units, Again::MainMoved(base)).await
    }
}

/// The plan of an inventory, stored unless one is stored already. `other`: by whose units the work is divided.
pub async fn store_plan(
    engine: &Engine,
    job: &JobRecord,
    found: Inventory,
    limits: PlanLimits,
    other: Option<&WritePlan>,
) -> Result<StoredPlan> {
    let make = |inventory: &Inventory| {
        let plan = match other {
            Some(other) => plan::divided_as(other, inventory, &job.job, job.generation, limits)?,
            None => plan::plan(inventory, &job.job, job.generation, limits)?,
        };
        plan::check(&plan, inventory)?;
        Ok(plan)
    };
    store::store_plan(engine, found, make, &job.job, job.generation).await
}

/// Might planning get further when it is tried again? A damaged job folder can still be restored.
pub fn may_pass(error: &Error) -> bool {
    matches!(error.kind, Kind::Unavailable | Kind::Internal) || error.reason == Reason::LedgerDamaged
}

/// A request that cannot be planned leaves no unfinished job behind.
pub async fn give_up_planning(engine: &Engine, job: &JobRecord, error: &Error) -> Result<()> {
    if may_pass(error) {
        return Ok(());
    }
    reject_unplanned(engine, job, error).await
}

/// The job ends before it has groups.
pub async fn reject_unplanned(engine: &Engine, job: &JobRecord, error: &Error) -> Result<()> {
    change_job(engine, &job.job, job.generation, |j| {
        let changes = !j.state.is_final();
        if changes {
            j.state = State::Rejected;
            j.error = Some(error.clone());
        }
        changes
    })
    .await
    .map(|_| ())
}

fn receipts(units: Vec<UnitRecord>) -> Vec<UnitReceipt> {
    units.into_iter().filter_map(|u| u.receipt?.into_written()).collect()
}

/// The first failure in source order, whatever the order the units failed in.
fn first_failure(stored: &StoredPlan, units: &[UnitRecord]) -> Option<Error> {
    let objects = &stored.inventory.objects;
    let position = |e: &Error| {
        let object = e.place.file.as_ref().and_then(|f| objects.iter().position(|o| o.object.shown == *f || o.object.uri == *f));
        (object.unwrap_or(usize::MAX), e.place.row.unwrap_or(0))
    };
    units.iter().filter(|u| u.state == UnitState::Failed).filter_map(|u| u.error.clone()).min_by_key(position)
}
