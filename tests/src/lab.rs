//! A folder of its own for each test, with a lake in it, and the real command run there.

use crate::faults::Faults;
use crate::reader::Reader;
use crate::rows::assert_same_rows;
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest any command of these tests may take; a hang must fail, not wait for a person.
const COMMAND_LIMIT: Duration = Duration::from_secs(180);
const BOUNDARY_LIMIT: Duration = Duration::from_secs(60);
const SIGNAL_TIME: Duration = Duration::from_millis(500);
/// No word of the command may hold it.
pub const SECRET: &str = "wJalrXUtnFEMI-secret";
const POLL: Duration = Duration::from_millis(5);

pub struct Lab {
    folder: TempDir,
    binary: PathBuf,
    /// Environment of the command.
    variables: Vec<(String, String)>,
    /// Endpoint of the object store, for the readers.
    endpoint: Option<String>,
}

/// A command that ended.
#[derive(Debug)]
pub struct Outcome {
    pub command: String,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A command that may still run. Dropping it kills it.
pub struct Running {
    command: String,
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

impl Default for Lab {
    fn default() -> Self {
        Lab::new()
    }
}

impl Lab {
    pub fn new() -> Lab {
        let folder = tempfile::Builder::new().prefix("timelake-test-").tempdir().expect("a temporary folder");
        Lab { folder, binary: find_binary(), variables: Vec::new(), endpoint: None }
    }
    /// The command finds its object store at `command`, the readers at `readers`.
    pub fn on_s3(mut self, command: &str, readers: &str) -> Lab {
        let variables = [
            ("AWS_ENDPOINT_URL_S3", command),
            ("AWS_REGION", "eu-central-1"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ];
        self.variables = variables.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
        self.endpoint = Some(readers.to_string());
        self
    }
    /// Environment of the command, over what it has.
    pub fn with_variables(mut self, variables: &[(&str, &str)]) -> Lab {
        self.variables.extend(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        self
    }
    /// Where the command runs; relative paths of arguments start here.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
    pub fn path(&self, relative: &str) -> PathBuf {
        self.folder().join(relative)
    }
    pub fn lake(&self) -> PathBuf {
        self.path("lake")
    }
    pub fn copy_in(&self, from: &Path, relative: &str) {
        let to = self.path(relative);
        std::fs::create_dir_all(to.parent().expect("a parent")).expect("folders of an input");
        std::fs::copy(from, &to).unwrap_or_else(|e| panic!("copy {} to {}: {e}", from.display(), to.display()));
    }

    /// Starts the command in this folder, on this lab's lake.
    pub fn start<S: AsRef<str>>(&self, arguments: &[S]) -> Running {
        self.start_failing(arguments, "")
    }
    /// The same, killed, delayed or kept at step boundaries: `kill:files-durable:1`, `delay:all:20`, comma separated.
    pub fn start_failing<S: AsRef<str>>(&self, arguments: &[S], failpoints: &str) -> Running {
        let mut command = self.command(arguments);
        if !failpoints.is_empty() {
            command.env("TIMELAKE_FAILPOINTS", failpoints);
        }
        self.run(command)
    }
    /// The same on a machine with faults, to its end.
    pub fn timelake_under<S: AsRef<str>>(&self, faults: &Faults, arguments: &[S]) -> Outcome {
        let mut command = self.command(arguments);
        faults.apply(&mut command);
        self.run(command).wait()
    }
    /// The command in this folder, on this lab's lake, not started yet; its output is kept unless it is sent elsewhere.
    pub fn command<S: AsRef<str>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments.iter().map(AsRef::as_ref)).current_dir(self.folder());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let is_ours = |name: &str| ["TIMELAKE_", "AWS_"].iter().any(|start| name.starts_with(start));
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_ours(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command.env("TIMELAKE_LAKE", self.lake()).env("RUST_BACKTRACE", "1").envs(self.variables.iter().cloned());
        command
    }
    pub fn run(&self, mut command: Command) -> Running {
        let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        let mut child = command.spawn().unwrap_or_else(|e| panic!("start {}: {e}", self.binary.display()));
        let (stdout, stderr) = (reading(child.stdout.take()), reading(child.stderr.take()));
        Running { command: format!("timelake {}", arguments.join(" ")), child, stdout, stderr }
    }
    /// When a traced command (`trace:FILE`) reached its boundaries, in order: name and microseconds since 1970.
    pub fn trace(&self, file: &str) -> Vec<(String, i64)> {
        let text = std::fs::read_to_string(self.path(file)).unwrap_or_default();
        let line = |line: &str| line.split_once(' ').map(|(name, at)| (name.to_string(), at.parse().expect("a time")));
        text.lines().filter_map(line).collect()
    }
    /// Waits until the traced command is at a boundary.
    #[track_caller]
    pub fn wait_for_boundary(&self, file: &str, boundary: &str) {
        let start = Instant::now();
        while !self.trace(file).iter().any(|(name, _)| name == boundary) {
            assert!(start.elapsed() < BOUNDARY_LIMIT, "{boundary} is not reached");
            std::thread::sleep(POLL);
        }
    }
    /// Starts the command, lets it come to a boundary and keeps it there until [`Lab::release`].
    #[track_caller]
    pub fn start_held<S: AsRef<str>>(&self, arguments: &[S], boundary: &str) -> Running {
        let running = self.start_failing(arguments, &format!("trace:trace-{boundary},wait:{boundary}:go-{boundary}"));
        self.wait_for_boundary(&format!("trace-{boundary}"), boundary);
        running
    }
    pub fn release(&self, boundary: &str) {
        std::fs::write(self.path(&format!("go-{boundary}")), "").expect("the file it waits for");
    }
    /// Runs the command to its end.
    pub fn timelake<S: AsRef<str>>(&self, arguments: &[S]) -> Outcome {
        self.start(arguments).wait()
    }
    /// `timelake backfill iot.sensor ... --json`, which must succeed: the run manifest.
    pub fn backfill(&self, arguments: &str) -> Value {
        self.backfill_outcome(arguments).manifest()
    }
    pub fn backfill_outcome(&self, arguments: &str) -> Outcome {
        self.timelake(&backfill_words(arguments))
    }
    pub fn start_backfill(&self, arguments: &str) -> Running {
        self.start(&backfill_words(arguments))
    }
    /// `timelake backfill VERB JOB --json`.
    pub fn job(&self, verb: &str, job: &str) -> Outcome {
        self.timelake(&["backfill", verb, job, "--json"])
    }
    /// `timelake table create iot.sensor` with ts, device_id, value, quality.
    pub fn create_sensor_table(&self, options: &str) {
        let mut words = crate::split_words(
            "table create iot.sensor --columns ts:timestamptz,device_id:string,value:double,quality:int --time-column ts --series-key device_id",
        );
        words.extend(crate::split_words(options));
        self.timelake(&words).success();
    }

    fn ask(&self, mut request: Value) -> Value {
        request["lake"] = json!(self.lake());
        if let Some(endpoint) = &self.endpoint {
            request["s3"] = json!(endpoint);
        }
        if request.get("table").is_none() {
            request["table"] = json!("iot.sensor");
        }
        Reader::shared().ask(&request)
    }
    /// A request to the reader process about this lab's lake; `iot.sensor` unless it names a table.
    pub fn reader(&self, request: Value) -> Value {
        self.ask(request)
    }
    /// The rows of `main` as `engine` (`pyiceberg` or `duckdb`) reads them.
    pub fn rows(&self, engine: &str) -> Vec<Value> {
        array(self.ask(json!({"command": "read", "engine": engine})))
    }
    /// Both readers see exactly these rows, no more and no fewer.
    #[track_caller]
    pub fn assert_rows(&self, expected: &[Value]) {
        for engine in ["pyiceberg", "duckdb"] {
            assert_same_rows(&self.rows(engine), expected, engine);
        }
    }
    /// A live writer appends rows (PyIceberg).
    pub fn append(&self, rows: &[Value]) {
        self.ask(json!({"command": "append", "rows": rows}));
    }
    pub fn inspect(&self) -> Value {
        self.ask(json!({"command": "inspect"}))
    }
    pub fn inspect_ref(&self, reference: &str) -> Value {
        self.ask(json!({"command": "inspect", "ref": reference}))
    }
    /// What one of the table's data files says itself; with its rows in file order.
    pub fn parquet(&self, file: &Value) -> Value {
        self.ask(json!({"command": "parquet", "path": file["path"], "rows": true}))
    }
}

fn backfill_words(arguments: &str) -> Vec<String> {
    let mut words = vec!["backfill".to_string(), "iot.sensor".to_string()];
    words.extend(crate::split_words(arguments));
    words.push("--json".to_string());
    words
}

pub(crate) fn array(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        other => panic!("expected a list, got {other}"),
    }
}

fn reading<R: Read + Send + 'static>(stream: Option<R>) -> Option<JoinHandle<String>> {
    stream.map(|mut stream| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    })
}

impl Running {
    pub fn id(&self) -> u32 {
        self.child.id()
    }
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
    /// SIGKILL: nothing gets a chance to tidy up.
    pub fn kill(mut self) -> Outcome {
        let _ = self.child.kill();
        self.wait()
    }
    /// Ctrl-C. Returns when the process has had time to take note of it.
    pub fn interrupt(&self) {
        let status = Command::new("kill").args(["-INT", &self.id().to_string()]).status().expect("the kill command");
        assert!(status.success(), "kill -INT {}: {status}", self.id());
        std::thread::sleep(SIGNAL_TIME);
    }
    pub fn wait(mut self) -> Outcome {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("the state of the command") {
                Some(status) => break status,
                None if start.elapsed() > COMMAND_LIMIT => {
                    let _ = self.child.kill();
                    let stderr = self.stderr.take().and_then(|h| h.join().ok()).unwrap_or_default();
                    panic!("{} ran longer than {COMMAND_LIMIT:?}\n{stderr}", self.command);
                }
                None => std::thread::sleep(POLL),
            }
        };
        let text = |handle: Option<JoinHandle<String>>| handle.and_then(|h| h.join().ok()).unwrap_or_default();
        let outcome = Outcome {
            command: self.command.clone(),
            code: status.code(),
            stdout: text(self.stdout.take()),
            stderr: text(self.stderr.take()),
        };
        assert!(!outcome.stderr.contains("panicked at"), "a panic reached the user\n{outcome}");
        assert!(!outcome.stderr.contains(SECRET) && !outcome.stdout.contains(SECRET), "a secret was told\n{outcome}");
        outcome
    }
}
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "$ {}\nexit code {:?}\nstdout:\n{}\nstderr:\n{}", self.command, self.code, self.stdout, self.stderr)
    }
}

impl Outcome {
    #[track_caller]
    pub fn success(self) -> Outcome {
        assert_eq!(self.code, Some(0), "{self}");
        self
    }
    /// Exactly one JSON object on stdout.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("stdout is not one JSON object: {e}\n{self}"))
    }
    /// Success and a run manifest whose numbers agree.
    #[track_caller]
    pub fn manifest(self) -> Value {
        let outcome = self.success();
        let manifest = outcome.json();
        assert_conserved(&manifest);
        manifest
    }
    /// The error object of a command that failed with this exit code.
    #[track_caller]
    pub fn error(&self, code: i32) -> Value {
        assert_eq!(self.code, Some(code), "{self}");
        let error = self.json()["error"].clone();
        assert!(error.is_object(), "no error object\n{self}");
        for field in ["kind", "reason", "message"] {
            assert!(error[field].as_str().is_some_and(|t| !t.is_empty()), "the error has no {field}\n{self}");
        }
        error
    }
}

/// Of a manifest: each row of the source counts as one of these.
pub const CLASSES: [&str; 8] = [
    "rejected",
    "outside_range",
    "outside_retention",
    "skipped_chunk",
    "duplicates_collapsed",
    "in_source_conflicts",
    "kept_existing",
    "rows_written",
];

/// Every source row is counted exactly once, and no count is absent.
#[track_caller]
pub fn assert_conserved(manifest: &Value) {
    let count = |name: &str| {
        manifest[name]
            .as_u64()
            .unwrap_or_else(|| panic!("the manifest has no count {name}: {}", serde_json::to_string_pretty(manifest).unwrap_or_default()))
    };
    let sum: u64 = CLASSES.iter().map(|c| count(c)).sum();
    assert_eq!(count("rows_read"), sum, "rows_read is not the sum of {CLASSES:?} in {manifest}");
    assert_eq!(count("rows_written") + count("carried"), count("rows_added_files"), "rows of added files in {manifest}");
    let gone = ["carried", "replaced", "deleted", "already_deleted"].iter().map(|c| count(c)).sum::<u64>();
    assert_eq!(count("rows_removed_files"), gone, "rows of removed files in {manifest}");
    assert!(count("kept_existing_different") <= count("kept_existing"), "{manifest}");
    assert!(count("rows_replacing") <= count("rows_written"), "{manifest}");
}

/// `TIMELAKE_BIN`, else the command of the same profile as this test: `target/<triple?>/<profile>/deps/<test>`.
fn find_binary() -> PathBuf {
    let found = std::env::var_os("TIMELAKE_BIN").map(PathBuf::from).or_else(|| {
        let test = std::env::current_exe().ok()?;
        Some(test.parent()?.parent()?.join(format!("timelake{}", std::env::consts::EXE_SUFFIX)))
    });
    let binary = found.expect("the path of this test executable");
    assert!(
        binary.is_file(),
        "the command {} is not built: run `make build` (or `make test`), or set TIMELAKE_BIN to a timelake executable",
        binary.display()
    );
    binary.canonicalize().expect("the path of the command")
}
