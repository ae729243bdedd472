//! Who works at the job: writers that take messages as their event source hands them out, and whoever hears that the
//! round is over.

use crate::world::{World, event};
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, Message, MessageSystemAttributeName};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use timelake_engine::fanin;
use timelake_engine::progress::StopFlag;
use timelake_engine::work::{Attempts, Held, Workers};
use timelake_functions::{Ports, batch, work_off};
use timelake_model::ledger::{Phase, RoundKey};
use timelake_model::messages::Signal;
use timelake_model::receipt::SeriesRows;
use timelake_model::{AttemptId, Counts, Error, Receipt, Result, UnitReceipt};
use tokio::runtime::Handle;

/// As long as counters that go down are gathered before the sweeper is called for them.
const WAIT_SECONDS: i32 = 1;

pub fn failed(error: impl Display) -> Error {
    Error::internal(error.to_string())
}

/// A writer: takes messages until it is told that the round is over and none is left.
pub async fn write(world: &World, at_once: i32, over: &AtomicBool) -> Result<()> {
    let (ports, stop) = (&world.ports, StopFlag::default());
    loop {
        let messages = receive(world, &world.work_url, at_once).await?;
        if messages.is_empty() && over.load(Ordering::SeqCst) {
            return Ok(());
        }
        let answer = batch(&ports.tally, event(&messages), async |message| work_off(ports, message, &stop, unwritten).await).await;
        if !answer.batch_item_failures.is_empty() {
            return Err(failed("a message failed"));
        }
        delete(world, &world.work_url, &messages).await?;
    }
}

/// Hears the signal that the round is over. Until then the sweeper is called for its counters, as the ledger's stream does.
pub async fn close(world: &World, over: &AtomicBool, end: Instant) -> Result<()> {
    let (ports, key) = (&world.ports, world.round());
    while !over.load(Ordering::SeqCst) {
        if heard(world).await?.iter().any(|signal| matches!(signal, Signal::Close(close) if close.key == key)) {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(failed("the job takes too long"));
        }
        fanin::counted(&ports.engine, ports.signals.as_ref(), &key).await?;
    }
    Err(failed("a writer failed"))
}

/// Signals that wait, taken.
pub async fn heard(world: &World) -> Result<Vec<Signal>> {
    let messages = receive(world, &world.close_url, 1).await?;
    delete(world, &world.close_url, &messages).await?;
    messages.iter().map(|message| serde_json::from_str(message.body().unwrap_or_default()).map_err(failed)).collect()
}

async fn receive(world: &World, url: &str, most: i32) -> Result<Vec<Message>> {
    let receive = world.sqs.receive_message().queue_url(url).max_number_of_messages(most).wait_time_seconds(WAIT_SECONDS);
    let receive = receive.message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount);
    Ok(receive.send().await.map_err(failed)?.messages.unwrap_or_default())
}

async fn delete(world: &World, url: &str, messages: &[Message]) -> Result<()> {
    if messages.is_empty() {
        return Ok(());
    }
    let entries = messages.iter().enumerate().map(|(id, message)| {
        let entry = DeleteMessageBatchRequestEntry::builder().id(id.to_string()).set_receipt_handle(message.receipt_handle.clone());
        entry.build().map_err(failed)
    });
    let delete = world.sqs.delete_message_batch().queue_url(url).set_entries(Some(entries.collect::<Result<_>>()?));
    match delete.send().await.map_err(failed)?.failed() {
        [] => Ok(()),
        [first, ..] => Err(failed(format!("a message is not deleted: {first:?}"))),
    }
}

fn unwritten<'a>(_: &'a Ports, workers: &'a Workers<'a>, _: Phase) -> Box<dyn Attempts + 'a> {
    Box::new(Unwritten { workers })
}

/// An attempt that asks of the ledger what the writer's does, and writes nothing.
struct Unwritten<'a> {
    workers: &'a Workers<'a>,
}

impl Attempts for Unwritten<'_> {
    fn phase(&self) -> Phase {
        Phase::Write
    }

    fn attempt(&self, key: &RoundKey, unit: u32, attempt: &AttemptId, held: &Held, runtime: &Handle) -> Result<Receipt> {
        held.check()?;
        // With the stored plan the writer reads what the ledger knows of it.
        runtime.block_on(self.workers.engine.jobs.plan(key))?;
        Ok(Receipt::Write(receipt(key, unit, attempt)))
    }
}

/// Of one row. Also the shortest receipt is longer than what an item holds, so the ledger keeps it as an object, as it does
/// those of units that write.
fn receipt(key: &RoundKey, unit: u32, attempt: &AttemptId) -> UnitReceipt {
    UnitReceipt {
        unit,
        round: key.round,
        attempt: attempt.clone(),
        base_snapshot: 0,
        counts: Counts { rows_read: 1, rows_written: 1, rows_added_files: 1, ..Counts::default() },
        files: vec![],
        manifests: vec![],
        taken: vec![],
        left: vec![],
        errors: vec![],
        bad_rows: 0,
        warnings: vec![],
        time: None,
        column_sums: BTreeMap::new(),
        key_hash: 0,
        chunk_rows: BTreeMap::new(),
        series: SeriesRows::default(),
    }
}
