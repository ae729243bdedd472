//! `report --html`: the page of a real job, read by a parser, says what the manifest and the table say.

use crate::sensors::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use timelake_tests::Lab;

const CLASSES: [(&str, &str); 7] = [
    ("written", "rows_written"),
    ("kept existing", "kept_existing"),
    ("duplicates collapsed", "duplicates_collapsed"),
    ("conflicts in the source", "in_source_conflicts"),
    ("rejected", "rejected"),
    ("outside range", "outside_range"),
    ("outside retention", "outside_retention"),
];

fn page(lab: &Lab, job: &str) -> Value {
    lab.timelake(&["backfill", "report", job, "--html", "page.html"]).success();
    lab.reader(json!({"command": "page", "path": lab.path("page.html")}))
}

fn figure(cell: &Value) -> u64 {
    cell.as_str().unwrap().replace(',', "").parse().unwrap_or_else(|_| panic!("{cell} is no figure"))
}

fn table<'a>(page: &'a Value, section: &str) -> &'a Vec<Value> {
    page["sections"][section]["tables"][0].as_array().unwrap_or_else(|| panic!("no table in {section} of {page}"))
}

#[track_caller]
fn assert_rows_of(page: &Value, manifest: &Value) {
    let lines: BTreeMap<&str, u64> = table(page, "rows").iter().map(|row| (row[0].as_str().unwrap(), figure(&row[1]))).collect();
    for (name, count) in CLASSES {
        assert_eq!(json!(lines[name]), manifest[count], "{name}");
    }
    assert_eq!(json!(lines["read"]), manifest["rows_read"]);
}

#[track_caller]
fn assert_loads_nothing(page: &Value) {
    for attribute in page["attributes"].as_array().unwrap() {
        assert!(!attribute.as_str().unwrap().contains("//"), "{attribute}");
    }
    for tag in ["script", "img", "iframe", "object", "a", "use", "link"] {
        assert!(!page["tags"].as_array().unwrap().contains(&json!(tag)), "{tag}");
    }
}

/// Rows per day as DuckDB counts them.
fn days(lab: &Lab) -> BTreeMap<String, u64> {
    let mut days = BTreeMap::new();
    for row in lab.rows("duckdb") {
        *days.entry(row["ts"].as_str().unwrap()[..10].to_string()).or_default() += 1;
    }
    days
}

#[test]
fn a_page_says_what_the_manifest_and_the_table_say() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let devices: Vec<String> = (0..8).map(|i| format!("<i>plant&{i}\"'</i>")).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    write_readings(&lab, "first.parquet", &readings(3..=5, &devices[..4]));
    lab.backfill("--from first.parquet");
    let before = days(&lab);

    // Half of day 4 and 5 exist; one device has far more rows, one far fewer, one comes twice.
    let mut rows = readings(4..=9, &devices[..6]);
    rows.extend(
        (0..1440).flat_map(|minute| (4..=9).map(move |day| (day, minute))).map(|(day, minute)| reading(day, minute, devices[6], 1.0)),
    );
    rows.extend((4..=9).map(|day| reading(day, 5, devices[7], 2.0)));
    rows.extend(readings(4..=9, &devices[5..6]).into_iter().map(|mut row| {
        row["value"] = json!(row["value"].as_f64().unwrap());
        row
    }));
    write_readings(&lab, "in/<b>&'\"export.parquet", &rows);
    let manifest = lab.backfill("--from in --on-source-conflict first --end 2024-05-09T12:00Z");
    let after = days(&lab);
    let job = job_of(&manifest);
    let page = page(&lab, &job);
    assert_eq!(page["title"], json!(job));
    assert_loads_nothing(&page);
    assert_rows_of(&page, &manifest);
    assert!(manifest["kept_existing"].as_u64() > Some(0) && manifest["outside_range"].as_u64() > Some(0), "{manifest}");

    // Rows per chunk: page, manifest and table agree.
    let chunks = manifest["chunks"].as_array().unwrap();
    assert_eq!(chunks.iter().map(|c| c["written"].as_u64().unwrap()).sum::<u64>(), manifest["rows_written"].as_u64().unwrap());
    assert_eq!(chunks.len(), 6, "{chunks:?}");
    for (chunk, row) in chunks.iter().zip(table(&page, "chunks")) {
        let day = chunk["chunk"].as_str().unwrap();
        let (existing, written) = (chunk["existing"].as_u64().unwrap(), chunk["written"].as_u64().unwrap());
        assert_eq!((existing, existing + written), (before.get(day).copied().unwrap_or(0), after[day]), "{day}");
        assert_eq!([&row[0], &json!(figure(&row[1])), &json!(figure(&row[2]))], [&json!(day), &json!(existing), &json!(written)]);
        assert_eq!(figure(&row[3]), after[day]);
    }

    let told: Vec<(&str, &str)> = table(&page, "series").iter().map(|row| (row[0].as_str().unwrap(), row[1].as_str().unwrap())).collect();
    assert!(told.contains(&(devices[6], "far more rows")) && told.contains(&(devices[7], "far fewer rows")), "{told:?}");
    let steps: Vec<&str> = table(&page, "time").iter().map(|row| row[0].as_str().unwrap()).collect();
    assert_eq!(steps, ["inventory", "plan", "write", "stage", "validate", "publish"]);
    for (section, drawings) in [("rows", 1), ("chunks", 1), ("time", 7)] {
        assert_eq!(page["sections"][section]["drawings"].as_array().unwrap().len(), drawings, "{section}");
    }
    // The same page, whole, and nothing beside it.
    let printed = lab.timelake(&["backfill", "report", &job, "--html", "-"]).success().stdout;
    assert_eq!(printed, std::fs::read_to_string(lab.path("page.html")).unwrap());
    let error = lab.timelake(&["backfill", "report", &job, "--html", "-", "--json"]).error(2);
    assert_eq!(error["option"], json!("--html"));
    let names: Vec<_> = std::fs::read_dir(lab.folder()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!names.iter().any(|name| name.contains("tmp")), "{names:?}");
}

#[test]
fn each_run_of_a_job_has_its_times() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition month(ts)");
    write_readings(&lab, "in.parquet", &readings(1..=9, &["a", "b"]));
    let staged = lab.backfill("--from in.parquet --stage-only");
    let first = page(&lab, &job_of(&staged));
    assert!(first["sections"]["chunks"]["text"].as_str().unwrap().contains("not published"), "{first}");
    lab.job("publish", &job_of(&staged)).success();
    let both = page(&lab, &job_of(&staged));
    let text = both["sections"]["time"]["text"].as_str().unwrap();
    assert!(text.contains("STAGED") && text.contains("PUBLISHED"), "{text}");
    assert_eq!(both["sections"]["time"]["tables"].as_array().unwrap().len(), 2);
    // A run that finds nothing to do is none.
    lab.backfill("--from in.parquet --stage-only");
    assert_eq!(page(&lab, &job_of(&staged))["sections"]["time"], both["sections"]["time"]);
}

#[test]
fn a_rejected_job_has_a_page_too() {
    let lab = Lab::new();
    lab.create_sensor_table("");
    let hostile = "</code></section><script>1</script>";
    std::fs::write(lab.path("in.csv"), format!("ts,device_id,value\n2024-05-01T00:00Z,a,1\n2024-05-01T00:01Z,a,{hostile}\n")).unwrap();
    let manifest = lab.backfill_outcome("--from in.csv").json();
    assert_eq!(manifest["state"], json!("REJECTED"), "{manifest}");
    let page = page(&lab, &job_of(&manifest));
    assert_loads_nothing(&page);
    assert_rows_of(&page, &manifest);
    let bad = &table(&page, "bad-rows")[0];
    assert_eq!((&bad[0], &bad[1], &bad[2], &bad[3]), (&json!("bad_number"), &json!("value"), &json!("1"), &json!("stops the job")));
    assert!(bad[4].as_str().unwrap().contains(hostile), "{bad}");
}
