//! `--from` texts → source objects, pinned by size and mtime.
//!
//! Takes files, folders and globs as typed, gives each file once, in the order typed, then by path bytes. Must never
//! pass over a typed path silently, follow a symlink in circles, or take the data files of an Iceberg table for plain
//! Parquet (deleted rows would come back).

use crate::kind::{has_data_name, is_meant, judge_file};
use crate::mapping::Format;
use crate::remote::{Sources, scheme};
use globset::{GlobBuilder, GlobMatcher};
use percent_encoding::percent_decode_str;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use timelake_model::similar::nearest;
use timelake_model::{Error, Reason, Result, SourceObject};
use walkdir::WalkDir;

mod remote;

/// Entries looked at for one `--from`; more is a mistyped root.
const MAX_ENTRIES: usize = 2_000_000;
/// Folders deep.
const MAX_DEPTH: usize = 64;
/// What Hive writes for NULL.
pub const HIVE_DEFAULT_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";

/// Lists the source. `hive`: reads the `name=value` folders of each path as typed and below. `format`: what files are
/// whose names do not say it.
pub fn list(from: &[String], sources: &Sources, current_dir: &Path, hive: bool, format: Option<Format>) -> Result<Vec<SourceObject>> {
    let mut listing = Listing { sources, current_dir, hive, format, objects: Vec::new(), seen: HashSet::new(), iceberg: HashMap::new() };
    for typed in from {
        listing.add(typed)?;
    }
    Ok(listing.objects)
}

/// Checks that a local file still is the one of the inventory. Objects of a store are checked by each of their reads.
pub fn verify_pin(object: &SourceObject) -> Result<()> {
    if scheme(&object.uri).is_some() {
        return Ok(());
    }
    let changed = |how: String| {
        Error::conflict(Reason::SourceChanged, format!("{} changed since it was planned: {how}", object.shown))
            .hint("let the source come to rest, then run the command again: a changed source is a new job")
            .at(|place| place.file = Some(object.shown.clone()))
    };
    match fs::metadata(&object.uri) {
        Ok(found) if found.len() != object.size => Err(changed(format!("{} bytes, now {}", object.size, found.len()))),
        Ok(found) if fingerprint(&found) != object.fingerprint => Err(changed("its modification time differs".into())),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(changed("it is gone".into())),
        Err(error) => Err(not_readable(&object.shown, &error.to_string())),
    }
}

fn fingerprint(metadata: &Metadata) -> String {
    (i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())).to_string()
}

fn not_readable(shown: &str, why: &str) -> Error {
    Error::invalid(Reason::PathNotReadable, format!("{shown} cannot be read: {why}"))
        .hint("check its kind and permissions, or name another path with --from")
        .at(|place| place.file = Some(shown.into()))
}

fn no_input_files(typed: &str, what: &str) -> Error {
    Error::not_found(Reason::NoInputFiles, format!("{typed} {what}"))
        .hint("look at the path with ls; quote a pattern so that the shell leaves it alone; hidden files and names with a leading _ are passed over")
        .at(|place| place.pattern = Some(typed.into()))
}

struct Listing<'a> {
    sources: &'a Sources,
    current_dir: &'a Path,
    hive: bool,
    format: Option<Format>,
    objects: Vec<SourceObject>,
    /// Real paths listed so far.
    seen: HashSet<PathBuf>,
    /// Folders known to hold (or not to hold) an Iceberg table.
    iceberg: HashMap<PathBuf, bool>,
}

/// A file found below a root: how it is shown, and the folder parts that may carry Hive values.
struct Found {
    path: PathBuf,
    shown: String,
    folders: Vec<String>,
}

impl Listing<'_> {
    fn add(&mut self, typed: &str) -> Result<()> {
        if typed.is_empty() {
            return Err(Error::not_found(Reason::PathNotFound, "--from is empty").hint("name a file, a folder or a pattern"));
        }
        if typed.starts_with("iceberg:") {
            return Err(Error::invalid(Reason::NotYetSupported, format!("{typed}: tables are no sources yet"))
                .hint("export the table to Parquet files and name those")
                .at(|place| place.option = Some("--from".into())));
        }
        if let Some(store) = self.sources.remote(typed)? {
            return self.add_remote(&store.clone(), typed);
        }
        let path = self.current_dir.join(typed);
        // A path that exists wins over its reading as a pattern.
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {
                let folders = parents_of(typed);
                self.push(Found { path, shown: typed.to_string(), folders })
            }
            Ok(metadata) if metadata.is_dir() => {
                let found = self.folder(&path, typed)?;
                if found.is_empty() {
                    return Err(self.holds_none(typed));
                }
                self.push_sorted(found)
            }
            Ok(_) => Err(not_readable(typed, "it is neither a file nor a folder (a pipe, socket or device)")),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                if typed.contains(['*', '?', '[']) {
                    let found = self.glob(typed)?;
                    if found.is_empty() {
                        return Err(no_input_files(typed, "matches no files"));
                    }
                    self.push_sorted(found)
                } else {
                    Err(self.path_not_found(typed, &path))
                }
            }
            Err(error) => Err(not_readable(typed, &error.to_string())),
        }
    }

    fn holds_none(&self, typed: &str) -> Error {
        let what = match self.format {
            None => "holds no Parquet or CSV files",
            Some(Format::Parquet) => "holds no Parquet files",
            Some(Format::Csv) => "holds no text files",
        };
        let error = no_input_files(typed, what);
        match self.format {
            None => error.hint("look at the path with ls; delimited text with other names (.txt, none) needs --format csv"),
            Some(_) => error,
        }
    }

    fn path_not_found(&self, typed: &str, path: &Path) -> Error {
        if fs::symlink_metadata(path).is_ok() {
            return not_readable(typed, "it is a symbolic link that leads nowhere");
        }
        let siblings: Vec<String> = path
            .parent()
            .and_then(|parent| fs::read_dir(parent).ok())
            .map(|entries| entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).take(10_000).collect())
            .unwrap_or_default();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(typed);
        let hint = match nearest(name, siblings.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean {}?", Path::new(typed).with_file_name(meant).display()),
            None => format!("relative paths start at {}", self.current_dir.display()),
        };
        Error::not_found(Reason::PathNotFound, format!("{typed} does not exist")).hint(hint).at(|place| place.file = Some(typed.into()))
    }

    /// Parquet and CSV files below a folder: by name, or by their first bytes.
    fn folder(&self, root: &Path, typed: &str) -> Result<Vec<Found>> {
        let shown_root = typed.trim_end_matches('/');
        let mut found = Vec::new();
        for (entries, entry) in WalkDir::new(root)
            .follow_links(true)
            .max_depth(MAX_DEPTH)
            .into_iter()
            .filter_entry(|entry| entry.depth() == 0 || !is_hidden(&entry.file_name().to_string_lossy()))
            .enumerate()
        {
            let entry = walked(entry, typed, entries)?;
            let relative = entry.path().strip_prefix(root).unwrap_or(entry.path());
            let shown = format!("{shown_root}/{}", relative.display());
            if entry.file_type().is_file() {
                if is_meant(entry.path(), self.format).map_err(|error| not_readable(&shown, &error.to_string()))? {
                    found.push(Found { path: entry.path().to_path_buf(), folders: parents_of(&shown), shown });
                }
            } else if !entry.file_type().is_dir() && has_data_name(entry.path()) {
                return Err(not_readable(&shown, "it is neither a file nor a folder (a pipe, socket or device)"));
            }
        }
        Ok(found)
    }

    fn glob(&self, typed: &str) -> Result<Vec<Found>> {
        let matcher = compile(typed)?;
        let (shown_root, rest) = split_root(typed);
        let root = if shown_root.as_os_str().is_empty() { self.current_dir.to_path_buf() } else { self.current_dir.join(&shown_root) };
        if !root.is_dir() {
            return Ok(Vec::new());
        }
        let depth = if rest.iter().any(|part| part == "**") { MAX_DEPTH } else { rest.len() };
        let wants_hidden = rest.iter().any(|part| part.starts_with(['.', '_']));
        let mut found = Vec::new();
        for (entries, entry) in WalkDir::new(&root)
            .follow_links(true)
            .max_depth(depth)
            .into_iter()
            .filter_entry(|entry| entry.depth() == 0 || wants_hidden || !is_hidden(&entry.file_name().to_string_lossy()))
            .enumerate()
        {
            let entry = walked(entry, typed, entries)?;
            let shown_path = shown_root.join(entry.path().strip_prefix(&root).unwrap_or(entry.path()));
            if entry.depth() == 0 || !matcher.is_match(&shown_path) {
                continue;
            }
            let shown = shown_path.to_string_lossy().into_owned();
            if entry.file_type().is_file() {
                found.push(Found { path: entry.path().to_path_buf(), folders: parents_of(&shown), shown });
            } else if entry.file_type().is_dir() {
                // With `**` the files of a matched folder match by themselves, or are not meant.
                if depth < MAX_DEPTH {
                    found.extend(self.folder(entry.path(), &shown)?);
                }
            } else {
                return Err(not_readable(&shown, "it is neither a file nor a folder (a pipe, socket or device)"));
            }
        }
        Ok(found)
    }

    fn push_sorted(&mut self, mut found: Vec<Found>) -> Result<()> {
        found.sort_by(|a, b| a.path.as_os_str().as_encoded_bytes().cmp(b.path.as_os_str().as_encoded_bytes()));
        for file in found {
            self.refuse_iceberg(&file)?;
            self.push(file)?;
        }
        Ok(())
    }

    fn push(&mut self, file: Found) -> Result<()> {
        let real = fs::canonicalize(&file.path).map_err(|error| not_readable(&file.shown, &error.to_string()))?;
        if !self.seen.insert(real.clone()) {
            return Ok(());
        }
        let metadata = fs::metadata(&file.path).map_err(|error| not_readable(&file.shown, &error.to_string()))?;
        File::open(&file.path).map_err(|error| not_readable(&file.shown, &error.to_string()))?;
        judge_file(&file.path, &file.shown, self.format)?;
        // The real path: one file is one source, however it is spelled.
        let uri = real.to_str().ok_or_else(|| not_readable(&file.shown, "its path is not UTF-8"))?.to_string();
        let hive = if self.hive { hive_values(&file)? } else { BTreeMap::new() };
        self.objects.push(SourceObject { uri, size: metadata.len(), fingerprint: fingerprint(&metadata), hive, shown: file.shown });
        Ok(())
    }

    /// Plain reading of an Iceberg table's data folder brings back deleted rows and doubles rewritten ones.
    fn refuse_iceberg(&mut self, file: &Found) -> Result<()> {
        for folder in file.path.ancestors().skip(1) {
            let is_table = match self.iceberg.get(folder) {
                Some(known) => *known,
                None => {
                    let is_table = folder.join("data").is_dir() && holds_table_metadata(&folder.join("metadata"));
                    self.iceberg.insert(folder.to_path_buf(), is_table);
                    is_table
                }
            };
            if is_table {
                return Err(iceberg_folder(&file.shown, &folder.display().to_string()));
            }
        }
        Ok(())
    }
}

fn iceberg_folder(shown: &str, folder: &str) -> Error {
    Error::invalid(Reason::IcebergFolder, format!("{shown} belongs to an Iceberg table ({folder})"))
        .hint("its data files alone also hold deleted and replaced rows: export the table to Parquet files and load those")
        .at(|place| place.file = Some(shown.into()))
}

fn walked(entry: walkdir::Result<walkdir::DirEntry>, typed: &str, entries: usize) -> Result<walkdir::DirEntry> {
    if entries >= MAX_ENTRIES {
        return Err(too_many(typed));
    }
    entry.map_err(|error| {
        let shown = error.path().map_or_else(|| typed.to_string(), |path| path.display().to_string());
        match error.loop_ancestor() {
            Some(ancestor) => not_readable(&shown, &format!("this symbolic link leads back to {}", ancestor.display())),
            None => not_readable(&shown, &error.io_error().map_or_else(|| error.to_string(), io::Error::to_string)),
        }
    })
}

fn too_many(typed: &str) -> Error {
    Error::invalid(Reason::PathNotReadable, format!("{typed} holds more than {MAX_ENTRIES} files and folders"))
        .hint("name a folder or pattern nearer to the files")
        .at(|place| place.limit = Some(MAX_ENTRIES as u64))
}

fn compile(typed: &str) -> Result<GlobMatcher> {
    GlobBuilder::new(typed).literal_separator(true).backslash_escape(true).build().map(|glob| glob.compile_matcher()).map_err(|error| {
        Error::invalid(Reason::InvalidOption, format!("--from {typed} is not a pattern: {}", error.kind()))
            .hint("patterns know * ? [a-z] and ** for any folders")
            .at(|place| {
                place.option = Some("--from".into());
                place.pattern = Some(typed.into());
            })
    })
}

/// The part of a pattern before its first wildcard folder, and the folders and name after it.
fn split_root(typed: &str) -> (PathBuf, Vec<String>) {
    let (mut root, mut rest) = (PathBuf::new(), Vec::new());
    for component in Path::new(typed).components() {
        let text = component.as_os_str().to_string_lossy();
        if rest.is_empty() && !text.contains(['*', '?', '[', '{', '\\']) {
            root.push(component);
        } else {
            rest.push(text.into_owned());
        }
    }
    (root, rest)
}

fn parents_of(shown: &str) -> Vec<String> {
    let parent = Path::new(shown).parent().unwrap_or(Path::new(""));
    parent
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect()
}

/// Names Spark passes over: hidden ones, and `_temporary`, `_SUCCESS` ... but not a Hive folder `_x=1`.
fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || (name.starts_with('_') && !name.contains('='))
}

fn holds_table_metadata(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(".metadata.json")))
}

fn hive_values(file: &Found) -> Result<BTreeMap<String, Option<String>>> {
    let decode = |text: &str| {
        percent_decode_str(text).decode_utf8().map(|text| text.into_owned()).map_err(|_| {
            Error::invalid(Reason::InvalidUtf8, format!("{}: the folder value {text} is not UTF-8", file.shown))
                .hint("rename the folder, or run without --hive")
                .at(|place| {
                    place.file = Some(file.shown.clone());
                    place.value = Some(text.into());
                })
        })
    };
    let mut values = BTreeMap::new();
    for (name, value) in file.folders.iter().filter_map(|folder| folder.split_once('=')) {
        let value = if value == HIVE_DEFAULT_PARTITION { None } else { Some(decode(value)?) };
        values.insert(decode(name)?, value);
    }
    Ok(values)
}

#[cfg(test)]
mod tests;
