//! What a landed run has besides the table's columns.

use timelake_model::Column;

/// Name of the column that holds each row's place in its source: the physical line of a text file, the data row of any
/// other. The table's own columns come first, so the name gives way to theirs.
pub fn place_column(columns: &[Column]) -> String {
    let mut name = "_source_row".to_string();
    while columns.iter().any(|column| column.name.eq_ignore_ascii_case(&name)) {
        name.push('_');
    }
    name
}
