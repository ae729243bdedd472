//! What a process on AWS is told by its environment, read once when it starts. [`VARIABLES`] is the whole list.

use crate::queue::QueueUrls;
use timelake_model::{Error, Reason, Result};

/// A variable of the environment.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    pub name: &'static str,
    pub what: &'static str,
}

const NAME: Variable = Variable { name: "TIMELAKE_NAME", what: "name of this installation, in logs and metrics; timelake when not set" };
const LEDGER_TABLE: Variable = Variable { name: "TIMELAKE_LEDGER_TABLE", what: "DynamoDB table of the ledger; needed" };
const BUCKET: Variable =
    Variable { name: "TIMELAKE_BUCKET", what: "bucket of warehouse and job files, where they are not named by themselves" };
const WAREHOUSE: Variable =
    Variable { name: "TIMELAKE_WAREHOUSE", what: "where new tables go: s3://bucket/prefix; <bucket>/warehouse when not set" };
const JOBS: Variable = Variable { name: "TIMELAKE_JOBS", what: "folder of the job files: s3://bucket/prefix; <bucket>/jobs when not set" };
const WORK_QUEUE: Variable = Variable { name: "TIMELAKE_WORK_QUEUE_URL", what: "queue of the units to be landed or written" };
const LAND_CLOSE_QUEUE: Variable = Variable { name: "TIMELAKE_LAND_CLOSE_QUEUE_URL", what: "queue of the planner: rounds that are landed" };
const CLOSE_QUEUE: Variable =
    Variable { name: "TIMELAKE_CLOSE_QUEUE_URL", what: "queue of the finalizer: rounds that are written or staged" };
const REFRESH_QUEUE: Variable = Variable { name: "TIMELAKE_REFRESH_QUEUE_URL", what: "queue of the units to be refreshed" };
const GLUE_DATABASE: Variable = Variable { name: "TIMELAKE_GLUE_DATABASE", what: "database whose tables are listed; all when not set" };
const MEMORY: Variable =
    Variable { name: "TIMELAKE_MEMORY_MB", what: "memory of the process in MiB; what Lambda says when not set, else 1024" };
const WRITER_MEMORY: Variable =
    Variable { name: "TIMELAKE_WRITER_MEMORY_MB", what: "memory of a writer in MiB, which units are planned for; its own when not set" };
/// Set by Lambda.
const LAMBDA_MEMORY: &str = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE";

const DEFAULT_NAME: &str = "timelake";
const DEFAULT_MEMORY_MB: u64 = 1_024;
/// Below that, nothing is written.
const LEAST_MEMORY_MB: u64 = 128;

/// All variables of ours. Credentials, region and endpoint are those of every AWS client (`AWS_REGION`,
/// `AWS_ENDPOINT_URL` ...).
pub const VARIABLES: [Variable; 12] = [
    NAME,
    LEDGER_TABLE,
    BUCKET,
    WAREHOUSE,
    JOBS,
    WORK_QUEUE,
    LAND_CLOSE_QUEUE,
    CLOSE_QUEUE,
    REFRESH_QUEUE,
    GLUE_DATABASE,
    MEMORY,
    WRITER_MEMORY,
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudSettings {
    pub name: String,
    pub ledger_table: String,
    /// `s3://bucket/prefix`, without a slash at the end.
    pub warehouse: String,
    /// `s3://bucket/prefix`, without a slash at the end.
    pub jobs: String,
    pub queues: QueueUrls,
    pub glue_database: Option<String>,
    pub memory_mb: u64,
    pub writer_memory_mb: u64,
}

impl CloudSettings {
    pub fn from_env() -> Result<CloudSettings> {
        CloudSettings::from(|name| std::env::var(name).ok())
    }

    /// `value`: what a variable is set to. An empty one is not set.
    pub fn from(value: impl Fn(&str) -> Option<String>) -> Result<CloudSettings> {
        let read = |name: &str| value(name).map(|text| text.trim().to_string()).filter(|text| !text.is_empty());
        let get = |variable: Variable| read(variable.name);
        let address = |variable: Variable, folder: &str| match (get(variable), get(BUCKET)) {
            (Some(address), _) => s3_prefix(variable, &address),
            (None, Some(bucket)) => s3_prefix(BUCKET, &format!("s3://{bucket}/{folder}")),
            (None, None) => Err(missing(variable)),
        };
        let memory_mb = match get(MEMORY) {
            Some(text) => memory(MEMORY, &text)?,
            None => read(LAMBDA_MEMORY).and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_MEMORY_MB),
        };
        Ok(CloudSettings {
            name: get(NAME).unwrap_or_else(|| DEFAULT_NAME.into()),
            ledger_table: get(LEDGER_TABLE).ok_or_else(|| missing(LEDGER_TABLE))?,
            warehouse: address(WAREHOUSE, "warehouse")?,
            jobs: address(JOBS, "jobs")?,
            queues: QueueUrls {
                work: queue(WORK_QUEUE, get(WORK_QUEUE))?,
                land_close: queue(LAND_CLOSE_QUEUE, get(LAND_CLOSE_QUEUE))?,
                close: queue(CLOSE_QUEUE, get(CLOSE_QUEUE))?,
                refresh: queue(REFRESH_QUEUE, get(REFRESH_QUEUE))?,
            },
            glue_database: get(GLUE_DATABASE),
            memory_mb,
            writer_memory_mb: get(WRITER_MEMORY).map_or(Ok(memory_mb), |text| memory(WRITER_MEMORY, &text))?,
        })
    }

    pub fn memory_bytes(&self) -> u64 {
        self.memory_mb << 20
    }
    pub fn writer_memory_bytes(&self) -> u64 {
        self.writer_memory_mb << 20
    }
}

fn wrong(variable: Variable, message: String) -> Error {
    Error::invalid(Reason::InvalidOption, message)
        .hint(format!("{}: {}", variable.name, variable.what))
        .at(|place| place.option = Some(variable.name.into()))
}

fn missing(variable: Variable) -> Error {
    wrong(variable, format!("{} is not set", variable.name))
}

fn s3_prefix(variable: Variable, address: &str) -> Result<String> {
    let prefix = address.trim_end_matches('/');
    match crate::address::Address::parse(prefix) {
        Ok(_) => Ok(prefix.to_string()),
        Err(e) => Err(wrong(variable, format!("{}: {}", variable.name, e.message))),
    }
}

fn queue(variable: Variable, url: Option<String>) -> Result<Option<String>> {
    match url {
        Some(url) if !url.starts_with("http://") && !url.starts_with("https://") => {
            Err(wrong(variable, format!("{} is {url}, which is no address of a queue", variable.name)))
        }
        url => Ok(url),
    }
}

fn memory(variable: Variable, text: &str) -> Result<u64> {
    let megabytes = text.parse().ok().filter(|megabytes| (LEAST_MEMORY_MB..=1 << 20).contains(megabytes));
    megabytes.ok_or_else(|| wrong(variable, format!("{} is {text}, not a number of MiB from {LEAST_MEMORY_MB} on", variable.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(changes: &[(&str, &str)]) -> Result<CloudSettings> {
        let set = |name: &str| {
            let changed = changes.iter().find(|(changed, _)| *changed == name).map(|(_, value)| *value);
            changed.or([("TIMELAKE_LEDGER_TABLE", "ledger"), ("TIMELAKE_BUCKET", "lake")]
                .into_iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| v))
        };
        CloudSettings::from(|name| set(name).map(str::to_string))
    }

    #[test]
    fn a_bucket_and_a_table_are_enough() {
        let settings = with(&[]).unwrap();
        assert_eq!((settings.warehouse.as_str(), settings.jobs.as_str()), ("s3://lake/warehouse", "s3://lake/jobs"));
        assert_eq!((settings.name.as_str(), settings.memory_bytes(), settings.queues), ("timelake", 1 << 30, QueueUrls::default()));
        let settings = with(&[
            ("TIMELAKE_JOBS", "s3://other/j/"),
            ("TIMELAKE_WORK_QUEUE_URL", "https://sqs/1/work"),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "3008"),
            ("TIMELAKE_GLUE_DATABASE", " "),
        ])
        .unwrap();
        assert_eq!((settings.jobs.as_str(), settings.queues.work.as_deref()), ("s3://other/j", Some("https://sqs/1/work")));
        assert_eq!((settings.memory_mb, settings.writer_memory_mb, settings.glue_database), (3008, 3008, None));
        assert_eq!(with(&[("TIMELAKE_WRITER_MEMORY_MB", "512")]).unwrap().writer_memory_bytes(), 512 << 20);
    }

    #[test]
    fn an_error_names_its_variable_and_says_what_it_is() {
        for (name, value) in [
            ("TIMELAKE_LEDGER_TABLE", ""),
            ("TIMELAKE_BUCKET", ""),
            ("TIMELAKE_BUCKET", "a b"),
            ("TIMELAKE_WAREHOUSE", "/data"),
            ("TIMELAKE_JOBS", "s3://"),
            ("TIMELAKE_CLOSE_QUEUE_URL", "arn:aws:sqs:eu-central-1:1:close"),
            ("TIMELAKE_MEMORY_MB", "2 GB"),
            ("TIMELAKE_MEMORY_MB", "1"),
            ("TIMELAKE_WRITER_MEMORY_MB", "much"),
        ] {
            let error = with(&[(name, value)]).unwrap_err();
            let named = error.place.option.as_deref().unwrap_or_default();
            // Without a bucket, it is the first address made of it that is missing.
            assert!(named == name || (value.is_empty() && named == "TIMELAKE_WAREHOUSE"), "{name}={value}: {error:?}");
            assert!(VARIABLES.iter().any(|variable| variable.name == named) && error.hint.is_some() && error.exit_code() == 2, "{error:?}");
        }
    }
}
