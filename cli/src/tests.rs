//! Golden output: every `--help`, and the texts for people at the widths people have.

use crate::args::Cli;
use crate::output::Layout;
use crate::report::{Again, ThisRun};
use crate::run::Settings;
use crate::{job_text, report, table_text};
use clap::{CommandFactory, Parser};
use serde_json::json;
use std::collections::BTreeSet;
use timelake_engine::jobs::{JobStatus, JobSummary, UnitStatus};
use timelake_engine::tables::{RefInfo, SnapshotInfo, SortColumn, TableInfo, TableSummary};
use timelake_model::ledger::{GroupRecord, JobRecord, State, UnitState};
use timelake_model::manifest::RunManifest;
use timelake_model::verdict::{Check, Verdict};
use timelake_model::{Column, ColumnType, Error, GroupName, JobId, Reason, TimestampUs, Window};

const NARROW: Layout = Layout { width: Some(80), color: false };
const PIPED: Layout = Layout { width: None, color: false };

pub fn again() -> Again {
    Again { lake: String::new() }
}

/// Exactly what `--help` prints.
fn help(words: &[&str]) -> String {
    let words = ["timelake"].iter().chain(words).chain(&["--help"]);
    Cli::command().term_width(80).try_get_matches_from(words).unwrap_err().to_string()
}

#[test]
fn help_of_every_command() {
    for words in [
        "",
        "backfill",
        "backfill list",
        "backfill status",
        "backfill resume",
        "backfill cancel",
        "backfill report",
        "backfill validate",
        "backfill publish",
        "backfill locks",
        "backfill gc",
        "worker",
        "table",
        "table create",
        "table list",
        "table show",
        "table contract",
        "completions",
        "man",
    ] {
        let path: Vec<&str> = words.split_whitespace().collect();
        insta::assert_snapshot!(format!("help_{}", path.join("_")), help(&path));
    }
}

#[test]
fn the_command_is_well_formed_and_every_command_has_its_help_guarded() {
    Cli::command().debug_assert();
    let mut names = BTreeSet::new();
    for command in Cli::command().get_subcommands() {
        for verb in command.get_subcommands() {
            names.insert(format!("{} {}", command.get_name(), verb.get_name()));
        }
    }
    let guarded = include_str!("tests.rs");
    for name in &names {
        assert!(guarded.contains(&format!("\"{name}\"")), "{name} is in no help snapshot");
    }
    let verbs: BTreeSet<String> = crate::args::JOB_VERBS.iter().map(|verb| format!("backfill {verb}")).collect();
    assert_eq!(names.iter().filter(|name| name.starts_with("backfill")).cloned().collect::<BTreeSet<_>>(), verbs);
}

pub fn published() -> RunManifest {
    serde_json::from_value(json!({
        "job": "iot-sensor-3f9a1c5be07d", "gen": 1, "table": "iot.sensor", "state": "PUBLISHED", "published": true, "already_published": false,
        "rows_read": 20_100_000, "rows_written": 19_989_412, "rows_added_files": 19_989_412, "kept_existing": 10_000, "kept_existing_different": 12,
        "duplicates_collapsed": 100_000, "in_source_conflicts": 6, "outside_range": 582, "precision_truncated": 1_204, "nulled": {},
        "files_missing_column": {"quality": ["export/2024-01.parquet", "export/2024-02.parquet"]},
        "rollup_ranges": [{"start": "2024-01-01T00:00:00.000000Z", "end": "2024-07-01T00:00:00.000000Z"}],
        "warnings": ["the column quality is missing in 2 of 20 files; it is NULL there"],
        "window": {"start": "2024-01-01T00:00:00.000000Z", "end": "2024-07-01T00:00:00.000000Z"},
        "time_range": ["2024-01-01T00:00:00.000000Z", "2024-06-30T23:59:59.500000Z"],
        "as_of": "2026-12-01T00:00:00.000000Z",
        "source": {"files": 20, "bytes": 317_204_992, "rows": 20_100_000, "row_groups": 160, "row_groups_pruned": 3},
        "written": {"files": 24, "bytes": 141_002_003, "partitions": 24, "smallest_file_bytes": 5_100_000, "largest_file_bytes": 6_402_000},
        "plan": {"units": 24, "hash": "9c1f04d2", "base_snapshot": 5734221456879552381_i64, "read_amplification": 1.25, "unit_rows_limit": 4_200_000},
        "groups": [{"group": "all", "state": "PUBLISHED", "round": 1, "units": 24, "units_done": 24, "units_failed": 0, "rederived": 0,
            "branch": null, "published_snapshot": 873462387463287_i64, "tag": "timelake/published/iot-sensor-3f9a1c5be07d/1/all"}],
        "checks": [{"name": "conservation", "detail": "20,100,000 rows read are all accounted for"},
            {"name": "staged files", "detail": "24 files reopened: footer, bounds, partition values, order, uniqueness and key hash agree with the receipts of their units"}],
        "errors": [], "column_sums": {"ts": "14038920482304", "value": "992837429384"}, "key_hash": "77ab10ff23d09c41", "error": null,
        "steps": [{"step": "inventory", "seconds": 0.041}, {"step": "plan", "seconds": 0.003}, {"step": "write", "seconds": 3.42},
            {"step": "stage", "seconds": 0.02}, {"step": "validate", "seconds": 0.35}, {"step": "publish", "seconds": 0.018}],
        "peak_memory_bytes": 283_000_000
    }))
    .unwrap()
}

fn lossy() -> Error {
    Error::invalid(Reason::LossyConversion, "2.5 in column q cannot become an int without loss")
        .hint("load it into a double column, or leave such rows out with --on-bad-row skip")
        .at(|p| {
            p.file = Some("export/2024-01.parquet".into());
            p.row = Some(1_200);
            p.column = Some("q".into());
            p.value = Some("2.5".into());
            p.count = Some(17);
        })
}

pub fn rejected() -> RunManifest {
    let mut m = published();
    m.state = State::Rejected;
    m.published = false;
    m.error = Some(lossy());
    m.errors = serde_json::from_value(json!([
        {"first": lossy(), "object": 0, "row": 1200, "count": 17, "places": ["export/2024-01.parquet:1200 2.5"]},
        {"first": {"kind": "invalid", "reason": "null_in_key", "message": "no tag", "column": "tag"}, "object": 1, "row": 7, "count": 2,
            "places": ["export/2024-02.parquet:7 NULL"]}
    ]))
    .unwrap();
    m
}

#[test]
fn summaries() {
    insta::assert_snapshot!("summary_published", summary(&published(), NARROW));
    insta::assert_snapshot!("summary_rejected", summary(&rejected(), NARROW));
    insta::assert_snapshot!("nothing_to_do", report::nothing_to_do(&published(), time("2026-12-01T09:04:12Z"), NARROW));
    insta::assert_snapshot!("standing_error_rejected", report::standing_error(&rejected(), NARROW).unwrap());
    insta::assert_snapshot!("report_narrow", report::full(&rejected(), &record(State::Rejected), NARROW, &again()));
    insta::assert_snapshot!("report_piped", report::full(&published(), &record(State::Published), PIPED, &again()));
}

fn summary(m: &RunManifest, layout: Layout) -> String {
    report::summary(m, &ThisRun { rows_read: 20_100_000 }, layout, &again())
}

pub fn record(state: State) -> JobRecord {
    JobRecord {
        job: JobId("iot-sensor-3f9a1c5be07d".into()),
        generation: 1,
        table: "iot.sensor".into(),
        table_uuid: "u".into(),
        request_hash: "h".into(),
        request: serde_json::from_value(json!({"table": "iot.sensor", "rows": {
            "from": ["export/", "late.parquet"], "map": ["ts=time", "quality="], "tz": "Europe/Berlin", "on_source_conflict": "first"}}))
        .unwrap(),
        opened_by: None,
        as_of: time("2026-12-01"),
        window: days("2024-01-01", "2024-07-01"),
        state,
        error: Some(lossy()),
        created: time("2026-12-01T09:00Z"),
        updated: time("2026-12-01T09:04Z"),
        version: 0,
    }
}

#[test]
fn a_report_never_sends_to_itself_and_says_why_a_job_stands() {
    let text = report::full(&published(), &record(State::Published), PIPED, &again());
    assert!(!text.contains("next:"), "{text}");
    let text = report::full(&rejected(), &record(State::Rejected), PIPED, &again());
    assert!(text.contains("error[lossy_conversion]") && text.contains("hint: "), "{text}");
    assert!(text.contains("timelake backfill iot.sensor --from export/ late.parquet --map ts=time,quality= --tz Europe/Berlin"), "{text}");
}

#[test]
fn of_many_warnings_a_summary_shows_a_few() {
    let mut m = published();
    m.warnings = (0..9).map(|i| format!("column c{i} is in no file")).collect();
    let text = summary(&m, NARROW);
    assert!(text.contains("c4 is in") && !text.contains("c5 is in") && text.contains("and 4 more warnings"), "{text}");
    let text = report::full(&m, &record(State::Published), NARROW, &again());
    assert!(text.contains("c8 is in"), "{text}");
}

#[test]
fn a_rate_is_that_of_this_run() {
    let of = |rows_read| report::summary(&published(), &ThisRun { rows_read }, PIPED, &again());
    assert!(of(3_851_000).contains("3.9 s, 1.00 M rows/s"), "{}", of(3_851_000));
    assert!(!of(0).contains("rows/s"));
}

#[test]
fn what_to_do_next_fits_the_state() {
    let lake = Again { lake: " --lake 'my lake'".into() };
    let next = |state, error: Option<Error>| {
        let mut m = published();
        (m.state, m.error) = (state, error);
        let text = report::summary(&m, &ThisRun::default(), PIPED, &lake);
        text.split_once("  next: ").unwrap().1.trim_end().to_string()
    };
    assert_eq!(next(State::Staged, None), "timelake backfill publish iot-sensor-3f9a1c5be07d --lake 'my lake'");
    assert!(next(State::Hold, None).contains("timelake backfill resume iot-sensor-3f9a1c5be07d --lake 'my lake'"));
    assert!(next(State::Hold, None).contains("timelake backfill cancel"));
    for reason in [Reason::TableChanged, Reason::MainSetBack, Reason::SourceChanged] {
        let text = next(State::Hold, Some(Error::conflict(reason, "").hint("cancel the job and run its command again")));
        assert!(text.starts_with("timelake backfill cancel") && !text.contains("resume") && text.contains("command again"), "{text}");
    }
    assert!(next(State::Hold, Some(Error::conflict(Reason::CommitConflict, ""))).contains("resume"));
    for state in [State::Cancelled, State::Rejected] {
        assert!(next(state, None).contains("files it may have written stay where they are"), "{state}");
    }
    assert!(next(State::Published, None).contains("backfill report"));
    for state in State::ALL {
        assert!(!next(*state, None).is_empty(), "{state}");
    }
}

#[test]
fn a_rejected_job_says_when_not_all_rows_were_counted() {
    let mut m = rejected();
    let note = "Of the 20,100,000 source rows only those are counted that ended before the job was rejected.";
    assert!(!summary(&m, PIPED).contains(note));
    m.counts = serde_json::from_value(json!({"rows_read": 4, "rejected": 4})).unwrap();
    assert!(summary(&m, PIPED).contains(note), "{}", summary(&m, PIPED));
}

#[test]
fn the_rows_add_up_or_say_that_they_do_not() {
    let numbers = |text: &str| -> Vec<u64> {
        let lines = text.lines().skip_while(|line| line.trim() != "rows").skip(1).take_while(|line| line.starts_with("    "));
        lines
            .filter_map(|line| {
                line.split("  ").map(str::trim).filter(|word| !word.is_empty()).nth(1).map(|n| n.replace(',', ""))?.parse().ok()
            })
            .collect()
    };
    let found = numbers(&summary(&published(), PIPED));
    assert_eq!(found.len(), 8, "{found:?}");
    assert_eq!(found[..7].iter().sum::<u64>(), found[7]);
    let mut m = published();
    m.counts.rows_read += 1;
    assert!(summary(&m, PIPED).contains("do not agree: the lines add up to 20,100,000"));
    assert!(!summary(&published(), PIPED).contains("do not agree"));
    m.counts.skipped_chunk = 1;
    let found = numbers(&summary(&m, PIPED));
    assert_eq!((found.len(), found[..8].iter().sum::<u64>()), (9, found[8]));
}

#[test]
fn exit_codes_follow_the_state_and_the_error() {
    let code = |state, error: Option<Error>| {
        let mut m = published();
        (m.state, m.error) = (state, error);
        report::exit_code(&m)
    };
    assert_eq!(code(State::Published, None), 0);
    assert_eq!(code(State::Staged, None), 0);
    assert_eq!(code(State::Hold, None), 4);
    assert_eq!(code(State::Rejected, None), 4);
    assert_eq!(code(State::Rejected, Some(lossy())), 3);
    assert_eq!(code(State::Hold, Some(Error::unavailable(Reason::DiskFull, ""))), 5);
}

fn settings(json: bool) -> Settings {
    let words = ["timelake", "--quiet", "backfill", "list"].into_iter().chain(json.then_some("--json"));
    let mut settings = Settings::new(&Cli::parse_from(words).output);
    (settings.stdout, settings.stderr) = (PIPED, PIPED);
    settings
}

#[test]
fn with_json_stdout_is_one_object_and_stderr_is_silent() {
    let answer = settings(true).manifest(&rejected(), &ThisRun::default());
    assert_eq!(answer.stderr, "");
    assert_eq!(answer.exit_code, 3);
    assert_eq!(serde_json::from_str::<RunManifest>(&answer.stdout).unwrap(), rejected());
    let failed = settings(true).failed(&lossy());
    assert_eq!((failed.stderr.as_str(), failed.exit_code), ("", 3));
    let value: serde_json::Value = serde_json::from_str(&failed.stdout).unwrap();
    assert_eq!(value["error"]["reason"], "lossy_conversion");
    let verdict = settings(true).verdict(&Verdict::Rejected { findings: vec![Error::conflict(Reason::CountsDisagree, "no")] });
    assert_eq!((verdict.exit_code, verdict.stderr.as_str()), (4, ""));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&verdict.stdout).unwrap()["verdict"], "rejected");
}

#[test]
fn without_json_data_and_errors_have_their_own_streams() {
    let answer = settings(false).manifest(&rejected(), &ThisRun::default());
    assert!(answer.stdout.contains("REJECTED") && !answer.stdout.contains("error["));
    assert!(answer.stderr.starts_with("error[lossy_conversion]: ") && answer.stderr.contains("also: 2 rows null_in_key in column tag"));
    let failed = settings(false).failed(&lossy());
    assert!(failed.stdout.is_empty() && failed.stderr.contains("\nhint: "));
}

#[test]
fn a_cancel_that_came_too_late_is_a_conflict() {
    assert_eq!(settings(false).cancelled(&published()).exit_code, 4);
    let mut m = published();
    m.state = State::Cancelled;
    assert_eq!(settings(false).cancelled(&m).exit_code, 0);
}

pub fn time(text: &str) -> TimestampUs {
    TimestampUs::parse_bound(text, "", false).unwrap()
}
pub fn days(start: &str, end: &str) -> Window {
    Window { start: Some(time(start)), end: Some(time(end)) }
}

#[test]
fn lists() {
    let job = |job: &str, table: &str, state, window, units_done, rows_written| JobSummary {
        job: JobId(job.into()),
        generation: 1,
        table: table.into(),
        state,
        window,
        units: 24,
        units_done,
        rows_written,
        created: time("2026-12-01T09:00Z"),
        updated: time("2026-12-01T09:04:12Z"),
    };
    let jobs = [
        job("iot-sensor-3f9a1c5be07d", "iot.sensor", State::Published, days("2024-01-01", "2024-07-01"), 24, 19_989_412),
        job(
            "plant-west-measurements-00ab12cd34ef",
            "plant_west.measurements",
            State::Hold,
            days("2023-01-01T06:00Z", "2024-01-01"),
            3,
            1_200,
        ),
        job("iot-power-9d", "iot.power", State::RolledBack, Window::ALL, 0, 0),
    ];
    insta::assert_snapshot!("list_piped", job_text::list(&jobs, PIPED));
    insta::assert_snapshot!("list_120", job_text::list(&jobs, Layout { width: Some(120), color: false }));
    insta::assert_snapshot!("list_80", job_text::list(&jobs, NARROW));
    for line in job_text::list(&jobs, NARROW).lines() {
        assert!(line.len() <= 80, "{line}");
    }
    insta::assert_snapshot!("list_80_usual", job_text::list(&jobs[..1], NARROW));
    assert_eq!(job_text::list(&[], NARROW), "no jobs\n");
}

#[test]
fn status_by_group_and_unit() {
    let job = JobId("iot-sensor-3f9a1c5be07d".into());
    let mut group = GroupRecord::new(job, 1, GroupName::all(), 1);
    (group.state, group.round, group.error) = (State::Hold, 2, Some(lossy()));
    let unit = |unit, state, rows, error: Option<Error>| UnitStatus {
        group: "all".into(),
        unit,
        round: 2,
        state,
        window: days("2024-01-01", "2024-02-01"),
        estimated_rows: 1_000_000,
        rows,
        bytes: rows * 7,
        attempts: 1,
        error,
    };
    let mut status = JobStatus {
        job: record(State::Hold),
        groups: vec![group],
        units: vec![
            unit(0, UnitState::Done, 998_412, None),
            unit(1, UnitState::Failed, 0, Some(lossy())),
            unit(2, UnitState::Pending, 0, None),
        ],
        next: "mend the source, then timelake backfill resume iot-sensor-3f9a1c5be07d".into(),
    };
    insta::assert_snapshot!("status_80", job_text::status(&status, NARROW, &again()));
    insta::assert_snapshot!("status_120", job_text::status(&status, Layout { width: Some(120), color: false }, &again()));
    let one = status.units[0].clone();
    status.units = (0..250).map(|i| UnitStatus { unit: i, ..one.clone() }).chain([status.units[1].clone()]).collect();
    let text = job_text::status(&status, NARROW, &again());
    assert!(text.contains("... and 151 more units") && text.contains("FAILED"), "{text}");
}

#[test]
fn tables_and_verdicts() {
    let column = |id, name: &str, column_type, required| Column { id, name: name.into(), column_type, required };
    let sort =
        |column: &str, direction: &str| SortColumn { column: column.into(), transform: "identity".into(), direction: direction.into() };
    let mut info = TableInfo {
        name: "iot.sensor".into(),
        uuid: "0b0f4b7e-6f0a-4b6e-9d2b-3a7d0c1e2f34".into(),
        location: "file:///data/lake/warehouse/iot/sensor".into(),
        metadata_location: Some("file:///data/lake/warehouse/iot/sensor/metadata/00001-5b0e.metadata.json".into()),
        format_version: 2,
        columns: vec![
            column(1, "ts", ColumnType::Timestamptz, true),
            column(2, "device_id", ColumnType::String, true),
            column(3, "value", ColumnType::Decimal { precision: 12, scale: 3 }, false),
        ],
        partition: serde_json::from_value(json!([
            {"column": "ts", "transform": "day", "name": "ts_day"}, {"column": "device_id", "transform": "bucket[16]", "name": "device_id_bucket"}
        ]))
        .unwrap(),
        sort: vec![sort("device_id", "asc"), sort("ts", "desc")],
        contract: timelake_model::TableContract::from_properties(
            &[("timelake.time-column".to_string(), "ts".to_string()), ("timelake.series-key".to_string(), "device_id".to_string())].into(),
        )
        .unwrap(),
        snapshot: Some(SnapshotInfo { id: 873462387463287, operation: "append".into(), at: time("2026-12-01T09:04Z") }),
        rows: Some(19_989_412),
        files: Some(24),
        bytes: Some(141_002_003),
        refs: vec![RefInfo { name: "main".into(), kind: "branch".into(), snapshot: 873462387463287 }],
        locks: [("iot-sensor-3f9a".to_string(), json!({"gen": 1}))].into(),
        notes: vec!["the table has no rows of 2023".into()],
    };
    insta::assert_snapshot!("table_show", table_text::table(&info, NARROW));
    let tables = [
        TableSummary {
            name: info.name.clone(),
            rows: info.rows,
            files: info.files,
            bytes: info.bytes,
            contract: true,
            snapshot_at: Some(time("2026-12-01T09:04Z")),
            error: None,
        },
        TableSummary { name: "iot.bare".into(), ..TableSummary::default() },
        TableSummary {
            name: "iot.broken".into(),
            error: Some(Error::corrupt(Reason::CatalogDamaged, "no metadata")),
            ..TableSummary::default()
        },
    ];
    insta::assert_snapshot!("table_list", table_text::list(&tables, NARROW));
    assert_eq!(table_text::list(&[], NARROW), "no tables\n");
    insta::assert_snapshot!("table_contract", table_text::contract(&info, NARROW));
    info.contract = None;
    assert!(table_text::contract(&info, NARROW).contains("timelake table contract iot.sensor"));
    let approved = Verdict::Approved { checks: vec![Check { name: "order".into(), detail: "24 files are sorted".into() }] };
    insta::assert_snapshot!("verdict_approved", job_text::verdict(&approved, NARROW));
}

#[test]
fn nothing_is_wider_than_the_terminal() {
    for text in [
        summary(&published(), NARROW),
        summary(&rejected(), NARROW),
        report::nothing_to_do(&published(), time("2026-12-01T09:04:12Z"), NARROW),
        report::full(&rejected(), &record(State::Rejected), NARROW, &again()),
        report::standing_error(&rejected(), NARROW).unwrap(),
    ] {
        for line in text.lines() {
            assert!(console::measure_text_width(line) <= 80, "{line}");
        }
    }
}

#[test]
fn color_changes_no_width() {
    let colored = report::full(&published(), &record(State::Published), Layout { width: Some(80), color: true }, &again());
    assert_eq!(console::strip_ansi_codes(&colored), report::full(&published(), &record(State::Published), NARROW, &again()));
    assert!(colored.contains("\x1b[32mPUBLISHED\x1b[0m"));
}

/// The page users look reasons up in.
#[test]
fn every_reason_has_its_line_in_the_docs() {
    let page = include_str!("../../docs/reasons.md");
    let mut words: Vec<&str> = Vec::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{line}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{line}");
        for kind in cells[1].split(", ") {
            serde_json::from_value::<timelake_model::Kind>(json!(kind)).unwrap_or_else(|_| panic!("{line}"));
        }
        words.push(cells[0].trim_matches('`'));
    }
    let known: Vec<String> = Reason::ALL.iter().map(Reason::to_string).collect();
    for word in &known {
        assert_eq!(words.iter().filter(|w| *w == word).count(), 1, "{word} must stand in docs/reasons.md once");
    }
    for word in words {
        assert!(known.iter().any(|k| k == word), "docs/reasons.md has the unknown reason {word}");
    }
}
