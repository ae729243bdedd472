//! The built command, as a shell sees it: which stream, which exit code. Only what needs no source.

use std::process::{Command, Output, Stdio};

fn timelake(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_timelake")).args(words).env_remove("TIMELAKE_LAKE").stdin(Stdio::null()).output().unwrap()
}
fn texts(output: &Output) -> (String, String, i32) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr), output.status.code().unwrap())
}

#[test]
fn help_and_version_are_answers() {
    for words in [
        &["--help"][..],
        &["--version"],
        &["backfill", "--help"],
        &["backfill", "list", "--help"],
        &["--json", "--help"],
        &["help"],
        &["backfill", "help"],
        &["table", "help", "list"],
    ] {
        let (stdout, stderr, code) = texts(&timelake(words));
        assert_eq!((code, stderr.as_str()), (0, ""), "{words:?}");
        assert!(stdout.contains("timelake"), "{words:?}");
        assert!(!stdout.contains('\x1b'), "no colors in a pipe: {words:?}");
    }
}

#[test]
fn misspelt_words_are_guessed() {
    for (words, guess) in [
        (&["backfill", "iot.sensor", "--fromm", "x"][..], "--from"),
        (&["backfill", "lst"], "timelake backfill list"),
        (&["backfill", "pubish", "x"], "timelake backfill publish"),
        (&["backfill", "iot/s", "--from", "x"], "iot.s"),
        (&["backfill", "iot.s", "--from", "x", "--ambiguous", "latter"], "later"),
        (&["tabel"], "table"),
        (&["table", "shw", "iot.s"], "show"),
        (&["backfill", "sensor", "--from", "x"], "iot.sensor"),
    ] {
        let (stdout, stderr, code) = texts(&timelake(words));
        assert_eq!((code, stdout.as_str()), (2, ""), "{words:?}");
        assert!(stderr.contains(guess), "{words:?}: {stderr}");
    }
}

#[test]
fn with_json_every_refusal_is_one_object_on_stdout() {
    for words in [
        &["backfill", "iot.sensor", "--fromm", "x", "--json"][..],
        &["--json", "backfill", "lst"],
        &["--json", "backfill", "pubish", "x"],
        &["--json", "backfill", "iot.sensor"],
        &["--json", "tabel"],
        &["--json", "backfill"],
        &["--json", "backfill", "iot.s", "--from", "x", "--memory", "2"],
        &["--json", "--lake", "aws:x", "backfill", "list"],
        &["--json", "table", "create", "sensor", "--columns", "ts:date", "--time-column", "ts", "--series-key", "d"],
    ] {
        let (stdout, stderr, code) = texts(&timelake(words));
        assert_eq!((code, stderr.as_str()), (2, ""), "{words:?}");
        let value: serde_json::Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{words:?}: {e}: {stdout}"));
        assert_eq!(value["error"]["kind"], "invalid", "{words:?}");
        assert!(value["error"]["hint"].is_string(), "{words:?}");
    }
}

#[test]
fn a_request_that_cannot_be_met_leaves_no_lake() {
    let lake = std::env::temp_dir().join(format!("timelake-no-lake-{}", std::process::id()));
    let path = lake.display().to_string();
    let create = |columns, partition| {
        let words = ["--lake", &path, "table", "create", "iot.s", "--time-column", "ts", "--series-key", "d", "--columns", columns];
        texts(&timelake(&words.into_iter().chain(["--partition", partition]).collect::<Vec<_>>()))
    };
    for (columns, partition, part) in [
        ("ts:timestampz,d:string", "day(ts)", "did you mean timestamptz?"),
        ("ts:timestamptz,d:decimal(40,2)", "day(ts)", "at most 38"),
        ("ts:timestamptz,e:string", "day(ts)", "key column"),
        ("ts:timestamptz,d:string", "week(ts)", "--partition"),
    ] {
        let (stdout, stderr, code) = create(columns, partition);
        assert_eq!((code, stdout.as_str()), (2, ""), "{columns} {partition}");
        assert!(stderr.contains(part), "{columns} {partition}: {stderr}");
        assert!(!lake.exists(), "{columns} {partition}");
    }
    let (_, stderr, code) = texts(&timelake(&["--lake", &path, "backfill", "iot.s", "--from", "x"]));
    assert_eq!((code, lake.exists()), (2, false), "{stderr}");
}

#[test]
fn the_tables_of_a_lake_are_listed_and_guessed() {
    let lake = std::env::temp_dir().join(format!("timelake-tables-{}", std::process::id()));
    let path = lake.display().to_string();
    let run = |words: &[&str]| texts(&timelake(&["--lake", &path].into_iter().chain(words.iter().copied()).collect::<Vec<_>>()));
    let columns = "ts:timestamptz,device_id:string,value:double";
    let (_, stderr, code) =
        run(&["table", "create", "iot.sensor", "--columns", columns, "--time-column", "ts", "--series-key", "device_id"]);
    assert_eq!(code, 0, "{stderr}");

    let (stdout, _, code) = run(&["table", "list", "--json"]);
    let tables: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &tables["tables"][0]["name"], &tables["tables"][0]["contract"]), (0, &"iot.sensor".into(), &true.into()));
    let (stdout, _, _) = run(&["table", "show", "iot.sensor", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let metadata = shown["metadata_location"].as_str().unwrap().strip_prefix("file://").unwrap();
    assert!(std::path::Path::new(metadata).is_file(), "{metadata}");

    for (words, part) in [
        (&["backfill", "list", "iot.snsor"][..], "did you mean iot.sensor?"),
        (&["backfill", "iot.snsor", "--from", "x"], "did you mean iot.sensor?"),
        (&["table", "show", "plant.boiler"], "timelake table list"),
        (&["backfill", "iot.sensor", "--from", "x", "--on-source-conflict", "newest", "--version-column", "v"], "ts, device_id, value"),
    ] {
        let (stdout, stderr, code) = run(words);
        assert_eq!((code, stdout.as_str()), (2, ""), "{words:?}");
        assert!(stderr.contains(part), "{words:?}: {stderr}");
    }
    assert_eq!(run(&["backfill", "list", "iot.sensor"]).0, "no jobs\n");
    std::fs::remove_dir_all(&lake).unwrap();
}
