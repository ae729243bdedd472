//! The words of the command line, as clap reads them. Takes what was typed; gives these structs.
//! No default that depends on the machine and no rule between options lives here: see [`crate::resolve`].

use crate::choices::{choice, shell};
use clap::{ArgAction, Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use std::path::PathBuf;
use timelake_model::request::{Ambiguous, Mode, Nonexistent, OnBadRow, OnOutOfRange, OnSourceConflict, TimeUnit};

/// `0.1.0 (3f9a1c5be07d)`: the build script finds the commit.
pub const VERSION: &str = env!("TIMELAKE_VERSION");
pub const DEFAULT_LAKE: &str = "./lake";
pub const LAKE_VARIABLE: &str = "TIMELAKE_LAKE";
pub const WAREHOUSE_VARIABLE: &str = "TIMELAKE_WAREHOUSE";
/// Verbs that stand where TABLE stands otherwise.
pub const JOB_VERBS: [&str; 9] = ["list", "locks", "status", "resume", "cancel", "report", "validate", "publish", "gc"];

const EXIT_CODES: &str = "\
Exit codes:
  0  done, or nothing to do          4  conflict, HOLD or REJECTED
  1  a defect of timelake            5  unavailable, run again
  2  bad request                     6  the job is running elsewhere
  3  bad source data               130  interrupted, run again to go on";

const ROOT_EXAMPLES: &str = "\
Examples:
  timelake table create iot.sensor --time-column ts --series-key device_id \\
      --columns 'ts:timestamptz,device_id:string,value:double'
  timelake backfill iot.sensor --from export/ --tz Europe/Berlin
  timelake backfill list
  timelake table list";

const BACKFILL_EXAMPLES: &str = "\
Examples:
  timelake backfill iot.sensor --from export/
  timelake backfill iot.sensor --from 'plant-*/2024/*.parquet' \\
      --map ts=time,device_id=site+tag --tz Europe/Berlin --ambiguous earlier
  timelake backfill iot.sensor --from export/ --dry-run
  timelake backfill iot.sensor --from old.parquet --end 2024-07-01 --stage-only
  timelake backfill publish iot-sensor-3f9a

The same command again goes on with an unfinished job, and changes nothing on
a published one. JOB is a job's id or the beginning of it.";

const WORKER_EXAMPLES: &str = "\
Examples:
  timelake worker
  timelake worker --job iot-sensor-3f9a --wait PT1H --threads 4

A worker plans and publishes nothing: it takes units of jobs that `timelake
backfill` runs in another process, and ends when there are none any more. It may
be killed at any time; what it held is done by others.";

const CREATE_EXAMPLES: &str = "\
Examples:
  timelake table create iot.sensor --time-column ts --series-key device_id \\
      --columns 'ts:timestamptz,device_id:string,value:double,quality:int'
  timelake table create iot.power --time-column ts --series-key site,meter \\
      --columns 'ts:timestamptz,site:string,meter:string,kwh:decimal(12,3)' \\
      --partition 'day(ts),bucket(16,meter)' --retention P2Y";

const CONTRACT_EXAMPLES: &str = "\
Examples:
  timelake table contract iot.sensor
  timelake table contract iot.sensor --time-column ts --series-key device_id
  timelake table contract iot.sensor --retention P5Y";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  timelake completions bash > ~/.local/share/bash-completion/completions/timelake
  timelake completions zsh > ~/.zfunc/_timelake     (a folder of $fpath)
  timelake completions fish > ~/.config/fish/completions/timelake.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  timelake man backfill | man -l -
  timelake man --dir ~/.local/share/man/man1";

/// Loads months of time-series history into a live Apache Iceberg table with one command.
#[derive(Debug, Parser)]
#[command(name = "timelake", version = VERSION, subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = format!("{ROOT_EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct Cli {
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Loads history into a table, and looks after the jobs that do so
    #[command(
        override_usage = "timelake backfill TABLE --from PATH... [OPTIONS]\n       timelake backfill list|locks [TABLE]\n       timelake backfill status|resume|cancel|report|validate|publish JOB\n       timelake backfill gc [--older-than DURATION] [--dry-run]",
        after_help = format!("{BACKFILL_EXAMPLES}\n\n{EXIT_CODES}"),
        disable_help_subcommand = true
    )]
    Backfill(Box<BackfillArgs>),
    /// Joins jobs that run in other processes on this machine, and does some of their work
    #[command(after_help = WORKER_EXAMPLES)]
    Worker(WorkerArgs),
    /// Makes tables, lists and shows them, and reads or sets their contract
    #[command(disable_help_subcommand = true)]
    Table {
        #[command(subcommand)]
        verb: TableVerb,
    },
    /// Prints a shell's completions of this command
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        #[arg(value_name = "SHELL", value_parser = shell())]
        shell: Shell,
    },
    /// Prints the manual page of a command
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// Words of the command, for example `backfill report` [default: timelake itself]
        #[arg(value_name = "COMMAND", conflicts_with = "dir")]
        command: Vec<String>,
        /// Write the pages of all commands into this folder instead
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct OutputArgs {
    /// The lake: a folder, or aws:NAME as in timelake.toml
    #[arg(long, global = true, value_name = "DIR", env = LAKE_VARIABLE, hide_env_values = true, default_value = DEFAULT_LAKE, help_heading = "Lake and output")]
    pub lake: PathBuf,
    /// Print exactly one JSON object on stdout, for errors too
    #[arg(long, global = true, help_heading = "Lake and output")]
    pub json: bool,
    /// Say more on stderr (-vv: even more)
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet", help_heading = "Lake and output")]
    pub verbose: u8,
    /// No progress and no notes on stderr, only errors
    #[arg(short, long, global = true, help_heading = "Lake and output")]
    pub quiet: bool,
}

#[derive(Debug, Args)]
pub struct BackfillArgs {
    #[command(subcommand)]
    pub verb: Option<JobVerb>,
    #[command(flatten)]
    pub load: LoadArgs,
}

#[derive(Debug, Subcommand)]
pub enum JobVerb {
    /// Lists jobs, newest first
    List {
        /// Only jobs of this table
        #[arg(value_name = "TABLE")]
        table: Option<String>,
    },
    /// Lists windows that are locked: loaded by jobs that are not published yet
    Locks {
        /// Only windows of this table
        #[arg(value_name = "TABLE")]
        table: Option<String>,
    },
    /// Shows how far a job is, by group and unit
    Status(JobArg),
    /// Goes on with a job that is on HOLD or was interrupted
    Resume(JobArg),
    /// Gives a job up: its branch and staged snapshots go, the table stays as it is
    Cancel(JobArg),
    /// Prints everything that is known about a job (--json: the run manifest)
    Report {
        #[command(flatten)]
        job: JobArg,
        /// Write it as one page for a browser into this file instead (- is stdout)
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        /// Write the job's plan into this file instead (- is stdout), for `backfill --plan FILE`
        #[arg(long, value_name = "FILE", conflicts_with = "html")]
        plan: Option<PathBuf>,
    },
    /// Checks what is staged, publishes nothing
    Validate {
        #[command(flatten)]
        job: JobArg,
        /// How much is read again: `full` reads all rows
        #[arg(long, value_name = "HOW MUCH", value_parser = ["full"])]
        verify: Option<String>,
    },
    /// Publishes a staged job in one commit
    Publish(JobArg),
    /// Removes what jobs left behind and no table refers to: files of attempts that lost, branches, tags whose undo
    /// window is over, temporary files
    Gc {
        /// The grace period: what was touched since stays (P7D, PT1H)
        #[arg(long, value_name = "DURATION", default_value = "P1D")]
        older_than: String,
        /// Say what would be removed, remove nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// Only this job, by its id or the beginning of it [default: whatever runs in this lake]
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// How long to wait for work while no job runs (PT10S, PT1H)
    #[arg(long, value_name = "DURATION", default_value = "PT10S")]
    pub wait: String,
    /// Threads that write [default: all cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Memory of this process, for example 512MiB or 2GB
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    pub memory: String,
}

#[derive(Debug, Args)]
pub struct JobArg {
    /// The job's id, or the beginning of it
    #[arg(value_name = "JOB")]
    pub job: String,
}

#[derive(Debug, Args)]
pub struct LoadArgs {
    /// The table to load into: `namespace.table`
    #[arg(value_name = "TABLE")]
    pub table: Option<String>,

    /// Files, folders or globs, in this order (may be repeated)
    #[arg(long, value_name = "PATH", num_args = 1.., value_hint = ValueHint::AnyPath, help_heading = "Source")]
    pub from: Vec<String>,
    /// What the files are; found by name and content when not given
    #[arg(long, value_name = "FORMAT", value_parser = ["parquet", "csv"], help_heading = "Source")]
    pub format: Option<String>,
    /// Where table columns come from, `dst=src,...`: a column, a struct path `a.b`, or columns joined by `+`; `dst=`
    /// leaves dst out; backslash escapes , = + . (others: the column of the same name)
    #[arg(long, value_name = "DST=SRC", help_heading = "Source")]
    pub map: Vec<String>,
    /// One value for a whole column (may be repeated)
    #[arg(long, value_name = "COL=VALUE", help_heading = "Source")]
    pub set: Vec<String>,
    /// Take columns from `name=value` folders
    #[arg(long, help_heading = "Source")]
    pub hive: bool,

    /// Field separator: one character, or \t [default: a sep= line, else what fits the header]
    #[arg(long, value_name = "CHAR", allow_hyphen_values = true, help_heading = "Text files")]
    pub delimiter: Option<String>,
    /// Decimal separator of numbers [default: .]
    #[arg(long, value_name = "CHAR", help_heading = "Text files")]
    pub decimal: Option<String>,
    /// Separator of digit groups [default: none]
    #[arg(long, value_name = "CHAR", help_heading = "Text files")]
    pub thousands: Option<String>,
    /// For example windows-1252 or utf-16le [default: a byte order mark, else UTF-8]
    #[arg(long, value_name = "NAME", help_heading = "Text files")]
    pub encoding: Option<String>,
    /// Texts that mean NULL, comma separated, in columns that are no key (empty fields always do)
    #[arg(long, value_name = "TEXTS", allow_hyphen_values = true, help_heading = "Text files")]
    pub null: Vec<String>,
    /// A number that means NULL in a table column (may be repeated)
    #[arg(long, value_name = "COL=N", help_heading = "Rows")]
    pub null_number: Vec<String>,
    /// Text column of the table that takes what stands where a number should (the number is NULL then)
    #[arg(long, value_name = "COL", help_heading = "Text files")]
    pub bad_text_to: Option<String>,
    /// Physical line of the header, 1 is the first [default: the first line that is not blank]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Text files")]
    pub header_line: Option<u64>,
    /// Lines to pass over after the header [default: 0]
    #[arg(long, value_name = "N", help_heading = "Text files")]
    pub skip_after_header: Option<u64>,
    /// Names of the columns, comma separated, for files without a header
    #[arg(long, value_name = "NAMES", conflicts_with_all = ["header_line", "skip_after_header"], help_heading = "Text files")]
    pub columns: Vec<String>,

    /// Zone of times without an offset: an IANA name (Europe/Berlin) or a fixed offset (+01:00)
    #[arg(long, value_name = "ZONE", allow_hyphen_values = true, help_heading = "Times")]
    pub tz: Option<String>,
    /// Unit of times that are plain numbers
    #[arg(long, value_name = "UNIT", value_parser = choice::<TimeUnit>(&["s", "ms", "us", "ns"]), help_heading = "Times")]
    pub ts_unit: Option<TimeUnit>,
    /// Pattern of times that are text (strftime, for example '%d.%m.%Y %H:%M'), or `excel` for serial days
    #[arg(long, value_name = "PATTERN", help_heading = "Times")]
    pub ts_format: Option<String>,
    /// Local times that happen twice when the clock goes back (infer: by the order of each series, where it shows) [default: error]
    #[arg(long, value_name = "POLICY", value_parser = choice::<Ambiguous>(&["error", "infer", "earlier", "later"]), help_heading = "Times")]
    pub ambiguous: Option<Ambiguous>,
    /// Local times that the clock skips (shift: forward by the gap) [default: error]
    #[arg(long, value_name = "POLICY", value_parser = choice::<Nonexistent>(&["error", "skip", "shift"]), help_heading = "Times")]
    pub nonexistent: Option<Nonexistent>,
    /// First time to load; earlier rows are counted as outside range
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Times")]
    pub start: Option<String>,
    /// First time not to load any more
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Times")]
    pub end: Option<String>,
    /// Earliest believable time [default: 1970-01-02]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Times")]
    pub min_ts: Option<String>,
    /// First unbelievable time [default: a day after the job was made]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Times")]
    pub max_ts: Option<String>,
    /// Rows with unbelievable times [default: error]
    #[arg(long, value_name = "POLICY", value_parser = choice::<OnOutOfRange>(&["error", "skip"]), help_heading = "Times")]
    pub on_out_of_range: Option<OnOutOfRange>,

    /// Rows with a value that does not fit (quarantine: left out and listed in jobs/JOB/rejected.ndjson) [default: error]
    #[arg(long, value_name = "POLICY", value_parser = choice::<OnBadRow>(&["error", "skip", "quarantine"]), help_heading = "Rows")]
    pub on_bad_row: Option<OnBadRow>,
    /// Most rows that --on-bad-row may leave out
    #[arg(long, value_name = "N", help_heading = "Rows")]
    pub max_bad_rows: Option<u64>,
    /// One key with different values inside the source (newest: by --version-column) [default: error]
    #[arg(long, value_name = "POLICY", value_parser = choice::<OnSourceConflict>(&["error", "first", "last", "newest"]), help_heading = "Rows")]
    pub on_source_conflict: Option<OnSourceConflict>,
    /// The column whose larger value is the newer row
    #[arg(long, value_name = "COL", help_heading = "Rows")]
    pub version_column: Option<String>,

    /// When a key exists in the table already (merge: the existing row stays, whole; fail: load nothing; append: do not
    /// look, for tables whose rows have no identity) [default: merge]
    #[arg(long, value_name = "MODE", value_parser = choice::<Mode>(&["merge", "append", "fail"]), help_heading = "Table")]
    pub mode: Option<Mode>,
    /// Append although rows have an identity: rows that exist are there twice then
    #[arg(long, help_heading = "Table")]
    pub allow_duplicates: bool,
    /// Load only chunks (days, months: the table's time partitions) that have no rows yet
    #[arg(long, help_heading = "Table")]
    pub only_missing: bool,
    /// Load rows although they are older than the table's retention
    #[arg(long, conflicts_with = "clip_retention", help_heading = "Table")]
    pub override_retention: bool,
    /// Leave out and count rows older than the table's retention (without either: an error)
    #[arg(long, help_heading = "Table")]
    pub clip_retention: bool,

    /// Take the request from this file (- is stdin), as --save-request wrote it; options beside it override what it says
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    pub request: Option<PathBuf>,
    /// Write the request to this file (- is stdout) and load nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["again", "new"], help_heading = "Run")]
    pub save_request: Option<PathBuf>,
    /// Say what would be done, from all rows of the source, and change nothing
    #[arg(long, conflicts_with = "save_request", help_heading = "Run")]
    pub dry_run: bool,
    /// For --dry-run: read only the first N rows of each file, for a quick look
    #[arg(long, value_name = "N", requires = "dry_run", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true, help_heading = "Run")]
    pub sample: Option<u64>,
    /// Refuse a job whose estimated cost on AWS is above this, whatever the architecture
    #[arg(long, value_name = "USD", conflicts_with = "save_request", allow_negative_numbers = true, help_heading = "Run")]
    pub max_cost: Option<f64>,
    /// Take AWS prices from this file, a JSON object like the shipped one [default: us-east-1, 2026-12-01]
    #[arg(long, value_name = "FILE", conflicts_with = "save_request", help_heading = "Run")]
    pub prices: Option<PathBuf>,
    /// Divide the work as this plan does, which `backfill report JOB --plan FILE` wrote, perhaps in another lake
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save_request", "dry_run", "max_cost"], help_heading = "Run")]
    pub plan: Option<PathBuf>,
    /// Stop after validation; `backfill publish JOB` publishes
    #[arg(long, help_heading = "Run")]
    pub stage_only: bool,
    /// Read all staged rows again before publishing
    #[arg(long, value_name = "HOW MUCH", value_parser = ["full"], help_heading = "Run")]
    pub verify: Option<String>,
    /// Folder of temporary files for sources that must be sorted first [default: the job's folder in the lake]
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub work_dir: Option<PathBuf>,
    /// Keep those temporary files after publishing
    #[arg(long, help_heading = "Run")]
    pub keep_runs: bool,
    /// Load although an unfinished job has a window that overlaps
    #[arg(long, help_heading = "Run")]
    pub allow_overlap: bool,
    /// On AWS: units that are announced and not done at a time [default: 10000]
    #[arg(long, value_name = "N", help_heading = "Run", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_in_flight: Option<u32>,
    /// Load again although the job is published
    #[arg(long, help_heading = "Run")]
    pub again: bool,
    /// Give up the unfinished job of an older version of this source, and start anew
    #[arg(long, help_heading = "Run")]
    pub new: bool,
    /// On AWS: say which job it is and leave; it goes on by itself
    #[arg(long, conflicts_with = "save_request", help_heading = "Run")]
    pub detach: bool,
    /// Threads that write [default: all cores]
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub threads: Option<usize>,
    /// Memory of this process, for example 512MiB or 2GB [default: 1GB]
    #[arg(long, value_name = "SIZE", help_heading = "Run")]
    pub memory: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum TableVerb {
    /// Makes a table with a contract, partitions and a sort order
    #[command(
        override_usage = "timelake table create TABLE --columns COLUMNS --time-column COL\n                             --series-key COLS [OPTIONS]",
        after_help = CREATE_EXAMPLES
    )]
    Create(Box<CreateArgs>),
    /// Lists the lake's tables
    List,
    /// Shows a table: columns, contract, size, refs and locks
    Show {
        /// `namespace.table`
        #[arg(value_name = "TABLE")]
        table: String,
    },
    /// Reads a table's contract, or sets what is given
    #[command(after_help = CONTRACT_EXAMPLES)]
    Contract(Box<ContractArgs>),
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// `namespace.table`
    #[arg(value_name = "TABLE")]
    pub table: String,
    /// `name:type,...` with Iceberg's types; `!` after a type marks a required column
    #[arg(long, value_name = "COLUMNS")]
    pub columns: String,
    /// The event time; a timestamptz column
    #[arg(long, value_name = "COL")]
    pub time_column: String,
    /// What identifies a series
    #[arg(long, value_name = "COLS", required = true)]
    pub series_key: Vec<String>,
    /// What identifies a row, or `none` [default: series key and time column]
    #[arg(long, value_name = "COLS")]
    pub dedup_key: Option<String>,
    /// Where the table's files go: `s3://bucket/prefix` [default: the lake's folder]
    #[arg(long, value_name = "URI", env = WAREHOUSE_VARIABLE, hide_env_values = true)]
    pub warehouse: Option<String>,
    /// For example `month(ts),bucket(16,device_id)` [default: by day]
    #[arg(long, value_name = "FIELDS")]
    pub partition: Option<String>,
    /// How long rows are kept, as an ISO-8601 duration: P2Y, P90D [default: unlimited]
    #[arg(long, value_name = "DURATION")]
    pub retention: Option<String>,
    /// How late live rows may come [default: PT1H]
    #[arg(long, value_name = "DURATION")]
    pub lateness: Option<String>,
    /// How long a published job can be undone [default: P14D]
    #[arg(long, value_name = "DURATION")]
    pub undo: Option<String>,
    /// How older rows are laid out: '[{"older-than": "P90D", "partition": "month(ts)"}]'
    #[arg(long, value_name = "JSON")]
    pub layout: Option<String>,
}

#[derive(Debug, Args)]
pub struct ContractArgs {
    /// `namespace.table`
    #[arg(value_name = "TABLE")]
    pub table: String,
    /// The event time; a timestamptz column
    #[arg(long, value_name = "COL")]
    pub time_column: Option<String>,
    /// What identifies a series: columns, comma separated
    #[arg(long, value_name = "COLS")]
    pub series_key: Option<String>,
    /// What identifies a row: columns, comma separated, or `none`
    #[arg(long, value_name = "COLS")]
    pub dedup_key: Option<String>,
    /// How long rows are kept (P2Y), or `none`
    #[arg(long, value_name = "DURATION")]
    pub retention: Option<String>,
    /// How late live rows may come (PT1H)
    #[arg(long, value_name = "DURATION")]
    pub lateness: Option<String>,
    /// How long a published job can be undone (P14D)
    #[arg(long, value_name = "DURATION")]
    pub undo: Option<String>,
    /// How older rows are laid out: '[{"older-than": "P90D", "partition": "month(ts)"}]', or `none`
    #[arg(long, value_name = "JSON")]
    pub layout: Option<String>,
}
