//! The refresher: tells the feed of a table what a publish changed, one chunk per message.

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent};
use timelake_engine::progress::StopFlag;
use timelake_engine::refresh::Refreshing;
use timelake_engine::work::{Attempts, Workers};
use timelake_functions::{Ports, batch, work_off};
use timelake_model::ledger::Phase;

pub async fn handle(ports: &Ports, event: SqsEvent, stop: &StopFlag) -> SqsBatchResponse {
    batch(&ports.tally, event, async |message| work_off(ports, message, stop, refreshing).await).await
}

fn refreshing<'a>(_: &'a Ports, workers: &'a Workers<'a>, _: Phase) -> Box<dyn Attempts + 'a> {
    Box::new(Refreshing { workers })
}
