//! Pages of made-up jobs: whole, safe and true to the manifest. Pages of real jobs are read by an XML parser in the tests
//! of the pipeline.

use super::*;
use crate::tests::{again, days, published, record, rejected, time};
use serde_json::json;
use timelake_model::timeline::StepSpan;
use timelake_model::{Error, Reason};

const HOSTILE: &str = "<img src=x onerror='a()'>\"&\u{202e}\u{7}";

fn timeline() -> Timeline {
    let span = |step: &str, start_seconds, seconds, rows, samples| StepSpan { step: step.into(), start_seconds, seconds, rows, samples };
    let spans = vec![
        span("inventory", 0.0, 0.04, 0, vec![]),
        span("write", 0.05, 3.4, 20_100_000, vec![(1.0, 4_000_000), (2.0, 12_000_000), (3.45, 20_100_000)]),
        span("publish", 3.5, 0.02, 0, vec![]),
    ];
    Timeline {
        runs: vec![RunTimeline { started: time("2026-12-01T09:00Z"), generation: 1, seconds: 3.6, outcome: "PUBLISHED".into(), spans }],
    }
}

fn with_spread(mut m: RunManifest) -> RunManifest {
    m.plan.period = Some(timelake_model::time::Period::Month);
    let chunk = |name: &str, existing, written| json!({"chunk": name, "start": time(&format!("{name}-01")), "existing": existing, "written": written});
    m.chunks = serde_json::from_value(json!([chunk("2024-01", 10_000, 9_989_412), chunk("2024-03", 0, 10_000_000)])).unwrap();
    m.series_outliers =
        serde_json::from_value(json!([{"kind": "more_rows", "series": ["plant", "dev1"], "rows": 40_000, "rows_written": 39_000,
        "window": days("2024-01-01", "2024-02-01"), "median_rows": 1_000, "units": 3}]))
        .unwrap();
    m
}

fn page_of(m: &RunManifest, state: State) -> String {
    report(m, &record(state), &timeline(), &again())
}

/// Every element is closed where it was opened; the head's own elements have no end.
#[track_caller]
fn assert_whole(page: &str) {
    let body = page.split_once("<body>").unwrap().1;
    let mut open = vec!["body"];
    for piece in body.split('<').skip(1) {
        let tag = piece.split_once('>').expect("a tag ends").0;
        match tag.strip_prefix('/') {
            Some("html") => {}
            Some(name) => assert_eq!(open.pop(), Some(name), "{piece}"),
            None => open.push(tag.split(' ').next().unwrap()),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn a_page_has_what_there_is_and_loads_nothing() {
    let page = page_of(&with_spread(published()), State::Published);
    assert_whole(&page);
    for part in ["19,989,412", "20,100,000", "id=\"chunks\"", "2024-02", "id=\"time\"", "id=\"warnings\"", "plant, dev1", "conservation"] {
        assert!(page.contains(part), "{part}");
    }
    for part in ["http:", "https:", "//", "<script", "url(", "@import", "callout"] {
        let style_aside = page.split("<style>").next().unwrap().to_string() + page.split("</style>").nth(1).unwrap();
        let looked_at = if part == "callout" { &style_aside } else { &page };
        assert!(!looked_at.contains(part), "{part}");
    }
    assert_eq!(page, page_of(&with_spread(published()), State::Published), "the same record gives the same page");
}

#[test]
fn a_page_of_little_leaves_out_what_there_is_not() {
    let mut m = published();
    (m.warnings, m.steps, m.checks, m.column_sums) = Default::default();
    let page = report(&m, &record(State::Published), &Timeline::default(), &again());
    assert_whole(&page);
    for id in ["chunks", "time", "warnings", "bad-rows", "series"] {
        assert!(!page.contains(&format!("id=\"{id}\"")), "{id}");
    }
    m.counts = Default::default();
    assert!(page_of(&m, State::Published).contains("No rows were read."));
}

#[test]
fn a_job_that_stands_still_says_why_and_what_to_do() {
    let page = page_of(&rejected(), State::Rejected);
    assert_whole(&page);
    for part in
        ["lossy_conversion", "export/2024-01.parquet", "load it into a double column", "not published", "stops the job", "null_in_key"]
    {
        assert!(page.contains(part), "{part}");
    }
    let mut held = published();
    held.state = State::Hold;
    held.error = Some(Error::conflict(Reason::CommitConflict, "main moves all the time").hint("wait"));
    let page = page_of(&held, State::Hold);
    assert!(page.contains("backfill resume iot-sensor-3f9a1c5be07d") && page.contains("commit_conflict"), "{page}");
}

#[test]
fn what_comes_from_users_stays_text_everywhere() {
    let mut m = with_spread(rejected());
    m.table = HOSTILE.into();
    m.warnings = vec![HOSTILE.into()];
    m.files_missing_column = [(HOSTILE.to_string(), vec![HOSTILE.to_string()])].into();
    m.column_sums = [(HOSTILE.to_string(), HOSTILE.to_string())].into();
    m.counts.nulled = [(HOSTILE.to_string(), 1)].into();
    m.series_outliers[0].outlier.series = vec![HOSTILE.into()];
    m.checks[0].detail = HOSTILE.into();
    m.chunks[0].chunk = HOSTILE.into();
    let error = m.error.as_mut().unwrap();
    (error.message, error.hint) = (HOSTILE.into(), Some(HOSTILE.into()));
    (error.place.file, error.place.value) = (Some(HOSTILE.into()), Some(HOSTILE.into()));
    m.errors[0].places = vec![HOSTILE.into()];
    m.errors[0].first.place.column = Some(HOSTILE.into());
    let mut record = record(State::Rejected);
    record.request.rows.from = vec![HOSTILE.into()];
    record.request.table = HOSTILE.into();
    let mut times = timeline();
    (times.runs[0].outcome, times.runs[0].spans[0].step) = (HOSTILE.into(), HOSTILE.into());
    let page = report(&m, &record, &times, &Again { lake: format!(" --lake {HOSTILE}") });
    assert_whole(&page);
    assert!(!page.contains("<img") && !page.contains('\u{202e}') && !page.contains('\u{7}'));
    assert!(page.matches("&lt;img src=x onerror=").count() >= 15, "{}", page.matches("&lt;img").count());
}

#[test]
fn long_lists_are_cut_and_say_so() {
    let mut m = published();
    m.warnings = (0..250).map(|i| format!("warning number {i}.")).collect();
    let page = page_of(&m, State::Published);
    assert!(page.contains("number 99.") && !page.contains("number 100.") && page.contains("And 150 more"));
}
