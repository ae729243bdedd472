//! A live writer (PyIceberg) appends to `main` every 200 ms, in the job's own window, through whole jobs.

use crate::minutes::{Minutes, assert_loaded};
use crate::sensors::*;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use timelake_tests::{Lab, split_words, workspace};

struct LiveWriter {
    child: Child,
    /// Its lines so far.
    lines: Arc<Mutex<Vec<Value>>>,
    reading: Option<JoinHandle<()>>,
}

/// What it did: when each of its commits was through (seconds since 1970), and how often it was refused.
struct Written {
    commits: Vec<f64>,
    conflicts: u64,
    staged_snapshot_errors: u64,
}

impl LiveWriter {
    fn start(lab: &Lab, first_day: usize, days: usize) -> LiveWriter {
        let python = std::env::var_os("TIMELAKE_PYTHON").map_or_else(|| workspace().join(".venv/bin/python"), Into::into);
        let mut child = Command::new(python)
            .arg(workspace().join("tests/python/live_writer.py"))
            .arg(lab.lake())
            .args(["iot.sensor", &first_day.to_string(), &days.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the live writer");
        let out = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        let lines: Arc<Mutex<Vec<Value>>> = Arc::default();
        let written = lines.clone();
        let reading = std::thread::spawn(move || {
            for line in out {
                let line = serde_json::from_str(&line.expect("a line")).expect("JSON");
                written.lock().expect("its lines").push(line);
            }
        });
        LiveWriter { child, lines, reading: Some(reading) }
    }

    fn commits(&self) -> usize {
        self.lines.lock().expect("its lines").len()
    }

    /// Waits until it has made some commits more than now.
    fn wait_for_more(&self, commits: usize) {
        let (start, wanted) = (Instant::now(), self.commits() + commits);
        while self.commits() < wanted {
            assert!(start.elapsed() < Duration::from_secs(100), "the live writer makes no progress");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Lets it end its last commit.
    fn stop(mut self) -> Written {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("its end").success(), "the live writer failed");
        self.reading.take().expect("its reader").join().expect("its lines");
        let lines = self.lines.lock().expect("its lines").clone();
        let (totals, commits) = lines.split_last().expect("its totals");
        let total = |name: &str| totals["totals"][name].as_u64().expect("a count");
        assert_eq!(total("commits"), commits.len() as u64);
        Written {
            commits: commits.iter().map(|c| c["at"].as_f64().expect("a time")).collect(),
            conflicts: total("conflicts"),
            staged_snapshot_errors: total("staged_snapshot_errors"),
        }
    }
}
impl Drop for LiveWriter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The job lasts as long as the writer needs for its commits: half way through the units, and between staging and
/// publishing.
const HELD_AT: [(&str, usize); 2] = [("unit-ended", 52), ("group-staged", 7)];

#[test]
fn a_live_writer_through_whole_jobs() {
    let lab = Lab::new();
    lab.create_sensor_table("--partition day(ts)");
    let jobs = [Minutes { first_day: 1, days: 4, devices: 140 }, Minutes { first_day: 5, days: 4, devices: 140 }];
    for (i, source) in jobs.iter().enumerate() {
        source.write(&lab, &format!("in-{i}"));
    }
    let writer = LiveWriter::start(&lab, 1, 8);
    let mut kept = 0;
    for i in 0..jobs.len() {
        let words = split_words(&format!("backfill iot.sensor --from in-{i} --threads 1 --memory 40MB --json"));
        let held: String = HELD_AT.iter().map(|(boundary, _)| format!(",wait:{boundary}:go-{i}-{boundary}")).collect();
        let running = lab.start_failing(&words, &format!("trace:trace-{i}{held}"));
        for (boundary, commits) in HELD_AT {
            lab.wait_for_boundary(&format!("trace-{i}"), boundary);
            writer.wait_for_more(commits);
            std::fs::write(lab.path(&format!("go-{i}-{boundary}")), "").unwrap();
        }
        let manifest = running.wait().manifest();
        assert_eq!(manifest["state"], json!("PUBLISHED"), "{manifest}");
        kept += manifest["kept_existing"].as_u64().unwrap();
    }
    let written = writer.stop();
    let mut staged = 0;
    for i in 0..jobs.len() {
        let trace = lab.trace(&format!("trace-{i}"));
        let at = |name: &str| trace.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{name} was not reached")).1;
        let between = |from: i64, to: i64| written.commits.iter().filter(|c| (from..to).contains(&((**c * 1e6) as i64))).count();
        let whole = between(trace.first().unwrap().1, trace.last().unwrap().1);
        let waiting = between(at("stage-committed"), at("publish-committed"));
        assert!(whole >= 50, "only {whole} commits overlap job {i}");
        assert!(waiting >= 5, "only {waiting} commits between stage and publish of job {i}");
        staged += trace.iter().filter(|(name, _)| name == "stage-committed").count() as u64;
        println!("job {i}: {whole} commits beside it, {waiting} between stage and publish");
    }
    println!(
        "{} commits, {} conflicts, {} refused because of a staged snapshot ({staged} stage commits)",
        written.commits.len(),
        written.conflicts,
        written.staged_snapshot_errors
    );
    assert!(written.staged_snapshot_errors <= staged);
    assert_eq!(kept, 0);
    let live: Vec<f64> = (0..written.commits.len()).map(|number| number as f64).collect();
    assert_loaded(&lab, &jobs, &live, jobs.len());
    assert_eq!(locks(&lab.inspect()), Vec::<String>::new());
}
