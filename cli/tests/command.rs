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
        ("ts:timestamptz,d:string,value:int", "day(ts),bucket(4,valu)", "did you mean value?"),
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
        (
            &["backfill", "iot.sensor", "--from", "x", "--on-source-conflict", "newest", "--version-column", "valeu"],
            "did you mean value? columns of iot.sensor: ts, device_id, value",
        ),
        (&["table", "contract", "iot.sensor", "--series-key", "devise_id"], "did you mean device_id?"),
        (&["backfill", "iot.sensor", "--from", "Cargo.toml", "--format", "csv", "--tz", "Europe/Berln"], "did you mean Europe/Berlin?"),
        (&["backfill", "iot.sensor", "--from", "Cargo.toml", "--format", "csv", "--set", "vlaue=1"], "did you mean value?"),
        (&["backfill", "iot.sensor", "--from", "Cargo.tml", "--format", "csv"], "did you mean Cargo.toml?"),
    ] {
        let (stdout, stderr, code) = run(words);
        assert_eq!((code, stdout.as_str()), (2, ""), "{words:?}");
        assert!(stderr.contains(part), "{words:?}: {stderr}");
    }
    assert_eq!(run(&["backfill", "list", "iot.sensor"]).0, "no jobs\n");
    std::fs::remove_dir_all(&lake).unwrap();
}

#[test]
fn a_saved_request_is_loaded_and_overridden() {
    let folder = std::env::temp_dir().join(format!("timelake-request-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, lake) = (folder.join("r.json").display().to_string(), folder.join("lake").display().to_string());
    let save = |words: &[&str]| texts(&timelake(&[&["backfill"], words].concat()));
    let (stdout, stderr, code) = save(&["iot.sensor", "--from", "a", "--tz", "Europe/Berlin", "--hive", "--save-request", &file]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(stdout, format!("  next: timelake backfill --request {file}\n"));

    // What is saved from a saved one beside options is the request that would run.
    let saved = |words: &[&str]| -> serde_json::Value {
        let (stdout, stderr, code) = save(&[words, &["--save-request", "-"]].concat());
        assert_eq!((code, stderr.as_str()), (0, ""));
        serde_json::from_str(&stdout).unwrap()
    };
    let again = saved(&["--request", &file]);
    assert_eq!(again, serde_json::from_str::<serde_json::Value>(&std::fs::read_to_string(&file).unwrap()).unwrap());
    let other = saved(&["iot.other", "--request", &file, "--tz", "UTC", "--from", "b"]);
    assert_eq!((&other["table"], &other["rows"]["tz"], &other["rows"]["from"]), (&"iot.other".into(), &"UTC".into(), &["b"][..].into()));
    assert_eq!((&other["rows"]["hive"], &other["run"]["threads"]), (&true.into(), &serde_json::Value::Null));

    // It runs nothing when saved, and everything when loaded.
    assert!(!std::path::Path::new(&lake).exists());
    let (_, stderr, code) = texts(&timelake(&["--lake", &lake, "backfill", "--request", &file]));
    assert!(code == 2 && stderr.contains("there is no lake at"), "{stderr}");

    std::fs::write(&file, "{\"table\": \"iot.sensor\", \"rows\": {\"zone\": \"UTC\", \"form\": []}}").unwrap();
    let (stdout, _, code) = texts(&timelake(&["--json", "backfill", "--request", &file]));
    let error = serde_json::from_str::<serde_json::Value>(&stdout).unwrap()["error"].clone();
    assert_eq!((code, &error["file"], &error["line"], &error["option"]), (2, &file.as_str().into(), &1.into(), &"--request".into()));
    let (_, stderr, code) = texts(&timelake(&["backfill", "list", "--request", &file]));
    assert_eq!(code, 2, "{stderr}");
    let (_, stderr, code) = texts(&timelake(&["backfill", "--request", "no/such.json"]));
    assert!(code == 2 && stderr.contains("--save-request FILE writes one"), "{stderr}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn completions_and_pages_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let (script, stderr, code) = texts(&timelake(&["completions", shell]));
        assert_eq!((code, stderr.as_str()), (0, ""));
        for word in ["backfill", "contract", "only-missing", "quarantine"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let (_, stderr, code) = texts(&timelake(&["completions", "bsh"]));
    assert!(code == 2 && stderr.contains("bash"), "{stderr}");

    let (page, _, code) = texts(&timelake(&["man", "backfill", "report"]));
    assert_eq!(code, 0);
    assert!(page.contains(".TH timelake-backfill-report 1") && page.contains("timelake 0."), "{page}");
    let (page, _, _) = texts(&timelake(&["man", "backfill"]));
    assert!(page.contains(".SH EXAMPLES\n.nf\nExamples:\n") && !page.contains("EXTRA"), "{page}");
    let (_, stderr, code) = texts(&timelake(&["man", "backfill", "repot"]));
    assert!(code == 2 && stderr.contains("did you mean report?"), "{stderr}");
    let folder = std::env::temp_dir().join(format!("timelake-man-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (stdout, _, code) = texts(&timelake(&["man", "--dir", &folder.display().to_string()]));
    assert_eq!((code, stdout.lines().count()), (0, std::fs::read_dir(&folder).unwrap().count()));
    assert!(stdout.contains("timelake.1\n") && stdout.contains("timelake-backfill-gc.1\n"), "{stdout}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The words that bash offers after these, as its users get them.
#[test]
fn bash_completes_verbs_options_and_choices() {
    let (script, _, _) = texts(&timelake(&["completions", "bash"]));
    for (words, offered) in [
        ("timelake backfill st", "status"),
        ("timelake backfill x.y --only-", "--only-missing"),
        ("timelake backfill --ambiguous e", "error"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
        let ask = format!(
            "{script}\nCOMP_WORDS=({}); COMP_CWORD={}; _timelake timelake '{last}' '{before}'; echo \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len() - 1
        );
        let Ok(output) = Command::new("bash").args(["-c", &ask]).stdin(Stdio::null()).output() else { return }; // a machine without bash
        let (stdout, stderr, _) = texts(&output);
        assert!(stdout.split_whitespace().any(|word| word == offered), "{words:?}: {stdout}{stderr}");
    }
}

#[test]
fn the_version_names_the_commit_where_there_is_one() {
    let (stdout, _, _) = texts(&timelake(&["--version"]));
    let version = stdout.trim().strip_prefix(&format!("timelake {}", env!("CARGO_PKG_VERSION"))).unwrap();
    let commit = version.trim().trim_matches(['(', ')']);
    assert!(version.is_empty() || commit.len() == 12 && commit.chars().all(|c| c.is_ascii_hexdigit()), "{stdout}");
}
