//! Killed at random moments, again and again: the same command ends as if nothing had been.

use crate::minutes::{Minutes, assert_loaded};
use crate::model::Random;
use crate::sensors::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use timelake_tests::{Lab, split_words};

const KILLS: usize = 60;
/// An undisturbed run takes at least this long.
const RUN: Duration = Duration::from_secs(10);
/// How long a process lives at most, one of these. Mostly short beside the run, so that a job is killed many times; some
/// long enough to come past what was done before.
const LIVES_MS: [u64; 3] = [500, 2_000, 6_000];
/// No step is over at once, so that moments fall into all of them.
const SLOW: &str = "delay:all:180,delay:files-written:1500,delay:unit-ended:1000";

#[test]
fn sixty_kills_at_random_moments() {
    let seed = seed();
    println!("seed {seed} (TEST_SEED={seed} repeats the moments)");
    let mut random = Random(seed);
    let source = Minutes { first_day: 1, days: 6, devices: 140 };
    let load = split_words("backfill iot.sensor --from in --threads 2 --memory 80MB --json");
    let new = || {
        let lab = Lab::new();
        lab.create_sensor_table("--partition day(ts)");
        source.write(&lab, "in");
        lab
    };

    let lab = new();
    let start = Instant::now();
    let undisturbed = lab.start_failing(&load, SLOW).wait().manifest();
    assert!(start.elapsed() >= RUN, "the undisturbed run took only {:?}", start.elapsed());

    let (mut kills, mut jobs) = (0, 0);
    let mut last_steps: BTreeMap<String, u32> = BTreeMap::new();
    while kills < KILLS {
        let lab = new();
        jobs += 1;
        loop {
            let before = lab.trace("trace").len();
            let mut running = lab.start_failing(&load, &format!("{SLOW},trace:trace"));
            if kills < KILLS {
                let longest = *random.pick(&LIVES_MS);
                let life = Duration::from_millis(random.below(longest));
                let start = Instant::now();
                while start.elapsed() < life && running.is_running() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                if running.kill().code.is_none() {
                    kills += 1;
                    let step = lab.trace("trace").split_off(before).pop().map_or("the start".into(), |(name, _)| name);
                    *last_steps.entry(step).or_default() += 1;
                    continue;
                }
            } else {
                running.wait().success();
            }
            break;
        }
        // However it came to its end, this command finds it there.
        let again = lab.timelake(&load).manifest();
        assert_eq!(again["already_published"], json!(true), "seed {seed}: {again}");
        let manifest = lab.job("report", &job_of(&again)).manifest();
        for field in ["rows_read", "rows_written", "duplicates_collapsed", "key_hash", "column_sums", "time_range", "state"] {
            assert_eq!(manifest[field], undisturbed[field], "seed {seed}: {field} in {manifest}");
        }
        assert_loaded(&lab, &[source], &[], 1);
    }
    println!("{kills} kills over {jobs} jobs; after {last_steps:?}");
}

/// Another one each time, unless `TEST_SEED` asks for one.
fn seed() -> u64 {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    std::env::var("TEST_SEED").ok().map_or(now, |text| text.parse().expect("TEST_SEED is a number"))
}
