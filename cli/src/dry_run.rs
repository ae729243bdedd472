//! `--dry-run` and `--max-cost`: what is found out before a run, and instead of it.

use crate::args::LoadArgs;
use crate::dry_run_text;
use crate::lake::Place;
use crate::output::Layout;
use crate::progress::Console;
use crate::resolve::option_error;
use crate::run::{Answer, Settings};
use crate::{command_text, error_text, report};
use serde::Serialize;
use std::path::Path;
use timelake_engine::open::Earlier;
use timelake_engine::progress::{Progress, StopFlag};
use timelake_local::{DryRunOptions, Rehearsed};
use timelake_model::cost::{Prices, usd};
use timelake_model::dry_run::DryRun;
use timelake_model::{BackfillRequest, Error, Reason, Result};

/// A list of prices is far smaller; a wrong file is not read to its end.
const LONGEST_PRICES_BYTES: u64 = 1 << 16;

/// A run that is asked for, and what was asked about it.
pub struct Rehearsal<'a> {
    pub place: &'a Place,
    pub request: &'a BackfillRequest,
    pub earlier: &'a Earlier,
    pub load: &'a LoadArgs,
    pub settings: &'a Settings,
}

/// The report, with the command that does it.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    report: &'a DryRun,
    command: &'a str,
}

impl Rehearsal<'_> {
    /// The answer of a dry run. `None`: the run may begin.
    pub async fn before_the_run(&self, console: &Console, stop: &StopFlag) -> Result<Option<Answer>> {
        let load = self.load;
        let most = load.max_cost.map(checked_limit).transpose()?;
        if load.prices.is_some() && !load.dry_run && most.is_none() {
            return Err(option_error("--prices", None, "--prices has no effect here".into()).hint("it goes with --dry-run or --max-cost"));
        }
        let prices = load.prices.as_deref().map_or_else(Prices::shipped, read_prices)?;
        if load.dry_run {
            let done = self.rehearse(load.sample, prices, console, stop).await?;
            return Ok(Some(self.answer(done, most)));
        }
        let Some(most) = most else { return Ok(None) };
        // By all rows, as --dry-run does: both say the same.
        let (cost, error) = match self.rehearse(None, prices, console, stop).await {
            Ok(Rehearsed { report: DryRun { cost, error, .. }, .. }) => (cost, error),
            Err(error) => (None, Some(error)),
        };
        match (cost, error) {
            (_, Some(error)) if self.ends(&error) => Err(error),
            (Some(cost), _) => {
                console.note(&format!("estimated cost on AWS: {}, at most {} allowed", usd(cost.most()), usd(most)));
                cost.check(most).map(|()| None)
            }
            // It costs nothing, or the run says why it cannot be done.
            (None, _) => Ok(None),
        }
    }

    /// Does a dry run that ended so leave no run? Functions would be paid for coming to the same end; and where only this
    /// machine came to it, nobody has looked at what they cost.
    fn ends(&self, error: &Error) -> bool {
        error.reason == Reason::Interrupted || matches!(self.place, Place::Aws(_))
    }

    async fn rehearse(&self, sample: Option<u64>, prices: Prices, console: &Console, stop: &StopFlag) -> Result<Rehearsed> {
        let options = DryRunOptions { earlier: self.earlier.clone(), sample, prices };
        self.place.rehearse(self.request, &options, console, stop).await
    }

    fn answer(&self, mut done: Rehearsed, most: Option<f64>) -> Answer {
        let settings = self.settings;
        let dear = most.zip(done.report.cost.as_ref()).and_then(|(most, cost)| cost.check(most).err());
        let is_dear = dear.is_some();
        if let Some(error) = dear {
            done.report.error = Some(error);
        }
        let command = command_text::command(self.request, &settings.again.lake, 0, Layout::default());
        let told = Told { report: &done.report, command: &command };
        let mut answer = settings.data(&told, |layout| match done.published {
            Some(published) => report::nothing_to_do(&done.manifest, published, layout),
            None => dry_run_text::report(&done.report, &done.manifest, &command, layout),
        });
        let Some(error) = &done.report.error else { return answer };
        answer.exit_code = error.exit_code();
        if !settings.json {
            let standing = report::standing_error(&done.manifest, settings.stderr).filter(|_| !is_dear);
            answer.stderr = standing.unwrap_or_else(|| error_text::for_people(error, settings.stderr));
        }
        answer
    }
}

fn checked_limit(most: f64) -> Result<f64> {
    if most.is_finite() && most.is_sign_positive() {
        return Ok(most);
    }
    Err(option_error("--max-cost", Some(&most.to_string()), format!("--max-cost {most} is no amount"))
        .hint("write USD, for example 5 or 0.25"))
}

fn read_prices(file: &Path) -> Result<Prices> {
    use std::io::Read;
    let shown = file.display().to_string();
    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|opened| opened.take(LONGEST_PRICES_BYTES).read_to_string(&mut text));
    read.map_err(|e| option_error("--prices", Some(&shown), format!("the prices {shown} cannot be read: {e}")).hint("name a JSON file"))?;
    Prices::parse(&text).map_err(|e| {
        Error { message: format!("{shown}: {}", e.message), ..e }.at(|p| {
            p.option = Some("--prices".into());
            p.value = Some(shown.clone());
        })
    })
}
