//! The charts, as SVG that stretches: shapes only, no text inside, so that it is readable at any width. Labels are HTML
//! beside them, in the same grid; every shape says its figures when it is pointed at.

use super::markup::{Html, element, of, plain};
use crate::output::{number, rate};
use crate::report::RowLine;
use std::collections::BTreeMap;
use timelake_model::TimestampUs;
use timelake_model::manifest::ChunkRows;
use timelake_model::time::Period;
use timelake_model::timeline::{RunTimeline, StepSpan};

/// Units across a chart, whatever its width on the screen.
const WIDE: f64 = 1000.0;
/// Height of the bars, in pixels.
const HIGH: f64 = 200.0;
/// Height of a line of steps, in pixels.
const LANE: f64 = 12.0;
/// More bars than these are joined.
const MOST_BARS: i64 = 120;
/// Of few bars, so that they still look like bars.
const WIDEST_BAR: f64 = 80.0;
/// Parts of a run whose rates are shown.
const RATE_BARS: usize = 60;
/// Height of a line of the flow, in pixels.
const SLOT: f64 = 44.0;

/// A drawing that says what it shows; `height` pixels high and as wide as there is room, which `view` is stretched to.
fn drawing(height: f64, view: (f64, f64), title: &str, shapes: Html) -> Html {
    let (view, style) = (format!("0 0 {} {}", view.0, view.1), format!("height:{height}px"));
    element(
        "svg",
        &[("style", &style), ("viewBox", &view), ("preserveAspectRatio", "none"), ("role", "img"), ("aria-label", title)],
        shapes,
    )
}

fn rectangle(class: &str, x: f64, y: f64, width: f64, height: f64, told: &str) -> Html {
    let n = |value: f64| format!("{value:.2}");
    element("rect", &[("class", class), ("x", &n(x)), ("y", &n(y)), ("width", &n(width)), ("height", &n(height))], plain("title", told))
}

/// The class of a line of rows: its name as one word.
pub fn class_of(name: &str) -> String {
    format!("c-{}", name.replace(' ', "-"))
}

pub fn percent(part: u64, all: u64) -> String {
    match part as f64 * 100.0 / all.max(1) as f64 {
        p if part > 0 && p < 0.1 => "< 0.1 %".into(),
        p if part < all && p > 99.9 => "> 99.9 %".into(),
        p => format!("{p:.1} %"),
    }
}

/// What became of the rows read, as a stream that parts. Bands are as wide as their share, the least still seen.
pub fn flow(read: u64, lines: &[RowLine]) -> Html {
    let lines: Vec<&RowLine> = lines.iter().filter(|line| line.rows > 0).collect();
    if lines.is_empty() {
        return plain("p", "No rows were read.");
    }
    const LEAST_BAND: f64 = 2.0;
    const WIDEST_END: f64 = 26.0;
    let height = SLOT * lines.len() as f64;
    let all: u64 = lines.iter().map(|line| line.rows).sum();
    let bands: Vec<f64> = lines.iter().map(|line| (height * line.rows as f64 / all as f64).max(LEAST_BAND)).collect();
    let scale = height / bands.iter().sum::<f64>();
    let (mut shapes, mut labels) = (Vec::new(), Vec::new());
    let mut y = 0.0;
    for (i, (line, band)) in lines.iter().zip(&bands).enumerate() {
        let (top, bottom) = (y, y + band * scale);
        y = bottom;
        let (middle, half) = (SLOT * (i as f64 + 0.5), band.min(WIDEST_END) / 2.0);
        let (end_top, end_bottom) = (middle - half, middle + half);
        let path = format!(
            "M0,{top:.1} C50,{top:.1} 50,{end_top:.1} 100,{end_top:.1} L100,{end_bottom:.1} C50,{end_bottom:.1} 50,{bottom:.1} 0,{bottom:.1} Z"
        );
        let told = format!("{}: {} rows, {}", line.name, number(line.rows), percent(line.rows, read));
        shapes.push(element("path", &[("class", &class_of(line.name)), ("d", &path)], plain("title", told.as_str())));
        let note = if line.note.is_empty() { String::new() } else { format!(" · {}", line.note) };
        labels.push(of(
            "li",
            &class_of(line.name),
            [plain("b", number(line.rows)), of("span", "name", line.name), of("small", "", format!("{}{note}", percent(line.rows, read)))],
        ));
    }
    of(
        "div",
        "flow",
        [
            of("div", "source", [plain("b", number(read)), of("span", "name", "rows read")]),
            drawing(height, (100.0, height), "What became of the rows read; the table below has the figures", shapes.into()),
            of("ul", "ends", labels),
        ],
    )
}

/// Some neighbouring chunks, shown as one bar.
pub struct Bar {
    pub name: String,
    pub existing: u64,
    pub written: u64,
}

/// One bar per chunk, also for those without rows between others; neighbours joined where there are too many. And how
/// many chunks a bar is.
pub fn bars(period: Period, chunks: &[ChunkRows]) -> (Vec<Bar>, i64) {
    let of = |start: TimestampUs| period.ordinal(start.0);
    let (Some(first), Some(last)) = (chunks.first().map(|c| of(c.start)), chunks.last().map(|c| of(c.start))) else { return (vec![], 1) };
    let joined = ((last - first + 1) as u64).div_ceil(MOST_BARS as u64) as i64;
    let mut rows: BTreeMap<i64, (u64, u64)> = (0..=(last - first) / joined).map(|i| (i, (0, 0))).collect();
    for chunk in chunks {
        let bar = rows.entry((of(chunk.start) - first) / joined).or_default();
        *bar = (bar.0 + chunk.existing.unwrap_or(0), bar.1 + chunk.written);
    }
    let name = |i: i64| {
        let from = first + i * joined;
        let to = (from + joined - 1).min(last);
        if from == to { period.name(from) } else { format!("{} to {}", period.name(from), period.name(to)) }
    };
    (rows.into_iter().map(|(i, (existing, written))| Bar { name: name(i), existing, written }).collect(), joined)
}

/// Rows per chunk before and after: what was there, and on it what the job wrote.
pub fn chunks(bars: &[Bar]) -> Html {
    let highest = bars.iter().map(|bar| bar.existing + bar.written).max().unwrap_or(0);
    let ticks = ticks(highest as f64);
    let top = ticks.last().copied().unwrap_or(1.0);
    let slot = WIDE / bars.len().max(1) as f64;
    let mut shapes = lines(&ticks);
    for (i, bar) in bars.iter().enumerate() {
        let told = format!(
            "{}: {} rows before, {} written, {} after",
            bar.name,
            number(bar.existing),
            number(bar.written),
            number(bar.existing + bar.written)
        );
        let high = |rows: u64| if rows == 0 { 0.0 } else { (HIGH * rows as f64 / top).max(1.0) };
        let (existing, written) = (high(bar.existing), high(bar.written));
        let width = (slot * 0.8).min(WIDEST_BAR);
        let x = slot * (i as f64 + 0.5) - width / 2.0;
        shapes.push(rectangle("c-before", x, HIGH - existing, width, existing, &told));
        shapes.push(rectangle("c-written", x, HIGH - existing - written, width, written, &told));
    }
    let ends = match bars {
        [] => vec![],
        [one] => vec![one.name.clone()],
        [first, .., last] => vec![first.name.clone(), last.name.clone()],
    };
    let title = "Rows per chunk before and after; the table below has the figures";
    plot(&ticks, |rows| number(rows as u64), drawing(HIGH, (WIDE, HIGH), title, shapes.into()), &ends)
}

/// A run's rates over time, and below it when its steps ran.
pub fn run(run: &RunTimeline) -> Html {
    let seconds = run.seconds.max(0.001);
    let part = seconds / RATE_BARS as f64;
    let mut of_steps: Vec<(&str, Vec<f64>)> = Vec::new();
    for span in run.spans.iter().filter(|span| span.rows > 0) {
        let at = |time: f64| rows_at(span, time);
        let rates = (0..RATE_BARS).map(|i| (at((i + 1) as f64 * part) - at(i as f64 * part)) / part);
        match of_steps.iter_mut().find(|(step, _)| *step == span.step) {
            Some((_, known)) => known.iter_mut().zip(rates).for_each(|(sum, rate)| *sum += rate),
            None => of_steps.push((&span.step, rates.collect())),
        }
    }
    let mut out = Vec::new();
    let highest = of_steps.iter().flat_map(|(_, rates)| rates).copied().fold(0.0, f64::max);
    if highest > 0.0 {
        let ticks = ticks(highest);
        let top = ticks.last().copied().unwrap_or(1.0);
        let slot = WIDE / RATE_BARS as f64;
        let mut shapes = lines(&ticks);
        for (step, rates) in &of_steps {
            for (i, of_part) in rates.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
                let high = (HIGH * of_part / top).max(1.0);
                let told = format!("{step}, {:.1} s: {}", (i as f64 + 0.5) * part, rate(*of_part));
                shapes.push(rectangle(&format!("s-{step}"), slot * i as f64, HIGH - high, slot * 0.95, high, &told));
            }
        }
        let title = "Rows per second over the time of the run; the table below has the figures of each step";
        out.push(plot(&ticks, |r| rate(r).replace(" rows/s", "/s"), drawing(HIGH, (WIDE, HIGH), title, shapes.into()), &[]));
    }
    let mut lanes: Vec<(&str, Vec<Html>)> = Vec::new();
    for span in &run.spans {
        const LEAST: f64 = 3.0;
        let width = (WIDE * span.seconds / seconds).max(LEAST);
        let x = (WIDE * span.start_seconds / seconds).min(WIDE - width);
        let told = format!("{}: {:.2} s from {:.2} s on", span.step, span.seconds, span.start_seconds);
        let shape = rectangle(&format!("s-{}", span.step), x, 0.0, width, LANE, &told);
        match lanes.iter_mut().find(|(step, _)| *step == span.step) {
            Some((_, shapes)) => shapes.push(shape),
            None => lanes.push((&span.step, vec![shape])),
        }
    }
    for (step, shapes) in lanes {
        let title = format!("When {step} ran");
        out.push(of("div", "plot lane", [of("div", "y", step), drawing(LANE, (WIDE, LANE), &title, shapes.into())]));
    }
    let axis = vec![plain("span", "0 s"), plain("span", crate::output::duration(run.seconds))];
    out.push(of("div", "plot", [of("div", "y", Html::default()), of("div", "x", axis)]));
    out.into()
}

/// Rows gone through by then; between samples as if at an even rate.
fn rows_at(span: &StepSpan, time: f64) -> f64 {
    let mut before = (span.start_seconds, 0u64);
    for sample in &span.samples {
        if sample.0 >= time {
            let share = (time - before.0) / (sample.0 - before.0).max(f64::MIN_POSITIVE);
            return before.1 as f64 + share.clamp(0.0, 1.0) * (sample.1 - before.1.min(sample.1)) as f64;
        }
        before = *sample;
    }
    before.1 as f64
}

/// A chart between its axes.
fn plot(ticks: &[f64], label: impl Fn(f64) -> String, chart: Html, ends: &[String]) -> Html {
    let top = ticks.last().copied().unwrap_or(1.0);
    let labels: Vec<Html> = ticks
        .iter()
        .map(|tick| {
            element(
                "span",
                &[("style", &format!("bottom:{:.2}%", 100.0 * tick / top))],
                if *tick == 0.0 { "0".into() } else { label(*tick) },
            )
        })
        .collect();
    let below: Vec<Html> = ends.iter().map(|end| plain("span", end.as_str())).collect();
    let axis = if below.is_empty() { Html::default() } else { [of("div", "y", Html::default()), of("div", "x", below)].into() };
    of("div", "plot", [of("div", "y ticks", labels), chart, axis])
}

/// Lines across a chart, at its ticks.
fn lines(ticks: &[f64]) -> Vec<Html> {
    let top = ticks.last().copied().unwrap_or(1.0);
    ticks
        .iter()
        .map(|tick| {
            let y = format!("{:.2}", HIGH - HIGH * tick / top);
            element("line", &[("x1", "0"), ("x2", "1000"), ("y1", &y), ("y2", &y)], Html::default())
        })
        .collect()
}

/// Round numbers from 0 to at least `highest`, a few of them.
fn ticks(highest: f64) -> Vec<f64> {
    let highest = highest.max(1.0);
    let power = 10f64.powf((highest / 4.0).log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| step * 4.0 >= highest).unwrap_or(highest);
    let step = step.max(1.0);
    (0..=(highest / step).ceil() as u32).map(|i| f64::from(i) * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_top() {
        assert_eq!(ticks(0.0), [0.0, 1.0]);
        assert_eq!(ticks(3.0), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(ticks(101.0), [0.0, 50.0, 100.0, 150.0]);
        for highest in [1.0, 7.0, 99.0, 100.0, 101.0, 5_240_400.0, 1e18] {
            let ticks = ticks(highest);
            assert!(ticks.len() <= 6 && *ticks.last().unwrap() >= highest, "{highest}: {ticks:?}");
        }
    }

    #[test]
    fn shares_are_never_rounded_to_all_or_nothing() {
        assert_eq!([percent(0, 5), percent(1, 5), percent(5, 5)], ["0.0 %", "20.0 %", "100.0 %"]);
        assert_eq!([percent(1, 1_000_000), percent(999_999, 1_000_000)], ["< 0.1 %", "> 99.9 %"]);
    }

    #[test]
    fn chunks_without_rows_have_their_place_and_many_are_joined() {
        let chunk = |ordinal: i64, written| ChunkRows {
            chunk: Period::Day.name(ordinal),
            start: TimestampUs(Period::Day.start(ordinal)),
            existing: Some(1),
            written,
        };
        let (few, joined) = bars(Period::Day, &[chunk(-1, 5), chunk(3, 6)]);
        assert_eq!((few.len(), joined, few[0].name.as_str(), few[4].written, few[2].existing), (5, 1, "1969-12-31", 6, 0));
        let (many, joined) = bars(Period::Day, &[chunk(0, 1), chunk(1, 1), chunk(1000, 4)]);
        assert_eq!((many.len() as i64, joined), (112, 9));
        assert_eq!((many[0].written, many[0].existing, many[0].name.as_str()), (2, 2, "1970-01-01 to 1970-01-09"));
        assert_eq!(many.iter().map(|bar| bar.written).sum::<u64>(), 6);
        assert!(bars(Period::Day, &[]).0.is_empty());
        // hours from the first to the last that can be
        let far = ChunkRows { start: TimestampUs(4_000_000_000_000_000), ..chunk(0, 1) };
        assert!(bars(Period::Hour, &[chunk(0, 1), far]).0.len() <= 120);
    }

    #[test]
    fn rates_add_up_to_the_rows() {
        let span =
            StepSpan { step: "write".into(), start_seconds: 1.0, seconds: 4.0, rows: 100, samples: vec![(2.0, 10), (4.0, 90), (5.0, 100)] };
        assert_eq!([0.0, 1.0, 1.5, 3.0, 5.0, 9.0].map(|time| rows_at(&span, time)), [0.0, 0.0, 5.0, 50.0, 100.0, 100.0]);
    }
}
