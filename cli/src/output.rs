//! Numbers, sizes, durations and aligned text for people. Knows nothing of jobs.

use console::measure_text_width;
use timelake_model::{TimestampUs, Window};

/// How text for people is set: how wide the terminal is (`None`: not a terminal, nothing is shortened).
#[derive(Debug, Clone, Copy, Default)]
pub struct Layout {
    pub width: Option<usize>,
    pub color: bool,
}

impl Layout {
    pub fn paint(&self, text: &str, paint: Paint) -> String {
        if !self.color {
            return text.to_string();
        }
        let code = match paint {
            Paint::Good => "32",
            Paint::Bad => "31;1",
            Paint::Waiting => "33",
            Paint::Strong => "1",
            Paint::Dim => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    Good,
    Bad,
    Waiting,
    Strong,
    Dim,
}

/// `20,100,000`
pub fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `1 file`, `2 files`
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", number(n), if n == 1 { "" } else { "s" })
}

/// Three digits that count: `512 B`, `1.50 kB`, `317 MB`.
pub fn size(bytes: u64) -> String {
    if bytes < 1000 { format!("{bytes} B") } else { format!("{}B", scaled(bytes as f64)) }
}

/// `5.90 M rows/s`
pub fn rate(rows_per_second: f64) -> String {
    match rows_per_second {
        r if !r.is_finite() || r <= 0.0 => "- rows/s".into(),
        r if r < 1000.0 => format!("{r:.0} rows/s"),
        r => format!("{} rows/s", scaled(r)),
    }
}

fn scaled(value: f64) -> String {
    let (mut value, mut unit) = (value, "");
    for next in ["k", "M", "G", "T", "P"] {
        // 999.5 would be printed as 1000
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

/// `12 ms`, `3.4 s`, `2 min 05 s`, `1 h 02 min`
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "-".into();
    }
    let whole = seconds.round() as u64;
    match seconds {
        s if s < 0.9995 => format!("{:.0} ms", s * 1000.0),
        s if s < 59.95 => format!("{s:.1} s"),
        _ if whole < 3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// `2024-05-01` at midnight, else `2024-05-01 06:00:00.5`; the reader is told that it is UTC.
pub fn instant(t: TimestampUs) -> String {
    let text = t.short();
    if let Some(day) = text.strip_suffix("T00:00:00Z") {
        return day.to_string();
    }
    let text = text.trim_end_matches('Z').replace('T', " ");
    if text.contains('.') { text.trim_end_matches('0').to_string() } else { text }
}

/// A list's cell that is too long: `plant_west.measu...`.
pub fn shortened(text: &str, width: usize) -> String {
    const DOTS: &str = "...";
    if text.chars().count() <= width || width <= DOTS.len() {
        return text.to_string();
    }
    text.chars().take(width - DOTS.len()).chain(DOTS.chars()).collect()
}

/// To the minute, for lists: `2024-05-01 13:05`.
pub fn minute(t: TimestampUs) -> String {
    let text = t.to_string();
    text.get(..16).map_or(text.clone(), |minute| minute.replace('T', " "))
}

/// `2024-01-01 .. 2024-07-01`
pub fn window(w: &Window) -> String {
    let side = |t: Option<TimestampUs>, open: &str| t.map_or(open.to_string(), instant);
    match (w.start, w.end) {
        (None, None) => "all times".into(),
        _ => format!("{} .. {}", side(w.start, "begin"), side(w.end, "end")),
    }
}

/// Names and values in two columns; further lines of a value are indented below it.
#[derive(Debug, Default)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    pub fn add(&mut self, name: &str, value: impl Into<String>) -> &mut Self {
        self.0.push((name.into(), value.into()));
        self
    }
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
    pub fn without(mut self, name: &str) -> Fields {
        self.0.retain(|(known, _)| known != name);
        self
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn append(&mut self, other: Fields) {
        self.0.extend(other.0);
    }
    /// Values are broken at blanks to fit the terminal.
    pub fn render(&self, indent: usize, layout: Layout) -> String {
        let wide = self.0.iter().map(|(name, _)| measure_text_width(name)).max().unwrap_or(0);
        let room = layout.width.map(|width| width.saturating_sub(indent + wide + 2));
        let mut out = String::new();
        for (name, value) in &self.0 {
            for (i, line) in value.lines().flat_map(|line| wrapped(line, room)).enumerate() {
                let name = if i == 0 { name.as_str() } else { "" };
                out.push_str(format!("{:indent$}{}  {line}", "", padded(name, wide, Align::Left)).trim_end());
                out.push('\n');
            }
        }
        out
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

#[derive(Debug, Clone)]
pub struct Column {
    title: String,
    align: Align,
    /// Where the terminal is too narrow, the column with the highest number goes first; 0 never goes.
    dispensable: u8,
}

pub fn left(title: impl Into<String>, dispensable: u8) -> Column {
    Column { title: title.into(), align: Align::Left, dispensable }
}
pub fn right(title: impl Into<String>, dispensable: u8) -> Column {
    Column { title: title.into(), align: Align::Right, dispensable }
}

/// Lines of equal shape, aligned, two blanks between columns.
#[derive(Debug)]
pub struct Grid {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    pub fn new(columns: Vec<Column>) -> Self {
        Grid { columns, rows: Vec::new() }
    }
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
    /// How wide it is when no column is left out.
    pub fn width(&self) -> usize {
        self.widths().iter().map(|wide| wide + 2).sum::<usize>().saturating_sub(2)
    }
    fn widths(&self) -> Vec<usize> {
        let of = |i: usize| self.rows.iter().filter_map(move |row| row.get(i)).map(|cell| measure_text_width(cell));
        self.columns.iter().enumerate().map(|(i, column)| of(i).chain([measure_text_width(&column.title)]).max().unwrap_or(0)).collect()
    }
    pub fn render(&self, indent: usize, layout: Layout) -> String {
        let wide = self.widths();
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        if let Some(limit) = layout.width {
            while indent + shown.iter().map(|i| wide[*i] + 2).sum::<usize>() > limit + 2 {
                let Some(goes) =
                    shown.iter().copied().filter(|i| self.columns[*i].dispensable > 0).max_by_key(|i| self.columns[*i].dispensable)
                else {
                    break;
                };
                shown.retain(|i| *i != goes);
            }
        }
        let line = |cell: &dyn Fn(usize) -> String| {
            let cells: Vec<String> = shown.iter().map(|i| padded(&cell(*i), wide[*i], self.columns[*i].align)).collect();
            format!("{:indent$}{}", "", cells.join("  ")).trim_end().to_string()
        };
        let title = line(&|i| self.columns[i].title.clone());
        let mut out = format!("{}\n", layout.paint(&title, Paint::Dim));
        for row in &self.rows {
            out.push_str(&line(&|i| row.get(i).cloned().unwrap_or_default()));
            out.push('\n');
        }
        out
    }
}

pub fn padded(text: &str, width: usize, align: Align) -> String {
    let blanks = " ".repeat(width.saturating_sub(measure_text_width(text)));
    if align == Align::Left { format!("{text}{blanks}") } else { format!("{blanks}{text}") }
}

/// A word as a shell takes it back.
pub fn quoted(text: &str) -> String {
    let is_plain = !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "/._-+:@%,=".contains(c));
    if is_plain { text.to_string() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Breaks prose at blanks so that lines fit; words are never cut.
pub fn wrapped(text: &str, width: Option<usize>) -> Vec<String> {
    let limit = width.unwrap_or(usize::MAX).max(20);
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split(' ') {
        let Some(last) = lines.last_mut() else { break };
        let room = if last.is_empty() { 0 } else { 1 };
        if room > 0 && measure_text_width(last) + room + measure_text_width(word) > limit {
            lines.push(word.to_string());
        } else {
            if room > 0 {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_for_people() {
        assert_eq!([0, 999, 1000, 20_100_000].map(number), ["0", "999", "1,000", "20,100,000"]);
        assert_eq!([0, 999, 1000, 999_499, 999_500, 317_000_000].map(size), ["0 B", "999 B", "1.00 kB", "999 kB", "1.00 MB", "317 MB"]);
        assert_eq!(size(u64::MAX), "18447 PB");
        assert_eq!([0.0, 12.0, 5_912_000.0, f64::INFINITY].map(rate), ["- rows/s", "12 rows/s", "5.91 M rows/s", "- rows/s"]);
        assert_eq!(
            [0.012, 0.9999, 3.44, 59.96, 125.0, 3599.7, 3720.0].map(duration),
            ["12 ms", "1.0 s", "3.4 s", "1 min 00 s", "2 min 05 s", "1 h 00 min", "1 h 02 min"]
        );
        assert_eq!((counted(1, "file"), counted(2000, "row")), ("1 file".into(), "2,000 rows".into()));
    }

    #[test]
    fn times_are_as_short_as_they_can_be() {
        let t = |text: &str| TimestampUs::parse_bound(text, "", false).unwrap();
        assert_eq!(instant(t("2024-05-01")), "2024-05-01");
        assert_eq!(instant(t("2024-05-01T06:00Z")), "2024-05-01 06:00:00");
        assert_eq!(instant(t("2024-05-01T06:00:00.500Z")), "2024-05-01 06:00:00.5");
        assert_eq!(instant(t("1969-12-31T23:59:59.999999Z")), "1969-12-31 23:59:59.999999");
        assert_eq!(minute(t("2024-05-01T06:07:08Z")), "2024-05-01 06:07");
        assert_eq!(window(&Window { start: None, end: Some(t("2024-05-01")) }), "begin .. 2024-05-01");
    }

    #[test]
    fn a_narrow_terminal_loses_columns_not_alignment() {
        let mut grid = Grid::new(vec![left("JOB", 0), left("TABLE", 2), right("ROWS", 1)]);
        grid.row(vec!["a".into(), "iot.sensor".into(), "1".into()]);
        grid.row(vec!["bcd".into(), "iot.x".into(), "1,000".into()]);
        let render = |width| grid.render(2, Layout { width, color: false });
        assert_eq!(render(None), "  JOB  TABLE        ROWS\n  a    iot.sensor      1\n  bcd  iot.x       1,000\n");
        assert_eq!(render(Some(24)), render(None));
        assert_eq!(render(Some(23)), "  JOB   ROWS\n  a        1\n  bcd  1,000\n");
        assert_eq!(render(Some(3)), "  JOB\n  a\n  bcd\n");
    }

    #[test]
    fn long_names_are_cut_and_say_so() {
        assert_eq!(shortened("plant_west.measurements", 16), "plant_west.me...");
        assert_eq!(shortened("iot.sensor", 10), "iot.sensor");
        assert_eq!(shortened("iot.sensor", 2), "iot.sensor");
    }

    #[test]
    fn words_come_back_as_a_shell_takes_them() {
        assert_eq!(quoted("./lake-2"), "./lake-2");
        assert_eq!(quoted("my lake's"), "'my lake'\\''s'");
        assert_eq!(quoted("ts=time,q="), "ts=time,q=");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn prose_breaks_at_blanks() {
        assert_eq!(wrapped("one two three four five six", Some(20)), ["one two three four", "five six"]);
        assert_eq!(wrapped("one", None), ["one"]);
    }
}
