//! What a run shows while it works, always on stderr: a bar on a terminal, else a line every ten seconds, or nothing.

use crate::output::{counted, duration, number, rate};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use timelake_engine::progress::{Progress, Step};

pub const LINE_INTERVAL: Duration = Duration::from_secs(10);
const REDRAW_INTERVAL: Duration = Duration::from_millis(120);
/// Steps shorter than this leave no line behind.
const WORTH_A_LINE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Bar,
    Lines,
    Silent,
}

#[derive(Debug)]
struct Running {
    step: Step,
    rows_total: Option<u64>,
    started: Instant,
}

#[derive(Debug)]
struct Shared {
    running: Mutex<Option<Running>>,
    /// Rows gone through, by step.
    rows: [AtomicU64; Step::ALL.len()],
    /// Rows read from the source by this run, whatever the number of rounds.
    rows_read: AtomicU64,
    /// This run landed its source.
    landed: AtomicBool,
    /// A step that ends now is cut off: what it has gone through is not what is kept.
    stopping: AtomicBool,
}

#[derive(Debug)]
pub struct Console {
    style: Style,
    verbose: bool,
    shared: Arc<Shared>,
    bar: ProgressBar,
    /// Dropped with the console: ends the thread that prints lines.
    _alive: Option<mpsc::Sender<()>>,
}

impl Console {
    pub fn new(style: Style, verbose: bool) -> Console {
        let shared = Arc::new(Shared {
            running: Mutex::new(None),
            rows: Default::default(),
            rows_read: AtomicU64::new(0),
            landed: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        });
        let alive = (style == Style::Lines).then(|| {
            let (alive, ended) = mpsc::channel::<()>();
            let shared = shared.clone();
            std::thread::spawn(move || {
                while ended.recv_timeout(LINE_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                    if let Some(line) = shared.line() {
                        stderr_line(&line);
                    }
                }
            });
            alive
        });
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Console { style, verbose, shared, bar, _alive: alive }
    }

    /// Printed even when silent.
    pub fn urgent(&self, text: &str) {
        self.bar.suspend(|| stderr_line(text));
    }

    /// The run was asked to stop.
    pub fn stopping(&self, text: &str) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.urgent(text);
    }

    /// Rows of the source that this run went through.
    pub fn rows_read(&self) -> u64 {
        self.shared.rows_read.load(Ordering::Relaxed)
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    fn print(&self, text: &str) {
        if self.style != Style::Silent {
            self.urgent(text);
        }
    }
}

impl Progress for Console {
    fn begin(&self, step: Step, rows: Option<u64>) {
        self.shared.counter(step).store(0, Ordering::Relaxed);
        *self.shared.lock() = Some(Running { step, rows_total: rows, started: Instant::now() });
        if self.style == Style::Bar {
            // Nothing is drawn until all of it is that of the new step.
            self.bar.set_draw_target(ProgressDrawTarget::hidden());
            self.bar.set_style(bar_style(rows.is_some_and(|rows| rows > 0)));
            self.bar.set_message(step.name());
            self.bar.set_length(rows.unwrap_or(0));
            self.bar.reset();
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.enable_steady_tick(REDRAW_INTERVAL);
        }
    }

    fn advance(&self, step: Step, rows: u64) {
        self.shared.counter(step).fetch_add(rows, Ordering::Relaxed);
        // A landed source is read from the user's files once; runs are ours.
        self.shared.landed.fetch_or(step == Step::Land, Ordering::Relaxed);
        if step == Step::Land || (step == Step::Write && !self.shared.landed.load(Ordering::Relaxed)) {
            self.shared.rows_read.fetch_add(rows, Ordering::Relaxed);
        }
        if self.style == Style::Bar {
            self.bar.inc(rows);
        }
    }

    fn foresee(&self, step: Step, rows: u64) {
        if let Some(running) = self.shared.lock().as_mut().filter(|running| running.step == step) {
            let first = running.rows_total.replace(rows).is_none();
            if self.style == Style::Bar {
                if first {
                    self.bar.set_style(bar_style(true));
                }
                self.bar.set_length(rows);
            }
        }
    }

    fn end(&self, step: Step) {
        let ended = {
            let mut running = self.shared.lock();
            if running.as_ref().is_some_and(|running| running.step == step) { running.take() } else { None }
        };
        let Some(ended) = ended else { return };
        if self.style == Style::Bar {
            self.bar.disable_steady_tick();
            self.bar.finish_and_clear();
        }
        let elapsed = ended.started.elapsed();
        if self.verbose || (self.style == Style::Bar && elapsed >= WORTH_A_LINE) {
            let rows = match self.shared.stopping.load(Ordering::Relaxed) {
                true => 0,
                false => self.shared.counter(step).load(Ordering::Relaxed),
            };
            self.print(&ended_line(step, rows, elapsed));
        }
    }

    fn note(&self, text: &str) {
        self.print(&format!("note: {text}"));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        // Whoever panicked while holding it left a whole value behind.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn counter(&self, step: Step) -> &AtomicU64 {
        &self.rows[step as usize]
    }
    fn line(&self) -> Option<String> {
        let running = self.lock();
        let running = running.as_ref()?;
        let rows = self.counter(running.step).load(Ordering::Relaxed);
        Some(running_line(running.step, rows, running.rows_total, running.started.elapsed()))
    }
}

fn running_line(step: Step, rows: u64, rows_total: Option<u64>, elapsed: Duration) -> String {
    let (name, time, per_second) = (step.name(), duration(elapsed.as_secs_f64()), rate(rows_per_second(rows, elapsed)));
    match rows_total.filter(|total| *total > 0) {
        Some(total) => {
            let percent = rows.min(total) as f64 * 100.0 / total as f64;
            let left = time_left(rows, total, elapsed).map_or(String::new(), |left| format!(", ETA {left}"));
            format!("{name}: {} of {} rows ({percent:.0} %), {per_second}, {time}{left}", number(rows), number(total))
        }
        None if rows > 0 => format!("{name}: {}, {per_second}, {time}", counted(rows, "row")),
        None => format!("{name}: {time}"),
    }
}

/// Over the whole step: batches come in lumps, and a smoothed rate jumps with them.
fn rows_per_second(rows: u64, elapsed: Duration) -> f64 {
    rows as f64 / elapsed.as_secs_f64().max(0.001)
}

/// Whole seconds, never zero while something is left to do; `-` before the first batch, nothing after the last one:
/// a step that has gone through its rows still has files to close, and how long that takes is not known.
fn time_left(rows: u64, total: u64, elapsed: Duration) -> Option<String> {
    if rows == 0 {
        return Some("-".into());
    }
    if rows >= total {
        return None;
    }
    let seconds = (total.saturating_sub(rows) as f64 / rows_per_second(rows, elapsed)).round().max(1.0);
    Some(if seconds < 60.0 { format!("{seconds:.0} s") } else { duration(seconds) })
}

/// The figures right of the bar, always equally wide: a bar must not jump.
fn bar_figures(rows: u64, total: u64, elapsed: Duration) -> String {
    const RATE_CHARS: usize = "5.91 M rows/s".len();
    const TIME_CHARS: usize = "ETA 12 min 05 s".len();
    let time = match time_left(rows, total, elapsed) {
        Some(left) => format!("ETA {left}"),
        None => duration(elapsed.as_secs_f64()),
    };
    let percent = rows.min(total) * 100 / total.max(1);
    format!(
        "{percent:>3} %  {:>digits$} rows  {:>RATE_CHARS$}  {time:<TIME_CHARS$}",
        number(rows),
        rate(rows_per_second(rows, elapsed)),
        digits = number(total).len(),
    )
}

fn ended_line(step: Step, rows: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let rows = if rows > 0 { format!("  {} rows, {}", number(rows), rate(rows as f64 / seconds.max(0.001))) } else { String::new() };
    format!("{:<9} {:>11}{rows}", step.name(), duration(seconds))
}

fn bar_style(rows_are_known: bool) -> ProgressStyle {
    let template = if rows_are_known { "{msg:<9} {wide_bar} {figures}" } else { "{msg:<9} {spinner}  {time}{sofar}" };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style
        .progress_chars("##-")
        .tick_chars("|/-\\ ")
        .with_key("figures", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            write_or_leave(out, &bar_figures(state.pos(), state.len().unwrap_or(0), state.elapsed()));
        })
        .with_key("time", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            write_or_leave(out, &duration(state.elapsed().as_secs_f64()));
        })
        .with_key("sofar", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            if state.pos() > 0 {
                write_or_leave(out, &format!("  {}", counted(state.pos(), "row")));
            }
        })
}

/// The bar's buffer does not fail, and a bar is not worth an error.
fn write_or_leave(out: &mut dyn std::fmt::Write, text: &str) {
    let _ = out.write_str(text);
}

fn stderr_line(text: &str) {
    // Nobody reads a closed stderr.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Log lines go through the console too, or they would break the bar.
#[derive(Debug, Clone)]
pub struct LogWriter(pub Arc<Console>);

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // A log line that cannot be written ends nothing: the subscriber would complain on the same stderr, and panic.
        let _ = self.0.bar.suspend(|| std::io::stderr().lock().write_all(bytes));
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_how_far_how_fast_and_how_long() {
        let line = |rows, total| running_line(Step::Write, rows, total, Duration::from_secs(10));
        assert_eq!(line(5_000_000, Some(20_000_000)), "write: 5,000,000 of 20,000,000 rows (25 %), 500 k rows/s, 10.0 s, ETA 30 s");
        assert_eq!(line(0, Some(100)), "write: 0 of 100 rows (0 %), - rows/s, 10.0 s, ETA -");
        assert_eq!(line(150, Some(100)), "write: 150 of 100 rows (100 %), 15 rows/s, 10.0 s");
        assert_eq!(line(10, None), "write: 10 rows, 1 rows/s, 10.0 s");
        assert_eq!(line(0, None), "write: 10.0 s");
    }

    #[test]
    fn a_step_is_counted_from_its_begin_and_only_the_running_one_is_shown() {
        let console = Console::new(Style::Silent, false);
        assert_eq!(console.shared.line(), None);
        console.begin(Step::Write, Some(100));
        console.advance(Step::Write, 40);
        console.end(Step::Stage); // not the running one
        assert!(console.shared.line().unwrap().starts_with("write: 40 of 100 rows (40 %)"));
        console.end(Step::Write);
        assert_eq!(console.shared.line(), None);
        console.begin(Step::Write, None);
        assert!(console.shared.line().unwrap().starts_with("write: 0 ms") || console.shared.line().unwrap().starts_with("write: "));
        assert_eq!(console.shared.counter(Step::Write).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_figures_beside_the_bar_keep_their_width() {
        let total = 20_100_000;
        let at = |rows, seconds| bar_figures(rows, total, Duration::from_millis(seconds));
        let first = at(0, 0);
        for (rows, milliseconds) in
            [(1, 1), (999, 800), (1_000_000, 2_000), (9_999_999, 700_000), (20_100_000, 3_500), (20_100_001, 90_000)]
        {
            assert_eq!(at(rows, milliseconds).len(), first.len(), "{}", at(rows, milliseconds));
        }
        assert!(first.len() <= 80 - "inventory  ".len() - 10, "{first}: no room is left for a bar");
        assert!(at(20_100_000, 3_500).trim_end().ends_with("5.74 M rows/s  3.5 s"), "{}", at(20_100_000, 3_500));
    }

    #[test]
    fn rows_read_are_those_of_all_rounds() {
        let console = Console::new(Style::Silent, false);
        for rows in [40, 2] {
            console.begin(Step::Write, Some(100));
            console.advance(Step::Write, rows);
            console.end(Step::Write);
        }
        console.advance(Step::Validate, 7);
        assert_eq!(console.rows_read(), 42);
    }

    #[test]
    fn counters_have_a_place_for_every_step() {
        for (i, step) in Step::ALL.into_iter().enumerate() {
            assert_eq!(step as usize, i);
        }
    }

    #[test]
    fn the_bars_template_is_read() {
        assert!(ProgressStyle::with_template("{msg:<9} {wide_bar} {percent:>3} %").is_ok());
        bar_style(true);
        bar_style(false);
    }
}
