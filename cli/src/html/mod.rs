//! `report --html`: all that is known about a job as one page that needs nothing else, neither network nor script. Takes
//! what `report` takes, and when the job's runs worked; gives the page. The same record gives the same page.

mod charts;
mod markup;

use crate::args::VERSION;
use crate::output::{Fields, counted, duration, instant, minute, number, rate, size, window};
use crate::report::{self, Again, RowLine};
use crate::{command_text, error_text};
use charts::class_of;
use markup::{Html, element, of, page, plain};
use timelake_model::ledger::{JobRecord, State};
use timelake_model::manifest::RunManifest;
use timelake_model::receipt::OutlierKind;
use timelake_model::timeline::{RunTimeline, Timeline};

/// Longer lists are cut, and say so: the manifest has all.
const MOST_LINES: usize = 100;

pub fn report(m: &RunManifest, record: &JobRecord, timeline: &Timeline, again: &Again) -> String {
    let lines = report::row_lines(m);
    let body = [
        plain(
            "header",
            [
                of("p", "kind", "Backfill report"),
                plain("h1", m.job.as_str()),
                of(
                    "p",
                    "state",
                    [
                        of("span", &format!("badge {}", mood(m.state)), m.state.to_string()),
                        Html::from(format!(" {} · {}", m.table, window_text(m))),
                    ],
                ),
            ],
        ),
        standing(m, again),
        tiles(m, timeline),
        section("rows", "What became of the rows", rows(m, &lines)),
        section("chunks", "Rows per chunk, before and after", chunks(m)),
        section("time", "Steps and rates over time", times(timeline)),
        section("warnings", "Warnings", warnings(m)),
        section("bad-rows", "Bad rows", bad_rows(m)),
        section("series", "Series that stand out", series(m)),
        section("missing", "Columns missing in files", missing(m)),
        section("job", "The job", details(m, record, again)),
        plain(
            "footer",
            format!(
                "timelake {VERSION} · job made {} UTC, last changed {} UTC · the run manifest has everything: {}",
                minute(record.created),
                minute(record.updated),
                again.job("report --json", &m.job)
            ),
        ),
    ];
    page(&format!("{} {}", m.job, m.state), include_str!("style.css"), plain("main", body))
}

fn section(id: &str, title: &str, content: Html) -> Html {
    if content.is_empty() {
        return content;
    }
    let heading = format!("{id}-title");
    element("section", &[("id", id), ("aria-labelledby", &heading)], [element("h2", &[("id", &heading)], title), content])
}

fn mood(state: State) -> &'static str {
    match state {
        State::Published | State::Refreshed => "good",
        State::Hold | State::Rejected => "bad",
        State::Cancelled | State::RolledBack => "dim",
        State::Planning | State::Landing | State::Writing | State::Staged | State::Validating => "waiting",
    }
}

fn window_text(m: &RunManifest) -> String {
    match m.time_range {
        Some((first, last)) => format!("rows of {} to {} UTC", instant(first), instant(last)),
        None => format!("window {} UTC", window(&m.window)),
    }
}

/// Why the job stands still, or what is left to do.
fn standing(m: &RunManifest, again: &Again) -> Html {
    let next = report::next(m.state, &m.job, m.error.as_ref(), again);
    let line = |line: String| if line.starts_with("timelake ") { plain("code", line) } else { line.into() };
    let next = plain("ul", next.into_iter().map(|text| plain("li", line(text))).collect::<Vec<_>>());
    let Some(error) = m.error.as_ref().filter(|_| !m.state.is_published()) else {
        let open = !m.state.is_published();
        return if open { of("div", "callout", [plain("p", plain("b", "What to do next")), next]) } else { Html::default() };
    };
    let hint = error.hint.as_ref().map(|hint| plain("p", [plain("b", "Hint: "), Html::from(hint.as_str())]));
    of(
        "div",
        "callout bad",
        [
            plain("p", [of("code", "reason", error.reason.to_string()), Html::from(format!(" {}", error.message))]),
            definitions(&error_text::place(&error.place)),
            hint.unwrap_or_default(),
            next,
        ],
    )
}

fn tiles(m: &RunManifest, timeline: &Timeline) -> Html {
    let tile =
        |figure: String, name: &str, note: String| of("div", "tile", [of("span", "name", name), plain("b", figure), plain("small", note)]);
    let unseen = match (report::is_unpublished(m.state), m.counts.rows_written) {
        (false, _) => "in the table",
        (true, 0) => "nothing is published",
        (true, _) => "not published",
    };
    let seconds: f64 = timeline.runs.iter().filter(|run| run.generation == m.generation).map(|run| run.seconds).sum();
    let runs = timeline.runs.iter().filter(|run| run.generation == m.generation).count() as u64;
    let mut tiles = vec![
        tile(number(m.counts.rows_written), "rows written", unseen.into()),
        tile(number(m.counts.rows_read), "rows read", format!("{}, {}", counted(m.source.files, "file"), size(m.source.bytes))),
        tile(
            size(m.written.bytes),
            "data files",
            format!("{} in {}", counted(m.written.files, "file"), counted(m.written.partitions, "partition")),
        ),
    ];
    if seconds > 0.0 {
        let through = if m.counts.rows_read > 0 { rate(m.counts.rows_read as f64 / seconds) } else { String::new() };
        let through = if runs > 1 { format!("{}, {through}", counted(runs, "run")) } else { through };
        tiles.push(tile(duration(seconds), "time", through));
    }
    if let Some(bytes) = m.peak_memory_bytes {
        tiles.push(tile(size(bytes), "peak memory", "of the last run".into()));
    }
    of("div", "tiles", tiles)
}

fn rows(m: &RunManifest, lines: &[RowLine]) -> Html {
    let body = lines.iter().map(|line| {
        vec![
            [of("span", &format!("swatch {}", class_of(line.name)), Html::default()), Html::from(line.name)].into(),
            number(line.rows).into(),
            charts::percent(line.rows, m.counts.rows_read).into(),
            line.note.as_str().into(),
        ]
    });
    let total = vec![plain("b", "read"), plain("b", number(m.counts.rows_read)), Html::default(), Html::default()];
    let table = table(&["", "rows#", "share#", ""], body.chain([total]));
    let mut notes: Vec<Html> = report::uncounted_note(m).into_iter().map(|note| of("p", "note", note)).collect();
    if m.counts.accounted() != m.counts.rows_read {
        notes.push(of("p", "bad", format!("These do not agree: the lines add up to {}.", number(m.counts.accounted()))));
    }
    let cells = report::cell_fields(&m.counts);
    let cells = if cells.is_empty() { Html::default() } else { [plain("h3", "Cells"), definitions(&cells)].into() };
    [charts::flow(m.counts.rows_read, lines), notes.into(), details_of("Figures", table, true), cells].into()
}

fn chunks(m: &RunManifest) -> Html {
    let Some(period) = m.plan.period.filter(|_| !m.chunks.is_empty()) else { return Html::default() };
    let (bars, joined) = charts::bars(period, &m.chunks);
    let looks = m.chunks.iter().any(|chunk| chunk.existing.is_some());
    let unpublished = report::is_unpublished(m.state);
    let key = |class: &str, text: &str| plain("li", [of("span", &format!("swatch {class}"), Html::default()), Html::from(text)]);
    let mut keys = vec![key("c-written", if unpublished { "written by this job, not published" } else { "written by this job" })];
    if looks {
        keys.insert(0, key("c-before", "in the table before"));
    }
    let mut notes = Vec::new();
    if joined > 1 {
        notes.push(format!("Each bar is {} neighbouring chunks.", number(joined as u64)));
    }
    if looks {
        notes.push("Before: the rows of the table's files that touch the job's window, when the job last looked at them.".into());
    } else {
        notes.push("The job did not look at the rows that the table had (append).".into());
    }
    if m.existing_across_chunks > 0 {
        notes
            .push(format!("{} more are in files that span chunks and stand in no bar.", counted(m.existing_across_chunks, "existing row")));
    }
    let after = if unpublished { "after, once published#" } else { "after#" };
    let body = bars.iter().filter(|bar| bar.existing + bar.written > 0).map(|bar| {
        let before = if looks { number(bar.existing) } else { "not known".into() };
        let after = if looks { number(bar.existing + bar.written) } else { "not known".into() };
        [bar.name.clone(), before, number(bar.written), after].into_iter().map(Html::from).collect()
    });
    let table = table(&["chunk (UTC)", "before#", "written#", after], body);
    [of("ul", "keys", keys), charts::chunks(&bars), of("p", "note", notes.join(" ")), details_of("Figures", table, false)].into()
}

fn times(timeline: &Timeline) -> Html {
    let runs: Vec<&RunTimeline> = timeline.runs.iter().filter(|run| !run.spans.is_empty()).collect();
    let many = runs.len() > 1;
    runs.into_iter().rev().map(|run| run_of(run, many)).collect()
}

fn run_of(run: &RunTimeline, many: bool) -> Html {
    let heading = format!("{} UTC, {}: {}", minute(run.started), duration(run.seconds), run.outcome);
    let body = run.spans.iter().take(MOST_LINES).map(|span| {
        let rows = if span.rows > 0 { number(span.rows) } else { String::new() };
        let per_second = if span.rows > 0 { rate(span.rows as f64 / span.seconds.max(0.001)) } else { String::new() };
        vec![
            [of("span", &format!("swatch s-{}", span.step), Html::default()), Html::from(span.step.as_str())].into(),
            duration(span.start_seconds).into(),
            duration(span.seconds).into(),
            rows.into(),
            per_second.into(),
        ]
    });
    let table = table(&["step", "after#", "time#", "rows#", "rate#"], body);
    let title = if many { plain("h3", heading) } else { of("p", "note", heading) };
    [title, charts::run(run), details_of("Figures", table, false)].into()
}

fn warnings(m: &RunManifest) -> Html {
    list(m.warnings.iter().map(|warning| plain("li", warning.as_str())))
}

fn bad_rows(m: &RunManifest) -> Html {
    if m.errors.is_empty() {
        return Html::default();
    }
    let body = m.errors.iter().take(MOST_LINES).map(|errors| {
        let places: Vec<Html> = errors.places.iter().map(|place| plain("li", plain("code", place.as_str()))).collect();
        vec![
            plain("code", errors.first.reason.to_string()),
            errors.first.place.column.clone().unwrap_or_default().into(),
            number(errors.count).into(),
            if errors.skipped { "left out" } else { "stops the job" }.into(),
            of("ul", "places", places),
        ]
    });
    [table(&["reason", "column", "rows#", "", "first places and values"], body), cut(m.errors.len())].into()
}

fn series(m: &RunManifest) -> Html {
    if m.series_outliers.is_empty() {
        return Html::default();
    }
    let body = m.series_outliers.iter().map(|summary| {
        let outlier = &summary.outlier;
        let how = match outlier.kind {
            OutlierKind::MoreRows => "far more rows",
            OutlierKind::FewerRows => "far fewer rows",
            OutlierKind::MoreDropped => "many rows not written",
        };
        let others = if summary.units > 1 { format!(", and in {} more", counted(summary.units - 1, "unit")) } else { String::new() };
        vec![
            plain("code", outlier.series.join(", ")),
            how.into(),
            number(outlier.rows).into(),
            number(outlier.rows_written).into(),
            number(summary.median_rows).into(),
            format!("{}{others}", window(&summary.window)).into(),
        ]
    });
    let table = table(&["series", "", "rows#", "written#", "median#", "where it is farthest (UTC)"], body);
    const NOTE: &str = "Compared with the other series of the same unit of work (a time range): four times more or fewer rows than \
                        the median, or four times the share of rows not written because they repeat, conflict or exist. Rejected \
                        rows are not counted here, nor rows outside what is loaded.";
    [table, of("p", "note", NOTE)].into()
}

fn missing(m: &RunManifest) -> Html {
    let line = |(column, files): (&String, &Vec<String>)| {
        let shown: Vec<Html> = files.iter().take(MOST_LINES).map(|file| plain("li", plain("code", file.as_str()))).collect();
        let title = format!("{column}: NULL in {}", counted(files.len() as u64, "file"));
        details_of(&title, [of("ul", "places", shown), cut(files.len())].into(), false)
    };
    m.files_missing_column.iter().map(line).collect()
}

fn details(m: &RunManifest, record: &JobRecord, again: &Again) -> Html {
    // The time is that of the last run; all runs stand above.
    let mut fields = report::all_fields(m);
    fields.add("generation", m.generation.to_string());
    let command = command_text::command(&record.request, &again.lake, 0, crate::output::Layout { width: Some(100), color: false });
    let groups = m.groups.iter().take(MOST_LINES).map(|group| {
        vec![
            group.group.as_str().into(),
            group.state.to_string().into(),
            number(u64::from(group.round)).into(),
            format!("{} of {}", number(group.units_done), number(group.units)).into(),
            number(group.units_failed).into(),
            number(u64::from(group.rederived)).into(),
            group.published_snapshot.map_or("-".into(), |id| id.to_string()).into(),
        ]
    });
    let groups = table(&["group", "state", "round#", "units done#", "failed#", "derived again#", "snapshot"], groups);
    let pairs = |pairs: &mut dyn Iterator<Item = (String, String)>| {
        let mut fields = Fields::default();
        pairs.take(MOST_LINES).for_each(|(name, value)| {
            fields.add(&name, value);
        });
        definitions(&fields)
    };
    let checks = pairs(&mut m.checks.iter().map(|check| (check.name.clone(), check.detail.clone())));
    let sums = pairs(&mut m.column_sums.iter().map(|(column, sum)| (column.clone(), sum.clone())));
    let ranges = list(m.rollup_ranges.iter().map(|range| plain("li", window(range))));
    [
        plain("pre", plain("code", command)),
        definitions(&fields.without("time")),
        if m.groups.is_empty() { Html::default() } else { details_of("Groups", [groups, cut(m.groups.len())].into(), true) },
        if m.checks.is_empty() { Html::default() } else { details_of("Checks before publishing", checks, true) },
        if m.rollup_ranges.is_empty() { Html::default() } else { details_of("Changed ranges (UTC)", ranges, false) },
        if m.column_sums.is_empty() { Html::default() } else { details_of("Column sums", sums, false) },
    ]
    .into()
}

/// A title ending in `#` is that of a column of figures.
fn table(titles: &[&str], rows: impl Iterator<Item = Vec<Html>>) -> Html {
    let class = |i: usize| if titles.get(i).is_some_and(|title| title.ends_with('#')) { "figure" } else { "" };
    let head =
        titles.iter().enumerate().map(|(i, title)| element("th", &[("scope", "col"), ("class", class(i))], title.trim_end_matches('#')));
    let body = rows.map(|cells| plain("tr", cells.into_iter().enumerate().map(|(i, cell)| of("td", class(i), cell)).collect::<Vec<_>>()));
    let (head, body) = (head.collect::<Html>(), body.collect::<Html>());
    element("div", &[("class", "scroll"), ("tabindex", "0")], plain("table", [plain("thead", plain("tr", head)), plain("tbody", body)]))
}

fn definitions(fields: &Fields) -> Html {
    let pair = |(name, value): (&str, &str)| plain("div", [plain("dt", name), plain("dd", value)]);
    let pairs: Vec<Html> = fields.iter().map(pair).collect();
    if pairs.is_empty() { Html::default() } else { plain("dl", pairs) }
}

fn details_of(title: &str, content: Html, open: bool) -> Html {
    let content: Html = [plain("summary", title), content].into();
    if open { element("details", &[("open", "")], content) } else { plain("details", content) }
}

fn list(lines: impl ExactSizeIterator<Item = Html>) -> Html {
    let all = lines.len();
    if all == 0 {
        return Html::default();
    }
    [plain("ul", lines.take(MOST_LINES).collect::<Vec<_>>()), cut(all)].into()
}

fn cut(all: usize) -> Html {
    match all.saturating_sub(MOST_LINES) {
        0 => Html::default(),
        more => of("p", "note", format!("And {} more: the run manifest has all.", number(more as u64))),
    }
}

#[cfg(test)]
mod tests;
