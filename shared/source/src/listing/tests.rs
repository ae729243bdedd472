use super::*;
use std::os::unix::fs::symlink;

fn tree(paths: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for path in paths {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"PAR1").unwrap();
    }
    dir
}

fn shown(from: &[&str], dir: &tempfile::TempDir) -> Vec<String> {
    let from: Vec<String> = from.iter().map(|text| text.to_string()).collect();
    list(&from, &Sources::local(), dir.path(), false, None).unwrap().into_iter().map(|object| object.shown).collect()
}

fn refused(from: &str, dir: &tempfile::TempDir) -> Error {
    list(&[from.to_string()], &Sources::local(), dir.path(), false, None).unwrap_err()
}

#[test]
fn files_folders_and_patterns_in_the_order_typed_then_by_bytes() {
    let dir = tree(&[
        "b/2.parquet",
        "b/10.parquet",
        "b/sub/1.parquet",
        "b/_SUCCESS",
        "b/.hidden.parquet",
        "b/_temporary/x.parquet",
        "a.parquet",
        "b/blob",
    ]);
    fs::write(dir.path().join("b/readme.txt"), b"text").unwrap();
    assert_eq!(shown(&["b", "a.parquet"], &dir), ["b/10.parquet", "b/2.parquet", "b/blob", "b/sub/1.parquet", "a.parquet"]);
    assert_eq!(shown(&["b/*.parquet"], &dir), ["b/10.parquet", "b/2.parquet"]);
    assert_eq!(shown(&["**/*.parquet"], &dir), ["a.parquet", "b/10.parquet", "b/2.parquet", "b/sub/1.parquet"]);
    assert_eq!(shown(&["b/[0-9].parquet", "./b/?.parquet", "b"], &dir), ["b/2.parquet", "b/10.parquet", "b/blob", "b/sub/1.parquet"]);
    assert_eq!(shown(&["b/su*"], &dir), ["b/sub/1.parquet"]);
    let absolute = dir.path().join("b/*.parquet").display().to_string();
    assert_eq!(shown(&[&absolute], &dir).len(), 2);
}

#[test]
fn a_path_that_exists_wins_over_its_reading_as_a_pattern() {
    let dir = tree(&["[1].parquet", "1.parquet"]);
    assert_eq!(shown(&["[1].parquet"], &dir), ["[1].parquet"]);
    assert_eq!(shown(&["[12].parquet"], &dir), ["1.parquet"]);
}

#[test]
fn what_is_missing_is_named_with_a_hint() {
    let dir = tree(&["export.parquet", "empty/x.txt"]);
    fs::write(dir.path().join("empty/x.txt"), b"no").unwrap();
    let error = refused("exprot.parquet", &dir);
    assert_eq!((error.reason, error.hint.as_deref()), (Reason::PathNotFound, Some("did you mean export.parquet?")));
    assert_eq!(refused("*.csv", &dir).reason, Reason::NoInputFiles);
    assert_eq!(refused("nowhere/*.parquet", &dir).reason, Reason::NoInputFiles);
    assert_eq!(refused("empty", &dir).reason, Reason::NoInputFiles);
    assert_eq!(refused("s3://bucket/x", &dir).reason, Reason::NotYetSupported);
}

#[test]
fn links_in_circles_and_dead_links_are_errors_and_a_link_to_a_file_is_the_file() {
    let dir = tree(&["a/1.parquet"]);
    symlink("1.parquet", dir.path().join("a/2.parquet")).unwrap();
    assert_eq!(shown(&["a"], &dir), ["a/1.parquet"]);
    symlink("..", dir.path().join("a/loop")).unwrap();
    assert_eq!(refused("a", &dir).reason, Reason::PathNotReadable);
    assert_eq!(refused("**/*.parquet", &dir).reason, Reason::PathNotReadable);
    symlink("gone", dir.path().join("dead.parquet")).unwrap();
    assert_eq!(refused("dead.parquet", &dir).reason, Reason::PathNotReadable);
}

#[test]
fn sockets_are_refused() {
    let dir = tree(&["a/1.parquet"]);
    let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("a/s.parquet")).unwrap();
    assert_eq!(refused("a/s.parquet", &dir).reason, Reason::PathNotReadable);
    assert_eq!(refused("a", &dir).reason, Reason::PathNotReadable);
}

#[test]
fn an_iceberg_table_is_not_a_folder_of_parquet() {
    let dir = tree(&["t/data/1.parquet", "t/metadata/1-a.metadata.json", "data/2.parquet"]);
    for from in ["t", "t/data", "t/data/*.parquet", "**/*.parquet"] {
        assert_eq!(refused(from, &dir).reason, Reason::IcebergFolder, "{from}");
    }
    assert_eq!(shown(&["data"], &dir), ["data/2.parquet"]);
}

#[test]
fn hive_values_are_decoded_once() {
    let dir = tree(&[
        "good/site=Halle%207/date=2024-05-01/p.parquet",
        "good/site=A%2FB/p.parquet",
        "good/site=%2541/p.parquet",
        "good/site=__HIVE_DEFAULT_PARTITION__/p.parquet",
    ]);
    let sites = |from: &str| -> Vec<Option<String>> {
        list(&[from.to_string()], &Sources::local(), dir.path(), true, None)
            .unwrap()
            .into_iter()
            .map(|object| object.hive["site"].clone())
            .collect()
    };
    let right = vec![Some("%41".to_string()), Some("A/B".to_string()), Some("Halle 7".to_string()), None];
    assert_eq!(sites("good"), right);
    assert_eq!(sites("good/**/*.parquet"), right);
    assert_eq!(sites("good/site=A*"), [Some("A/B".to_string())]);
    assert_eq!(sites("good/site=A%2FB"), [Some("A/B".to_string())], "a folder typed by the shell counts as one found by a pattern");
    assert_eq!(sites("good/site=A%2FB/p.parquet"), [Some("A/B".to_string())]);
}

#[test]
fn a_changed_file_is_noticed() {
    let dir = tree(&["a.parquet"]);
    let object = list(&["a.parquet".to_string()], &Sources::local(), dir.path(), false, None).unwrap().remove(0);
    verify_pin(&object).unwrap();
    let path = dir.path().join("a.parquet");
    File::options().write(true).open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(verify_pin(&object).unwrap_err().reason, Reason::SourceChanged);
    fs::write(&path, b"PAR1PAR1").unwrap();
    assert_eq!(verify_pin(&object).unwrap_err().reason, Reason::SourceChanged);
    fs::remove_file(&path).unwrap();
    assert_eq!(verify_pin(&object).unwrap_err().reason, Reason::SourceChanged);
}
