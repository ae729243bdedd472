//! Which job a request is: the same rows asked from the same bytes are the same job.

use serde::Serialize;
use sha2::{Digest, Sha256};
use std::path::{Component, Path, PathBuf};
use timelake_model::ids::slug;
use timelake_model::inventory::SourceObject;
use timelake_model::request::RowOptions;
use timelake_model::{BackfillRequest, Error, JobId, Result};

/// Hash of a value's JSON. Field order is that of the types, so it is stable.
pub fn json_hash(value: &impl Serialize) -> Result<String> {
    let bytes = serde_json::to_vec(value).map_err(|e| Error::internal(format!("cannot serialise: {e}")))?;
    Ok(Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect())
}

#[derive(Serialize)]
struct RequestIdentity<'a> {
    table_uuid: &'a str,
    rows: &'a RowOptions,
}

#[derive(Serialize)]
struct JobIdentity<'a> {
    request_hash: &'a str,
    objects: Vec<(&'a str, u64, &'a str)>,
}

/// Everything that decides the rows except the source's fingerprints. `--from big/` and `--from ./big` are the
/// same source.
pub fn request_hash(table_uuid: &str, request: &BackfillRequest, current_dir: &Path) -> Result<String> {
    let from = request.rows.from.iter().map(|typed| absolute(typed, current_dir)).collect();
    let rows = RowOptions { from, ..request.rows.clone() };
    json_hash(&RequestIdentity { table_uuid, rows: &rows })
}

/// The path as text, absolute, without `.` and `..` and doubled or trailing slashes. Reads nothing: a pattern
/// stays a pattern.
fn absolute(typed: &str, current_dir: &Path) -> String {
    if timelake_source::remote::scheme(typed).is_some() {
        return typed.trim_end_matches('/').to_string(); // keys are what they are
    }
    let mut out = PathBuf::new();
    for part in current_dir.join(typed).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out.display().to_string()
}

/// Table slug and 12 hex digits.
pub fn job_id(table: &str, request_hash: &str, objects: &[SourceObject]) -> Result<JobId> {
    let objects = objects.iter().map(|o| (o.uri.as_str(), o.size, o.fingerprint.as_str())).collect();
    let hash = json_hash(&JobIdentity { request_hash, objects })?;
    Ok(JobId(format!("{}-{}", slug(table), &hash[..12])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_follows_rows_and_bytes_and_nothing_else() {
        let object = |fingerprint: &str| SourceObject {
            uri: "/a".into(),
            shown: "a".into(),
            size: 1,
            fingerprint: fingerprint.into(),
            hive: Default::default(),
        };
        let mut request = BackfillRequest { table: "iot.sensor".into(), rows: Default::default(), run: Default::default() };
        let hash = request_hash("u", &request, Path::new("/d")).unwrap();
        let id = job_id("iot.sensor", &hash, &[object("1")]).unwrap();
        assert!(id.0.starts_with("iot-sensor-") && id.0.len() == 23, "{id}");
        assert_ne!(id, job_id("iot.sensor", &hash, &[object("2")]).unwrap());
        request.run.threads = 7;
        assert_eq!(hash, request_hash("u", &request, Path::new("/d")).unwrap());
        let spelled = |from: &str, at: &str| {
            let mut request = request.clone();
            request.rows.from = vec![from.into()];
            request_hash("u", &request, Path::new(at)).unwrap()
        };
        assert_eq!(spelled("big/", "/d"), spelled("../d/./big", "/d"));
        assert_eq!(spelled("big/*.parquet", "/d"), spelled("/d/big/*.parquet", "/e"));
        assert_ne!(spelled("big", "/d"), spelled("big", "/e"));
        assert_eq!(spelled("s3://b/big", "/d"), spelled("s3://b/big/", "/e"));
        assert_ne!(spelled("s3://b/big", "/d"), spelled("s3://b/./big", "/d"));
        request.rows.hive = true;
        assert_ne!(hash, request_hash("u", &request, Path::new("/d")).unwrap());
        assert_ne!(hash, request_hash("v", &request, Path::new("/d")).unwrap());
    }
}
