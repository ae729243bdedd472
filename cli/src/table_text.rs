//! `table create`, `show` and `contract` for people.

use crate::output::{Fields, Grid, Layout, Paint, counted, left, minute, number, right, size};
use crate::report::section;
use timelake_engine::tables::{SortColumn, TableInfo, TableSummary};

pub fn list(tables: &[TableSummary], layout: Layout) -> String {
    if tables.is_empty() {
        return "no tables\n".into();
    }
    let mut grid =
        Grid::new(vec![left("TABLE", 0), right("ROWS", 0), right("FILES", 3), right("SIZE", 2), left("CONTRACT", 4), left("UPDATED", 1)]);
    let known = |n: Option<u64>, text: fn(u64) -> String| n.map_or("-".into(), text);
    for table in tables {
        let contract = match (&table.error, table.contract) {
            (Some(error), _) => error.reason.to_string(),
            (None, true) => "yes".into(),
            (None, false) => "no".into(),
        };
        grid.row(vec![
            table.name.clone(),
            known(table.rows, number),
            known(table.files, number),
            known(table.bytes, size),
            contract,
            table.snapshot_at.map_or("-".into(), minute),
        ]);
    }
    grid.render(0, layout)
}

pub fn table(info: &TableInfo, layout: Layout) -> String {
    let mut out = format!("{}\n", layout.paint(&info.name, Paint::Strong));
    let mut fields = Fields::default();
    let partition: Vec<String> = info.partition.iter().map(|field| partition_text(&field.transform, &field.column)).collect();
    fields
        .add("location", info.location.clone())
        .add("metadata", info.metadata_location.clone().unwrap_or_else(|| "none".into()))
        .add("uuid", info.uuid.clone())
        .add("format", format!("Iceberg v{}", info.format_version))
        .add("partition", if partition.is_empty() { "none".into() } else { partition.join(", ") })
        .add("sort", if info.sort.is_empty() { "none".into() } else { info.sort.iter().map(sort_text).collect::<Vec<_>>().join(", ") })
        .add("size", size_text(info));
    let snapshot = info.snapshot.as_ref();
    fields.add("snapshot", snapshot.map_or("none".into(), |s| format!("{} ({}, {} UTC)", s.id, s.operation, minute(s.at))));
    out.push_str(&fields.render(2, layout));
    let mut grid = Grid::new(vec![right("ID", 1), left("COLUMN", 0), left("TYPE", 0), left("", 0)]);
    for column in &info.columns {
        let required = if column.required { "required" } else { "" };
        grid.row(vec![column.id.to_string(), column.name.clone(), column.column_type.to_string(), required.into()]);
    }
    out.push_str(&format!("\n{}", grid.render(2, layout)));
    out.push_str(&format!("\n  {}\n{}", layout.paint("contract", Paint::Strong), contract_fields(info).render(4, layout)));
    if !info.refs.is_empty() {
        let mut grid = Grid::new(vec![left("REF", 0), left("KIND", 1), right("SNAPSHOT", 0)]);
        for reference in &info.refs {
            grid.row(vec![reference.name.clone(), reference.kind.clone(), reference.snapshot.to_string()]);
        }
        out.push_str(&format!("\n{}", grid.render(2, layout)));
    }
    section(&mut out, "locks", info.locks.iter().map(|(name, value)| (name.clone(), value.to_string())), layout);
    out.push_str(&notes(info, layout));
    out
}

pub fn contract(info: &TableInfo, layout: Layout) -> String {
    format!("{}\n{}{}", layout.paint(&info.name, Paint::Strong), contract_fields(info).render(2, layout), notes(info, layout))
}

fn contract_fields(info: &TableInfo) -> Fields {
    let mut fields = Fields::default();
    let Some(contract) = &info.contract else {
        fields
            .add("none yet", "set it before loading:")
            .add("", format!("timelake table contract {} \\\n    --time-column COL --series-key COLS", info.name));
        return fields;
    };
    fields
        .add("time column", contract.time_column.clone())
        .add("series key", contract.series_key.join(", "))
        .add("dedup key", contract.dedup_key.as_ref().map_or("none (rows have no identity)".into(), |key| key.join(", ")))
        .add("retention", contract.retention.clone().unwrap_or_else(|| "unlimited".into()))
        .add("lateness", contract.lateness.clone())
        .add("undo", contract.undo.clone());
    for aged in &contract.layout {
        let size = aged.target_file_size_bytes.map_or(String::new(), |bytes| format!(", files of {}", size(bytes)));
        fields.add("layout", format!("{} for rows older than {}{size}", aged.partition, aged.older_than));
    }
    fields
}

fn notes(info: &TableInfo, layout: Layout) -> String {
    info.notes.iter().map(|note| format!("  {}: {note}\n", layout.paint("note", Paint::Waiting))).collect()
}

/// As it is typed: `day(ts)`, `bucket(16,device_id)`.
fn partition_text(transform: &str, column: &str) -> String {
    match transform.split_once('[') {
        Some((name, argument)) => format!("{name}({},{column})", argument.trim_end_matches(']')),
        None => format!("{transform}({column})"),
    }
}

/// What the snapshot's writer stated; not every tool states all.
fn size_text(info: &TableInfo) -> String {
    let known = [info.rows.map(|n| counted(n, "row")), info.files.map(|n| counted(n, "file")), info.bytes.map(size)];
    let known: Vec<String> = known.into_iter().flatten().collect();
    if known.is_empty() { "not stated".into() } else { known.join(", ") }
}

/// `ts`, `ts desc`, `day(ts)`
fn sort_text(sort: &SortColumn) -> String {
    let column = if sort.transform == "identity" { sort.column.clone() } else { partition_text(&sort.transform, &sort.column) };
    if sort.direction == "asc" { column } else { format!("{column} {}", sort.direction) }
}
