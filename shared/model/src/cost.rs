//! What a job costs on AWS, by a dated list of prices. An estimate: of the work by its plan, of seconds by a measurement
//! on another machine.
//!
//! The formula, where a call is one run of a unit (landing a file, or writing a unit of the plan):
//!
//! | service | what is counted |
//! |---|---|
//! | Lambda | per call its share of the measured thread-seconds, the transfer of its bytes from and to S3 at [`S3_BYTES_PER_SECOND`], and [`CALL_SECONDS`] around it, at [`FUNCTION_GB`]; one request; and [`STEP_CALLS`] calls of planner and finalizer per phase |
//! | SQS | per call a receive and a delete, and a tenth of a send (batches of 10); per phase its `close` message |
//! | DynamoDB | per call [`CALL_WRITE_UNITS`] write units (the attempt, and a transaction over unit and counter, which costs double) and [`CALL_READ_UNITS`] read units (job, plan, counter, and the unit before it ends); then all counters of the round, which say whether the unit was the last one, and again every [`BEAT_SECONDS`] of its work; each of [`LISTINGS`] listings of a phase reads [`LISTED_READ_UNITS`] for a unit |
//! | S3 | a PUT per file up to one part of [`PART_BYTES`], else one per part and two around them; per call its receipt, per unit its manifest; [`COMMIT_PUTS`] per job. A GET per range of [`RANGE_BYTES`] that is read, [`ROW_GROUP_GETS`] per row group and [`FILE_GETS`] per file; [`CALL_GETS`] per call (plan, inventory, base, the table), and its receipt in each listing |
//! | logs | [`CALL_LOG_BYTES`] per call |
//!
//! Storage of the written files is told apart: it is per month, for as long as the table keeps them.

use crate::error::{Error, Reason, Result};
use crate::ledger::PlanRecord;
use serde::{Deserialize, Serialize};

/// Memory of a function, in GB: one vCPU.
pub const FUNCTION_GB: f64 = 1.769;
/// Around the work of a call: start (mostly warm), opening the table, the ledger.
pub const CALL_SECONDS: f64 = 0.5;
/// Bytes a function of that size moves from and to S3.
pub const S3_BYTES_PER_SECOND: f64 = 80e6;
/// Calls of planner and finalizer per phase.
pub const STEP_CALLS: f64 = 2.0;
pub const CALL_WRITE_UNITS: f64 = 5.0;
pub const CALL_READ_UNITS: f64 = 4.0;
/// How often an attempt looks whether its unit still counts.
pub const BEAT_SECONDS: f64 = 2.0;
/// Times that all units of a phase are read: to stage, to publish, and for the report when it is published and when it is
/// refreshed.
pub const LISTINGS: f64 = 4.0;
/// A unit's item has up to 400 bytes.
pub const LISTED_READ_UNITS: f64 = 0.1;
/// Objects that every call reads, whatever its unit is.
pub const CALL_GETS: f64 = 5.0;
/// Messages of one send.
pub const SEND_BATCH: f64 = 10.0;
/// The message that a round is over: sent, received, deleted.
const CLOSE_REQUESTS: f64 = 3.0;
pub const PART_BYTES: u64 = 8 << 20;
pub const RANGE_BYTES: u64 = 8 << 20;
/// Where its ranges are cut, and page headers near its end.
pub const ROW_GROUP_GETS: f64 = 3.0;
/// Its start and its footer.
pub const FILE_GETS: f64 = 2.0;
/// Plan, inventory, manifest lists and table metadata from the first commit to the last.
pub const COMMIT_PUTS: f64 = 20.0;
/// Of a call: start, end and report lines, and the unit's own.
pub const CALL_LOG_BYTES: f64 = 2_000.0;

/// In USD, of anything in the list.
const HIGHEST_PRICE: f64 = 1e6;

const GB: f64 = 1e9;
const MILLION: f64 = 1e6;

/// The prices that ship with the program.
const SHIPPED: &str = include_str!("../prices/us-east-1.json");

/// A list of prices, in USD.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// The day they were looked up.
    pub as_of: String,
    pub region: String,
    /// Where they are from.
    pub source: String,
    pub lambda: LambdaPrices,
    pub sqs: SqsPrices,
    pub dynamodb: DynamoDbPrices,
    pub s3: S3Prices,
    pub logs: LogPrices,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LambdaPrices {
    pub gb_second_x86: f64,
    pub gb_second_arm64: f64,
    pub million_requests: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqsPrices {
    pub million_requests: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DynamoDbPrices {
    pub million_write_units: f64,
    pub million_read_units: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3Prices {
    pub million_puts: f64,
    pub million_gets: f64,
    pub gb_month: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogPrices {
    pub gb: f64,
}

impl Prices {
    pub fn shipped() -> Result<Prices> {
        Prices::parse(SHIPPED)
    }

    /// An unknown or missing field, and a price below zero or beyond belief, are errors with the field's name.
    pub fn parse(text: &str) -> Result<Prices> {
        let unfit = |message: String| Error::invalid(Reason::InvalidOption, format!("this is no list of prices: {message}"));
        let prices: Prices = serde_json::from_str(text).map_err(|e| unfit(e.to_string()))?;
        let Prices { as_of, region, source: _, lambda, sqs, dynamodb, s3, logs } = &prices;
        if as_of.parse::<chrono::NaiveDate>().is_err() || region.is_empty() {
            return Err(unfit(format!("as_of {as_of:?} must be a day such as 2026-12-01, and region {region:?} a name")));
        }
        let all = [
            ("lambda.gb_second_x86", lambda.gb_second_x86),
            ("lambda.gb_second_arm64", lambda.gb_second_arm64),
            ("lambda.million_requests", lambda.million_requests),
            ("sqs.million_requests", sqs.million_requests),
            ("dynamodb.million_write_units", dynamodb.million_write_units),
            ("dynamodb.million_read_units", dynamodb.million_read_units),
            ("s3.million_puts", s3.million_puts),
            ("s3.million_gets", s3.million_gets),
            ("s3.gb_month", s3.gb_month),
            ("logs.gb", logs.gb),
        ];
        match all.iter().find(|(_, price)| !(0.0..=HIGHEST_PRICE).contains(price)) {
            Some((name, price)) => Err(unfit(format!("{name} is {price}"))),
            None => Ok(prices),
        }
    }
}

/// What one phase (landing, writing) does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseWork {
    /// Units: one call each.
    pub units: u64,
    /// Seconds of one thread, over all units.
    pub thread_seconds: f64,
    pub bytes_read: u64,
    pub files_read: u64,
    pub row_groups_read: u64,
    pub bytes_written: u64,
    pub files_written: u64,
}

impl PhaseWork {
    /// Seconds of all its calls together.
    pub fn call_seconds(&self) -> f64 {
        let moved = (self.bytes_read + self.bytes_written) as f64 / S3_BYTES_PER_SECOND;
        self.thread_seconds + moved + CALL_SECONDS * (self.units as f64 + STEP_CALLS)
    }
}

/// A line of the table: one service, in USD.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostLine {
    pub service: String,
    /// What is counted, in words.
    pub detail: String,
    pub x86: f64,
    pub arm64: f64,
}

/// Every figure is an estimate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostEstimate {
    pub currency: String,
    pub prices_as_of: String,
    pub region: String,
    pub services: Vec<CostLine>,
    pub total_x86: f64,
    pub total_arm64: f64,
    /// Of the written files, while the table keeps them; not in the totals.
    pub storage_per_month: f64,
}

impl CostEstimate {
    /// The dearer architecture: what a limit is compared with.
    pub fn most(&self) -> f64 {
        self.total_x86.max(self.total_arm64)
    }

    /// Refuses a job that is estimated above the limit.
    pub fn check(&self, most: f64) -> Result<()> {
        if self.most() <= most {
            return Ok(());
        }
        let message = format!("the job is estimated at {} on AWS, more than {}", usd(self.most()), usd(most));
        Err(Error::invalid(Reason::CostAboveLimit, message)
            .hint("see what it is made of with --dry-run; load a shorter range with --start and --end, or allow more with --max-cost")
            .at(|p| p.option = Some("--max-cost".into())))
    }
}

/// `0.0042 USD`: two digits that count, at least cents.
pub fn usd(amount: f64) -> String {
    format!("{amount:.*} USD", digits(amount))
}

/// Digits after the point by which two count, at least those of cents.
pub fn digits(amount: f64) -> usize {
    if amount >= 0.1 || amount <= 0.0 { 2 } else { (1.0 - amount.log10().floor()).min(9.0) as usize }
}

/// PUT requests of some files of about one size.
fn puts(files: u64, bytes: u64) -> f64 {
    match bytes.checked_div(files) {
        None => 0.0,
        Some(each) if each <= PART_BYTES => files as f64,
        Some(each) => files as f64 * (each.div_ceil(PART_BYTES) as f64 + 2.0),
    }
}

/// What the units of a phase ask of queue and ledger, whatever is in them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnitRequests {
    pub queue_requests: f64,
    pub write_units: f64,
    pub read_units: f64,
}

/// `thread_seconds`: the units' work, over all of them.
pub fn of_units(units: u64, thread_seconds: f64) -> UnitRequests {
    let (calls, counters) = (units as f64, f64::from(PlanRecord::shards_for(usize::try_from(units).unwrap_or(usize::MAX))));
    UnitRequests {
        // Each message is received and deleted by itself, and sent with nine others.
        queue_requests: calls * 2.0 + (calls / SEND_BATCH).ceil() + CLOSE_REQUESTS,
        write_units: calls * CALL_WRITE_UNITS,
        read_units: calls * (CALL_READ_UNITS + counters + LISTINGS * LISTED_READ_UNITS) + thread_seconds / BEAT_SECONDS * counters,
    }
}

/// The estimate for the phases of a job. Phases without units cost nothing.
pub fn estimate(prices: &Prices, phases: &[PhaseWork]) -> CostEstimate {
    let (mut calls, mut gb_seconds) = (0.0, 0.0);
    let (mut queue_requests, mut writes, mut reads) = (0.0, 0.0, 0.0);
    let (mut put, mut get, mut stored) = (0.0, 0.0, 0);
    for phase in phases.iter().filter(|p| p.units > 0) {
        let units = phase.units as f64;
        calls += units + STEP_CALLS;
        gb_seconds += FUNCTION_GB * phase.call_seconds();
        let asked = of_units(phase.units, phase.thread_seconds);
        queue_requests += asked.queue_requests;
        writes += asked.write_units;
        reads += asked.read_units;
        put += puts(phase.files_written, phase.bytes_written) + units;
        get += phase.files_read as f64 * FILE_GETS + phase.row_groups_read as f64 * ROW_GROUP_GETS;
        get += phase.bytes_read.div_ceil(RANGE_BYTES) as f64 + units * (CALL_GETS + LISTINGS);
    }
    if let Some(write) = phases.last().filter(|p| p.units > 0) {
        put += write.units as f64 + COMMIT_PUTS;
        stored = write.bytes_written;
    }
    let log_gb = calls * CALL_LOG_BYTES / GB;
    let requests = calls * prices.lambda.million_requests / MILLION;
    let both = |service: &str, detail: String, usd: f64| CostLine { service: service.into(), detail, x86: usd, arm64: usd };
    let services = vec![
        CostLine {
            service: "Lambda".into(),
            detail: format!("{gb_seconds:.1} GB-seconds, {calls:.0} requests"),
            x86: gb_seconds * prices.lambda.gb_second_x86 + requests,
            arm64: gb_seconds * prices.lambda.gb_second_arm64 + requests,
        },
        both("SQS", format!("{queue_requests:.0} requests"), queue_requests * prices.sqs.million_requests / MILLION),
        both(
            "DynamoDB",
            format!("{writes:.0} write units, {reads:.0} read units"),
            (writes * prices.dynamodb.million_write_units + reads * prices.dynamodb.million_read_units) / MILLION,
        ),
        both("S3", format!("{put:.0} PUT, {get:.0} GET"), (put * prices.s3.million_puts + get * prices.s3.million_gets) / MILLION),
        both("Logs", format!("{:.3} MB", log_gb * 1e3), log_gb * prices.logs.gb),
    ];
    CostEstimate {
        currency: "USD".into(),
        prices_as_of: prices.as_of.clone(),
        region: prices.region.clone(),
        total_x86: services.iter().map(|s| s.x86).sum(),
        total_arm64: services.iter().map(|s| s.arm64).sum(),
        services,
        storage_per_month: stored as f64 / GB * prices.s3.gb_month,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_counted_by_hand() {
        let prices = Prices::shipped().unwrap();
        let land = PhaseWork {
            units: 10,
            thread_seconds: 100.0,
            bytes_read: 800_000_000,
            files_read: 10,
            row_groups_read: 0,
            bytes_written: 400_000_000,
            files_written: 10,
        };
        let write = PhaseWork {
            units: 4,
            thread_seconds: 50.0,
            bytes_read: 400_000_000,
            files_read: 10,
            row_groups_read: 40,
            bytes_written: 80_000_000,
            files_written: 20,
        };
        let cost = estimate(&prices, &[land, write]);
        // Land: 100 s + 1.2 GB / 80 MB/s = 15 s + 12 × 0.5 s = 121 s. Write: 50 + 6 + 6 × 0.5 = 59 s. 180 s × 1.769 GB = 318.42.
        let lambda = &cost.services[0];
        assert_eq!(lambda.detail, "318.4 GB-seconds, 18 requests");
        assert!((lambda.x86 - (318.42 * 0.0000166667 + 18.0 * 0.2e-6)).abs() < 1e-9, "{lambda:?}");
        assert!((lambda.arm64 - (318.42 * 0.0000133334 + 18.0 * 0.2e-6)).abs() < 1e-9, "{lambda:?}");
        // 14 messages: 28 + 2 sends of 10, 2 closes of three requests.
        assert_eq!(cost.services[1].detail, "36 requests");
        assert!((cost.services[1].x86 - 36.0 * 0.4e-6).abs() < 1e-12);
        // One counter a phase: 14 calls of 4 + 1 + 0.4 read units, and one each of 150 / 2 beats.
        assert_eq!(cost.services[2].detail, "70 write units, 151 read units");
        assert!((cost.services[2].x86 - (70.0 * 0.625e-6 + 150.6 * 0.125e-6)).abs() < 1e-12);
        // Runs of 40 MB: 5 parts + 2 each, 70. Files of 4 MB: 20. Manifests: 4. Receipts: 14. Commits: 20. Read: 20 + 96, and
        // 20 + 120 + 48; for 14 calls 5 objects, and 4 times the receipt.
        assert_eq!(cost.services[3].detail, "128 PUT, 430 GET");
        assert!((cost.services[3].x86 - (128.0 * 5e-6 + 430.0 * 0.4e-6)).abs() < 1e-12);
        assert!((cost.services[4].x86 - 18.0 * 2_000.0 / 1e9 * 0.5).abs() < 1e-12);
        assert!((cost.total_x86 - cost.services.iter().map(|s| s.x86).sum::<f64>()).abs() < 1e-12);
        assert!((cost.storage_per_month - 0.08 * 0.023).abs() < 1e-12);
        assert_eq!(cost.most(), cost.total_x86);
    }

    #[test]
    fn a_large_round_has_more_counters_to_look_at() {
        let UnitRequests { queue_requests, write_units, read_units } = of_units(20_000, 0.0);
        assert_eq!((queue_requests, write_units), (42_003.0, 100_000.0));
        assert!((read_units - 20_000.0 * (4.0 + 16.0 + 0.4)).abs() < 1e-6, "{read_units}");
    }

    #[test]
    fn nothing_to_do_costs_nothing() {
        let cost = estimate(&Prices::shipped().unwrap(), &[PhaseWork::default(), PhaseWork::default()]);
        assert_eq!((cost.total_x86, cost.total_arm64, cost.storage_per_month), (0.0, 0.0, 0.0));
    }

    #[test]
    fn a_job_above_the_limit_is_refused_with_its_estimate() {
        let write = PhaseWork { units: 100, thread_seconds: 1_000_000.0, ..PhaseWork::default() };
        let cost = estimate(&Prices::shipped().unwrap(), &[write]);
        cost.check(cost.most()).unwrap();
        let refused = cost.check(5.0).unwrap_err();
        assert_eq!((refused.reason, refused.exit_code(), refused.place.option.as_deref()), (Reason::CostAboveLimit, 2, Some("--max-cost")));
        assert_eq!(refused.message, "the job is estimated at 29.55 USD on AWS, more than 5.00 USD");
    }

    #[test]
    fn a_wrong_list_names_the_field() {
        let wrong = |from: &str, to: &str| Prices::parse(&SHIPPED.replacen(from, to, 1)).unwrap_err().message;
        assert!(SHIPPED.contains("\"gb_month\": 0.023"));
        assert!(wrong("\"gb_month\"", "\"gb_moth\"").contains("unknown field `gb_moth`"));
        assert!(wrong(",\n    \"gb_month\": 0.023", "").contains("missing field `gb_month`"));
        assert!(wrong("0.023", "-1").contains("s3.gb_month is -1"));
        assert!(wrong("0.023", "\"x\"").contains("expected f64"));
        assert!(wrong("0.023", "1e300").contains("s3.gb_month is 1"));
        assert!(wrong("2026-12-01", "yesterday").contains("as_of \"yesterday\""));
        assert!(Prices::parse("").is_err());
    }

    #[test]
    fn amounts_keep_two_digits_that_count() {
        let texts = [0.0, 0.000_012_3, 0.0042, 0.0099, 0.5, 29.491].map(usd);
        assert_eq!(texts, ["0.00 USD", "0.000012 USD", "0.0042 USD", "0.0099 USD", "0.50 USD", "29.49 USD"]);
    }
}
