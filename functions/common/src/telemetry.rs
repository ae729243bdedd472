//! What a function says of itself: its log as JSON lines with job, generation, unit, attempt and request, and CloudWatch
//! metrics in its log (embedded metric format), by service and environment only. Neither holds secrets or values of rows.

use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use timelake_engine::progress::{Progress, Step};
use timelake_model::{Result, TimestampUs};
use tracing::Span;
use tracing_subscriber::EnvFilter;

/// Namespace of the metrics.
const NAMESPACE: &str = "timelake";
/// What the log holds when RUST_LOG says nothing else. The runtime's own errors repeat ours, with their texts.
const FILTER: &str = "warn,lambda_runtime=off,timelake=info";

pub struct Telemetry {
    service: &'static str,
    environment: String,
}

/// One call.
pub struct Call {
    begun: Instant,
    span: Span,
}

impl Call {
    pub fn begin(request: &str) -> Call {
        Call { begun: Instant::now(), span: tracing::info_span!("call", request) }
    }
    pub fn span(&self) -> Span {
        self.span.clone()
    }
}

impl Telemetry {
    /// Once per process.
    pub fn start(service: &'static str, environment: &str) -> Telemetry {
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(FILTER));
        let lines = tracing_subscriber::fmt().json().flatten_event(true).with_current_span(false).with_env_filter(filter);
        if lines.with_writer(std::io::stderr).try_init().is_err() {
            tracing::warn!("there is a log already");
        }
        Telemetry { service, environment: environment.to_string() }
    }

    /// Tells how a call ended, and what was counted in it.
    pub fn ended<A>(&self, now: TimestampUs, call: &Call, counts: Counts, answer: &Result<A>) {
        if let Err(error) = answer {
            // The text may hold values of rows: it is the caller's alone.
            call.span.in_scope(|| tracing::error!(kind = %error.kind, reason = %error.reason, "the call failed"));
        }
        let (milliseconds, failed) = (call.begun.elapsed().as_secs_f64() * 1e3, u64::from(answer.is_err()));
        println!("{}", self.metrics(now, milliseconds, failed, counts));
    }

    fn metrics(&self, now: TimestampUs, milliseconds: f64, failed: u64, counts: Counts) -> Value {
        let count = |name| json!({ "Name": name, "Unit": "Count" });
        json!({
            "_aws": {
                "Timestamp": now.0.div_euclid(1_000),
                "CloudWatchMetrics": [{
                    "Namespace": NAMESPACE,
                    "Dimensions": [["service", "environment"]],
                    "Metrics": [
                        { "Name": "duration", "Unit": "Milliseconds" },
                        count("failed_calls"),
                        count("messages"),
                        count("returned_messages"),
                        count("units"),
                        count("rows_read"),
                    ],
                }],
            },
            "service": self.service,
            "environment": self.environment,
            "duration": milliseconds,
            "failed_calls": failed,
            "messages": counts.messages,
            "returned_messages": counts.returned,
            "units": counts.units,
            "rows_read": counts.rows,
        })
    }
}

/// What a function did in a call.
#[derive(Debug, Default)]
pub struct Tally {
    messages: AtomicU64,
    returned: AtomicU64,
    units: AtomicU64,
    rows: AtomicU64,
}

/// A tally, read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub messages: u64,
    /// Those that are to come again.
    pub returned: u64,
    /// Units that ended, DONE or FAILED.
    pub units: u64,
    pub rows: u64,
}

impl Tally {
    pub fn message(&self, is_returned: bool) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.returned.fetch_add(u64::from(is_returned), Ordering::Relaxed);
    }
    pub fn unit(&self) {
        self.units.fetch_add(1, Ordering::Relaxed);
    }
    /// What was counted since the last time.
    pub fn take(&self) -> Counts {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        Counts { messages: take(&self.messages), returned: take(&self.returned), units: take(&self.units), rows: take(&self.rows) }
    }
}

/// Nobody watches a function: rows are counted, and what a person should know goes to the log.
impl Progress for Tally {
    fn begin(&self, _: Step, _: Option<u64>) {}
    fn advance(&self, step: Step, rows: u64) {
        if matches!(step, Step::Land | Step::Write) {
            self.rows.fetch_add(rows, Ordering::Relaxed);
        }
    }
    fn end(&self, _: Step) {}
    fn note(&self, text: &str) {
        tracing::info!("{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_counted_once_and_by_service_and_environment_only() {
        let tally = Tally::default();
        tally.message(true);
        tally.unit();
        tally.advance(Step::Write, 7);
        tally.advance(Step::Validate, 7);
        let telemetry = Telemetry { service: "writer", environment: "plant".into() };
        let line = telemetry.metrics(TimestampUs(1_500), 2.5, 0, tally.take());
        assert_eq!(
            (&line["messages"], &line["returned_messages"], &line["units"], &line["rows_read"]),
            (&1.into(), &1.into(), &1.into(), &7.into())
        );
        assert_eq!((&line["_aws"]["Timestamp"], &line["duration"]), (&1.into(), &2.5.into()));
        let told = &line["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(told["Dimensions"], json!([["service", "environment"]]));
        for metric in told["Metrics"].as_array().unwrap() {
            assert!(line[metric["Name"].as_str().unwrap()].is_number(), "{metric}");
        }
        assert_eq!(tally.take(), Counts::default());
    }
}
