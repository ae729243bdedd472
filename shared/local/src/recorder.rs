//! Keeps when a run's steps ran and how fast, for reports. Stands between the run and what shows its progress.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use timelake_engine::progress::{Progress, Step};
use timelake_model::timeline::{RunTimeline, StepSpan};
use timelake_model::{Result, TimestampUs, manifest::RunManifest};

/// Further steps of a run (many groups, many rounds) are not kept.
const MOST_SPANS: usize = 100;
/// When a step has as many, every second one goes and the next ones come half as often.
const MOST_SAMPLES: usize = 120;
const FIRST_INTERVAL: Duration = Duration::from_millis(20);

pub struct Recorder<'a> {
    shown: &'a dyn Progress,
    started: TimestampUs,
    generation: u32,
    start: Instant,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    spans: Vec<StepSpan>,
    running: Option<Running>,
}

struct Running {
    step: Step,
    began: Duration,
    rows: u64,
    samples: Vec<(f64, u64)>,
    interval: Duration,
    sampled: Duration,
}

impl Running {
    fn advance(&mut self, rows: u64, now: Duration) {
        self.rows += rows;
        if now.saturating_sub(self.sampled) < self.interval {
            return;
        }
        self.sampled = now;
        self.samples.push((now.as_secs_f64(), self.rows));
        if self.samples.len() >= MOST_SAMPLES {
            let mut i = 0;
            self.samples.retain(|_| {
                i += 1;
                i % 2 == 0
            });
            self.interval *= 2;
        }
    }

    fn ended(mut self, now: Duration) -> StepSpan {
        if self.rows > 0 {
            self.samples.push((now.as_secs_f64(), self.rows));
        }
        StepSpan {
            step: self.step.name().into(),
            start_seconds: self.began.as_secs_f64(),
            seconds: now.saturating_sub(self.began).as_secs_f64(),
            rows: self.rows,
            samples: self.samples,
        }
    }
}

impl<'a> Recorder<'a> {
    pub fn new(shown: &'a dyn Progress, started: TimestampUs, generation: u32) -> Self {
        Recorder { shown, started, generation, start: Instant::now(), kept: Mutex::default() }
    }

    /// What was kept of the run that ended like this.
    pub fn run(&self, ended: &Result<RunManifest>) -> RunTimeline {
        let now = self.start.elapsed();
        let mut kept = self.lock();
        kept.end(now);
        RunTimeline {
            started: self.started,
            generation: self.generation,
            seconds: now.as_secs_f64(),
            outcome: match ended {
                Ok(manifest) => manifest.state.to_string(),
                Err(e) => e.reason.to_string(),
            },
            spans: std::mem::take(&mut kept.spans),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Whoever panicked while holding it left a whole value behind.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn end(&mut self, now: Duration) {
        if let Some(running) = self.running.take()
            && self.spans.len() < MOST_SPANS
        {
            self.spans.push(running.ended(now));
        }
    }
}

impl Progress for Recorder<'_> {
    fn begin(&self, step: Step, rows: Option<u64>) {
        self.shown.begin(step, rows);
        let now = self.start.elapsed();
        let mut kept = self.lock();
        kept.end(now);
        kept.running = Some(Running { step, began: now, rows: 0, samples: vec![], interval: FIRST_INTERVAL, sampled: now });
    }
    fn advance(&self, step: Step, rows: u64) {
        self.shown.advance(step, rows);
        if let Some(running) = self.lock().running.as_mut().filter(|running| running.step == step) {
            running.advance(rows, self.start.elapsed());
        }
    }
    fn foresee(&self, step: Step, rows: u64) {
        self.shown.foresee(step, rows);
    }
    fn end(&self, step: Step) {
        self.shown.end(step);
        let mut kept = self.lock();
        if kept.running.as_ref().is_some_and(|running| running.step == step) {
            kept.end(self.start.elapsed());
        }
    }
    fn note(&self, text: &str) {
        self.shown.note(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timelake_engine::progress::Silent;
    use timelake_model::{Error, Reason};

    #[test]
    fn steps_follow_each_other_and_keep_what_they_went_through() {
        let recorder = Recorder::new(&Silent, TimestampUs(7), 2);
        recorder.begin(Step::Plan, None);
        recorder.end(Step::Plan);
        for rows in [10, 20] {
            recorder.begin(Step::Write, Some(30));
            recorder.advance(Step::Write, rows);
            recorder.advance(Step::Validate, 99); // not the one that runs
        }
        let run = recorder.run(&Err(Error::unavailable(Reason::Interrupted, "")));
        assert_eq!((run.started, run.generation, run.outcome.as_str()), (TimestampUs(7), 2, "interrupted"));
        let told: Vec<_> = run.spans.iter().map(|s| (s.step.as_str(), s.rows, s.samples.last().map(|s| s.1))).collect();
        assert_eq!(told, [("plan", 0, None), ("write", 10, Some(10)), ("write", 20, Some(20))]);
        assert!(run.spans.windows(2).all(|pair| pair[0].start_seconds + pair[0].seconds <= pair[1].start_seconds + 1e-9));
    }

    #[test]
    fn samples_are_few_however_long_a_step_takes() {
        let mut running = Running {
            step: Step::Write,
            began: Duration::ZERO,
            rows: 0,
            samples: vec![],
            interval: FIRST_INTERVAL,
            sampled: Duration::ZERO,
        };
        for second in 0..100_000 {
            running.advance(5, Duration::from_secs(second));
            assert!(running.samples.len() < MOST_SAMPLES);
        }
        let span = running.ended(Duration::from_secs(100_000));
        assert!(span.samples.len() > MOST_SAMPLES / 4, "{}", span.samples.len());
        assert_eq!((span.rows, span.samples.last()), (500_000, Some(&(100_000.0, 500_000))));
        assert!(span.samples.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
    }

    #[test]
    fn a_run_of_many_steps_keeps_the_first() {
        let recorder = Recorder::new(&Silent, TimestampUs(0), 1);
        for _ in 0..2 * MOST_SPANS {
            recorder.begin(Step::Stage, None);
            recorder.end(Step::Stage);
        }
        assert_eq!(recorder.run(&Err(Error::internal(""))).spans.len(), MOST_SPANS);
    }
}
