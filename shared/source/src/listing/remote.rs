//! Objects of a store behind `--from`: a key, a prefix (read as a folder) or a pattern.
//!
//! The same rules as for local files, but a name alone says whether an object below a prefix is meant: looking into each
//! would be a request each.

use super::{Found, Listing, MAX_ENTRIES, compile, hive_values, iceberg_folder, is_hidden, no_input_files, parents_of, too_many};
use crate::kind::is_meant_by_name;
use crate::remote::{RemoteObject, RemoteStore};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use timelake_model::{Error, Reason, Result, SourceObject};

/// Names looked at to find a table's metadata file.
const METADATA_NAMES: usize = 10_000;

impl Listing<'_> {
    pub(super) fn add_remote(&mut self, store: &Arc<dyn RemoteStore>, typed: &str) -> Result<()> {
        let mut denied = None;
        if !typed.ends_with('/') {
            match store.find(typed) {
                // A key that exists wins over its reading as a pattern or a folder.
                Ok(Some(object)) => return self.push_remote(object),
                Ok(None) => {}
                // Rights on what is below a prefix are none on a key of that name.
                Err(error) if error.reason == Reason::AccessDenied => denied = Some(error),
                Err(error) => return Err(error),
            }
        }
        let is_pattern = typed.contains(['*', '?', '[']);
        let listed = if is_pattern { self.remote_glob(store, typed) } else { self.remote_folder(store, typed) };
        let (root, found) = match (listed, denied.take()) {
            (Err(error), Some(first)) if error.reason == Reason::AccessDenied => return Err(first),
            (listed, first) => {
                denied = first;
                listed?
            }
        };
        if found.is_empty() {
            return Err(if let Some(error) = denied {
                error
            } else if is_pattern {
                no_input_files(typed, "matches no objects")
            } else if store.list(&root, 1)?.is_empty() {
                Error::not_found(Reason::PathNotFound, format!("there is neither an object {typed} nor one below {root}"))
                    .hint("check bucket and key; a part of a name is no folder: add * to match names that start so")
                    .at(|place| place.file = Some(typed.into()))
            } else {
                self.holds_none(typed)
            });
        }
        refuse_tables(store.as_ref(), &root, &found)?;
        found.into_iter().try_for_each(|object| self.push_remote(object))
    }

    fn remote_folder(&self, store: &Arc<dyn RemoteStore>, typed: &str) -> Result<(String, Vec<RemoteObject>)> {
        let root = format!("{}/", typed.trim_end_matches('/'));
        let mut found = all(store.as_ref(), &root, typed)?;
        found.retain(|object| {
            let below = &object.uri[root.len()..];
            !below.split('/').any(is_hidden) && is_meant_by_name(Path::new(&object.uri), self.format)
        });
        Ok((root, found))
    }

    fn remote_glob(&self, store: &Arc<dyn RemoteStore>, typed: &str) -> Result<(String, Vec<RemoteObject>)> {
        let matcher = compile(typed)?;
        let wild = typed.find(['*', '?', '[', '{', '\\']).unwrap_or(typed.len());
        let root = &typed[..typed[..wild].rfind('/').map_or(0, |slash| slash + 1)];
        let wants_hidden = typed[root.len()..].split('/').any(|part| part.starts_with(['.', '_']));
        let mut found = all(store.as_ref(), &typed[..wild], typed)?;
        found.retain(|object| {
            (wants_hidden || !object.uri[root.len()..].split('/').any(is_hidden))
                && !object.uri.ends_with('/')
                && (matcher.is_match(&object.uri) || self.is_below_match(&matcher, object, root))
        });
        Ok((root.to_string(), found))
    }

    /// Of a folder that matches, the files that are meant match too.
    fn is_below_match(&self, matcher: &globset::GlobMatcher, object: &RemoteObject, root: &str) -> bool {
        let folders = object.uri.char_indices().filter(|(at, letter)| *letter == '/' && *at > root.len());
        is_meant_by_name(Path::new(&object.uri), self.format) && folders.into_iter().any(|(at, _)| matcher.is_match(&object.uri[..at]))
    }

    fn push_remote(&mut self, object: RemoteObject) -> Result<()> {
        let path = PathBuf::from(&object.uri);
        if !self.seen.insert(path.clone()) {
            return Ok(());
        }
        let RemoteObject { uri, size, fingerprint } = object;
        let file = Found { path, folders: parents_of(&uri), shown: uri.clone() };
        let hive = if self.hive { hive_values(&file)? } else { BTreeMap::new() };
        self.objects.push(SourceObject { uri, shown: file.shown, size, fingerprint, hive });
        Ok(())
    }
}

fn all(store: &dyn RemoteStore, prefix: &str, typed: &str) -> Result<Vec<RemoteObject>> {
    let found = store.list(prefix, MAX_ENTRIES + 1)?;
    if found.len() > MAX_ENTRIES {
        return Err(too_many(typed));
    }
    Ok(found)
}

/// Refuses data files of Iceberg tables: at the root or above it, or in a `data` folder below it.
fn refuse_tables(store: &dyn RemoteStore, root: &str, found: &[RemoteObject]) -> Result<()> {
    let bucket = root.find("://").and_then(|at| root[at + 3..].find('/').map(|slash| at + 3 + slash)).unwrap_or(root.len());
    let mut folders: BTreeSet<&str> =
        root.char_indices().filter(|(at, c)| *c == '/' && *at >= bucket).map(|(at, _)| &root[..=at]).collect();
    for object in found {
        let below = object.uri.match_indices("/data/").filter(|(at, _)| *at >= bucket).map(|(at, _)| &object.uri[..=at]);
        folders.extend(below);
    }
    for folder in folders {
        let is_table = store.list(&format!("{folder}metadata/"), METADATA_NAMES)?.iter().any(|o| o.uri.ends_with(".metadata.json"))
            && !store.list(&format!("{folder}data/"), 1)?.is_empty();
        let inside = found.iter().find(|object| object.uri.starts_with(folder));
        if let Some(object) = inside.filter(|_| is_table) {
            return Err(iceberg_folder(&object.uri, folder));
        }
    }
    Ok(())
}
