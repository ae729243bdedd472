//! Which files a table still refers to.

use crate::errors::from_iceberg;
use crate::snapshot::manifests_of;
use iceberg::table::Table;
use std::collections::HashSet;
use timelake_model::Result;

/// Those of `wanted` that any snapshot in the table's metadata refers to: as its manifest list, as a manifest, or as a
/// data or delete file, alive or removed (a snapshot that removes a file can be rolled back). Reads every manifest once.
pub async fn referenced(table: &Table, wanted: &HashSet<String>) -> Result<HashSet<String>> {
    let mut found = HashSet::new();
    let mut looked_at = HashSet::new();
    // The crate keeps them in no order; the same table is read in the same one.
    let mut snapshots: Vec<_> = table.metadata().snapshots().collect();
    snapshots.sort_by_key(|s| (s.sequence_number(), s.snapshot_id()));
    for snapshot in snapshots {
        if wanted.contains(snapshot.manifest_list()) {
            found.insert(snapshot.manifest_list().to_string());
        }
        for manifest in manifests_of(table, snapshot).await? {
            if !looked_at.insert(manifest.manifest_path.clone()) {
                continue;
            }
            let what = format!("reading the manifest {}", manifest.manifest_path);
            let entries = manifest.load_manifest(table.file_io()).await.map_err(|e| from_iceberg(e, &what))?;
            let paths = entries.entries().iter().map(|e| e.file_path()).chain([manifest.manifest_path.as_str()]);
            found.extend(paths.filter(|path| wanted.contains(*path)).map(str::to_string));
        }
    }
    Ok(found)
}
