//! `timelake.toml`: where lakes on AWS are. Takes the name of one; gives what its section says, or an error that names
//! the file and the key.

use std::path::{Path, PathBuf};
use timelake_aws::{CloudSettings, LakeSettings};
use timelake_model::similar::names_hint;
use timelake_model::{Error, Reason, Result};
use toml::Table;

const FILE: &str = "timelake.toml";
/// What writes a section of it.
const OUTPUT: &str = "`terraform -chdir=FOLDER output -raw timelake_toml` (FOLDER: where it was applied)";
/// Names another file.
pub const CONFIG_VARIABLE: &str = "TIMELAKE_CONFIG";
const HOME_VARIABLE: &str = "HOME";
/// No list of lakes comes near it; a wrong file is not read to its end.
const LONGEST_FILE_BYTES: u64 = 1 << 20;

/// A key of a lake's section: as functions are told it by their environment, if they are.
struct Key {
    name: &'static str,
    variable: Option<&'static str>,
    needed: bool,
    is_number: bool,
}

const fn key(name: &'static str, variable: Option<&'static str>, needed: bool) -> Key {
    Key { name, variable, needed, is_number: false }
}

impl Key {
    /// The value as functions are told it; `None`: it is of another kind, or empty.
    fn text(&self, value: &toml::Value) -> Option<String> {
        match value {
            toml::Value::Integer(number) if self.is_number => Some(number.to_string()),
            toml::Value::String(text) if !self.is_number && !text.trim().is_empty() => Some(text.clone()),
            _ => None,
        }
    }
}

/// All of them, as the output `timelake_toml` of the terraform modules writes them.
const KEYS: [Key; 12] = [
    key("region", None, true),
    key("endpoint_url", None, false),
    key("ledger_table", Some("TIMELAKE_LEDGER_TABLE"), true),
    key("work_queue_url", Some("TIMELAKE_WORK_QUEUE_URL"), true),
    key("land_close_queue_url", Some("TIMELAKE_LAND_CLOSE_QUEUE_URL"), true),
    key("close_queue_url", Some("TIMELAKE_CLOSE_QUEUE_URL"), true),
    key("refresh_queue_url", Some("TIMELAKE_REFRESH_QUEUE_URL"), true),
    key("warehouse", Some("TIMELAKE_WAREHOUSE"), true),
    key("jobs", Some("TIMELAKE_JOBS"), true),
    key("state_machine_arn", None, true),
    key("glue_database", Some("TIMELAKE_GLUE_DATABASE"), false),
    Key { is_number: true, ..key("writer_memory_mb", Some("TIMELAKE_WRITER_MEMORY_MB"), false) },
];

/// The lake of that name, by the file that is found from the current folder.
pub fn lake(name: &str) -> Result<LakeSettings> {
    let file = find(name)?;
    let text = read(&file)?;
    parse(&text, name).map_err(|error| {
        let shown = file.display().to_string();
        Error { message: format!("{shown}: {}", error.message), ..error }.at(|p| p.file = Some(shown))
    })
}

fn find(name: &str) -> Result<PathBuf> {
    let set = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(file) = set(CONFIG_VARIABLE) {
        return Ok(file);
    }
    let current = std::env::current_dir().unwrap_or_default();
    let of_home = set(HOME_VARIABLE).map(|home| home.join(".config/timelake").join(FILE));
    let found = current.ancestors().map(|folder| folder.join(FILE)).chain(of_home).find(|file| file.is_file());
    found.ok_or_else(|| {
        Error::invalid(Reason::InvalidOption, format!("where the lake aws:{name} is, is not known: there is no {FILE}"))
            .hint(format!(
                "write what {OUTPUT} prints into a {FILE} here, in a folder above or in ~/.config/timelake, or name one: {CONFIG_VARIABLE}"
            ))
            .at(|p| p.option = Some("--lake".into()))
    })
}

fn read(file: &Path) -> Result<String> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|opened| opened.take(LONGEST_FILE_BYTES).read_to_string(&mut text));
    read.map_err(|e| {
        let shown = file.display().to_string();
        Error::invalid(Reason::InvalidOption, format!("{shown} cannot be read: {e}"))
            .hint(format!("it says where lakes on AWS are; {CONFIG_VARIABLE} names it"))
            .at(|p| p.file = Some(shown))
    })?;
    Ok(text)
}

fn wrong(message: String, hint: impl Into<String>) -> Error {
    Error::invalid(Reason::InvalidOption, message).hint(hint).at(|p| p.option = Some("--lake".into()))
}

fn parse(text: &str, name: &str) -> Result<LakeSettings> {
    let file: Table = text.parse().map_err(|e: toml::de::Error| {
        let before = e.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let error = wrong(format!("this is no TOML: {}", e.message()), format!("it is to hold what {OUTPUT} prints"));
        error.at(|p| p.line = Some(before.matches('\n').count() as u64 + 1))
    })?;
    if let Some(other) = file.keys().find(|key| *key != "lakes") {
        return Err(wrong(format!("{other} is no known section"), names_hint(other, "known", &["lakes"])));
    }
    let lakes = match file.get("lakes") {
        Some(toml::Value::Table(lakes)) if !lakes.is_empty() => lakes,
        _ => return Err(wrong("there is no section [lakes.NAME]".into(), format!("{OUTPUT} prints one"))),
    };
    let Some(toml::Value::Table(lake)) = lakes.get(name) else {
        let names: Vec<&str> = lakes.keys().map(String::as_str).collect();
        return Err(wrong(format!("there is no lake {name}: no section [lakes.{name}]"), names_hint(name, "lakes", &names)));
    };
    settings(lake, name)
}

fn settings(lake: &Table, name: &str) -> Result<LakeSettings> {
    let section = format!("[lakes.{name}]");
    let names = KEYS.map(|key| key.name);
    if let Some(other) = lake.keys().find(|key| !names.contains(&key.as_str())) {
        return Err(wrong(format!("{section} has an unknown key {other}"), names_hint(other, "known", &names)));
    }
    let get = |key: &Key| lake.get(key.name).and_then(|value| key.text(value));
    if let Some(Key { name, is_number, .. }) = KEYS.iter().find(|key| lake.contains_key(key.name) && get(key).is_none()) {
        let (kind, example) = if *is_number { ("whole number", "1769") } else { ("text", "\"...\"") };
        return Err(wrong(format!("{name} of {section} is no {kind}"), format!("write {name} = {example}")));
    }
    if let Some(key) = KEYS.iter().find(|key| key.needed && !lake.contains_key(key.name)) {
        return Err(wrong(format!("{section} lacks the key {}", key.name), format!("{OUTPUT} prints all of them")));
    }
    let cloud = CloudSettings::from(|variable| match KEYS.iter().find(|key| key.variable == Some(variable)) {
        Some(key) => get(key),
        None => (variable == "TIMELAKE_NAME").then(|| name.to_string()),
    });
    let cloud = cloud.map_err(|error| {
        let key = KEYS.iter().find(|key| key.variable.is_some() && key.variable == error.place.option.as_deref());
        let (variable, key) = key.map_or(("", ""), |key| (key.variable.unwrap_or_default(), key.name));
        wrong(format!("{section}: {}", error.message.replace(variable, key)), error.hint.unwrap_or_default().replace(variable, key))
    })?;
    let named = |name: &str| KEYS.iter().find(|key| key.name == name).and_then(get);
    let state_machine_arn = named("state_machine_arn").unwrap_or_default();
    if !state_machine_arn.contains(":stateMachine:") {
        return Err(wrong(
            format!("{section}: state_machine_arn is {state_machine_arn}, which is no address of a state machine"),
            "arn:aws:states:REGION:ACCOUNT:stateMachine:NAME",
        ));
    }
    let endpoint_url = named("endpoint_url");
    if let Some(url) = endpoint_url.as_ref().filter(|url| !url.starts_with("http://") && !url.starts_with("https://")) {
        return Err(wrong(
            format!("{section}: endpoint_url is {url}, which is no address"),
            "https://HOST, or leave it out for AWS itself",
        ));
    }
    Ok(LakeSettings { cloud, state_machine_arn, region: named("region").unwrap_or_default(), endpoint_url })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANT: &str = r#"
[lakes.plant]
region = "eu-central-1"
ledger_table = "plant-ledger"
work_queue_url = "https://sqs/1/work"
land_close_queue_url = "https://sqs/1/land-close"
close_queue_url = "https://sqs/1/close"
refresh_queue_url = "https://sqs/1/refresh"
warehouse = "s3://plant-lake/warehouse/"
jobs = "s3://plant-lake/jobs"
state_machine_arn = "arn:aws:states:eu-central-1:1:stateMachine:plant-backfill"
"#;

    #[test]
    fn a_section_says_where_a_lake_is() {
        let lake = parse(PLANT, "plant").unwrap();
        assert_eq!((lake.region.as_str(), lake.endpoint_url), ("eu-central-1", None));
        assert_eq!(lake.cloud.writer_memory_mb, 1024);
        let CloudSettings { name, ledger_table, warehouse, jobs, queues, glue_database, .. } = lake.cloud;
        assert_eq!((name.as_str(), ledger_table.as_str(), warehouse.as_str()), ("plant", "plant-ledger", "s3://plant-lake/warehouse"));
        assert_eq!(
            (jobs.as_str(), queues.land_close.as_deref(), glue_database),
            ("s3://plant-lake/jobs", Some("https://sqs/1/land-close"), None)
        );
        let more =
            format!("{PLANT}endpoint_url = \"http://127.0.0.1:4566\"\nglue_database = \"iot\"\nwriter_memory_mb = 1769\n[lakes.other]\n");
        let lake = parse(&more, "plant").unwrap();
        assert_eq!(lake.cloud.writer_memory_bytes(), 1769 << 20);
        assert_eq!((lake.endpoint_url.as_deref(), lake.cloud.glue_database.as_deref()), (Some("http://127.0.0.1:4566"), Some("iot")));
    }

    #[test]
    fn an_error_names_the_key_and_what_was_meant() {
        let without = |key: &str| PLANT.lines().filter(|line| !line.starts_with(key)).map(|line| format!("{line}\n")).collect::<String>();
        for key in KEYS.iter().filter(|key| key.needed) {
            let error = parse(&without(key.name), "plant").unwrap_err();
            assert!(error.message.contains(&format!("lacks the key {}", key.name)), "{error}");
        }
        for (text, message, hint) in [
            (format!("{PLANT}werehouse = \"x\"\n"), "unknown key werehouse", "did you mean warehouse?"),
            (PLANT.replace("lakes.plant", "lakes.plnt"), "no section [lakes.plant]", "did you mean plnt?"),
            (PLANT.replace("lakes.plant", "lake.plant"), "lake is no known section", "did you mean lakes?"),
            (String::new(), "there is no section [lakes.NAME]", "timelake_toml"),
            (PLANT.replace("\"eu-central-1\"", "1"), "region of [lakes.plant] is no text", "region = "),
            (PLANT.replace("\"eu-central-1\"", "\" \""), "region of [lakes.plant] is no text", "region = "),
            (PLANT.replace("s3://plant-lake/jobs", "/jobs"), "[lakes.plant]: jobs", "s3://bucket/prefix"),
            (PLANT.replace("https://sqs/1/close", "close"), "close_queue_url is close", "close_queue_url: queue"),
            (PLANT.replace(":stateMachine:", ":machine:"), "state_machine_arn is arn", "stateMachine:NAME"),
            (format!("{PLANT}endpoint_url = \"localhost\"\n"), "endpoint_url is localhost", "https://HOST"),
            (format!("{PLANT}writer_memory_mb = \"1769\"\n"), "writer_memory_mb of [lakes.plant] is no whole number", "= 1769"),
            (
                format!("{PLANT}writer_memory_mb = 64\n"),
                "writer_memory_mb is 64, not a number of MiB from 128 on",
                "writer_memory_mb: memory",
            ),
        ] {
            let error = parse(&text, "plant").unwrap_err();
            let told = error.hint.clone().unwrap_or_default();
            assert!(error.message.contains(message) && told.contains(hint), "{error}: {told}");
            assert_eq!((error.exit_code(), error.reason), (2, Reason::InvalidOption));
        }
        let error = parse(&format!("{PLANT}x = \n"), "plant").unwrap_err();
        assert!(error.message.starts_with("this is no TOML") && error.place.line == Some(12), "{error:?}");
    }
}
