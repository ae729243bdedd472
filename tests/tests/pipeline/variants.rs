//! Many small inputs in one lake: each is loaded by the real command, or refused with the right error. What is wrong
//! with any of them is told together at the end, after both readers have seen the table.

use serde_json::{Value, json};
use timelake_tests::{Lab, Outcome, assert_same_rows, split_words};

pub struct Variants {
    pub lab: Lab,
    expected: Vec<Value>,
    wrong: Vec<String>,
}

/// A file of an input: name and content.
pub type Input<'a> = (&'a str, &'a [u8]);

impl Variants {
    pub fn new() -> Variants {
        let lab = Lab::new();
        let create = "table create iot.sensor --columns ts:timestamptz,device_id:string,value:double,note:string,count:long \
                      --time-column ts --series-key device_id --partition year(ts)";
        lab.timelake(&split_words(create)).success();
        Variants { lab, expected: vec![], wrong: vec![] }
    }

    /// Loads one file. The device is its name without ending unless `options` say otherwise, and `Time` and `Value`
    /// are read. `rows` are `[ts, value, note, count]`; `"device ts"` where the device is another.
    pub fn good(&mut self, file: &str, content: impl AsRef<[u8]>, options: &str, rows: Value) {
        self.good_files(&[(file, content.as_ref())], options, rows, json!({}));
    }

    /// The same with several files, and numbers of the manifest.
    pub fn good_files(&mut self, files: &[Input], options: &str, rows: Value, report: Value) {
        let outcome = self.run(files, options);
        self.expected.extend(rows.as_array().expect("rows").iter().map(|row| full_row(row, &device_of(files[0].0))));
        if outcome.code != Some(0) {
            return self.wrong.push(format!("{}: not loaded\n{outcome}", files[0].0));
        }
        let manifest = outcome.manifest();
        for (field, value) in report.as_object().expect("numbers") {
            if manifest[field] != *value {
                self.wrong.push(format!("{}: {field} is {} instead of {value}", files[0].0, manifest[field]));
            }
        }
    }

    /// Rows that something else put there.
    pub fn expect(&mut self, rows: Value) {
        self.expected.extend(rows.as_array().expect("rows").iter().map(|row| full_row(row, "")));
    }

    /// Refused: `fields` are those of the error object; a list holds all acceptable ones, `hint` words of the hint.
    pub fn bad(&mut self, file: &str, content: impl AsRef<[u8]>, options: &str, fields: Value) {
        self.bad_files(&[(file, content.as_ref())], options, fields);
    }

    pub fn bad_files(&mut self, files: &[Input], options: &str, fields: Value) {
        let outcome = self.run(files, options);
        if let Err(why) = judge(&outcome, &fields, files) {
            self.wrong.push(format!("{}: {why}\n{outcome}", files[0].0));
        }
    }

    /// Either loaded whole, or refused for one of these reasons; never anything between.
    pub fn either(&mut self, file: &str, content: impl AsRef<[u8]>, options: &str, rows: Value, reasons: &[&str]) {
        let files = [(file, content.as_ref())];
        let outcome = self.run(&files, options);
        if outcome.code == Some(0) {
            self.expected.extend(rows.as_array().expect("rows").iter().map(|row| full_row(row, &device_of(file))));
        } else if let Err(why) = judge(&outcome, &json!({"reason": reasons}), &files) {
            self.wrong.push(format!("{file}: {why}\n{outcome}"));
        }
    }

    fn run(&self, files: &[Input], options: &str) -> Outcome {
        let mut words = split_words("backfill iot.sensor --json");
        for (name, content) in files {
            let path = self.lab.path(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders of an input");
            std::fs::write(path, content).expect("an input");
            if !options.contains("--from") {
                words.extend(["--from".to_string(), name.to_string()]);
            }
        }
        if !options.contains("--map") {
            words.extend(["--map".into(), "ts=Time,value=Value,note=,count=".into()]);
        }
        if !options.contains("device_id=") {
            words.extend(["--set".into(), format!("device_id={}", device_of(files[0].0))]);
        }
        words.extend(split_words(options));
        self.lab.timelake(&words)
    }

    /// Both readers see the rows of all good inputs and nothing of the bad ones.
    #[track_caller]
    pub fn finish(self) {
        let all = self.wrong.join("\n----\n");
        assert!(self.wrong.is_empty(), "{} inputs went wrong:\n{all}", self.wrong.len());
        for engine in ["pyiceberg", "duckdb"] {
            assert_same_rows(&self.lab.rows(engine), &self.expected, engine);
        }
    }
}

/// The name of a file without its endings.
fn device_of(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split('.').next().unwrap_or(name).to_string()
}

fn full_row(row: &Value, device: &str) -> Value {
    let fields = row.as_array().expect("a row");
    let first = fields[0].as_str().expect("a time");
    let (device, ts) = first.rsplit_once(' ').unwrap_or((device, first));
    let ts = if ts.contains('.') { ts.to_string() } else { ts.replace('Z', ".000000Z") };
    let at = |index: usize| fields.get(index).cloned().unwrap_or(Value::Null);
    json!({"ts": ts, "device_id": device, "value": at(1), "note": at(2), "count": at(3)})
}

fn judge(outcome: &Outcome, fields: &Value, files: &[Input]) -> Result<(), String> {
    if matches!(outcome.code, Some(0) | None) {
        return Err("was not refused".into());
    }
    let object = outcome.json()["error"].clone();
    let error: timelake_model::Error = serde_json::from_value(object.clone()).map_err(|e| format!("{e} in {object}"))?;
    if outcome.code != Some(i32::from(error.exit_code())) {
        return Err(format!("exit code {:?} of {object}", outcome.code));
    }
    if object["hint"].as_str().is_none_or(str::is_empty) {
        return Err(format!("no hint in {object}"));
    }
    let mut expected = fields.as_object().expect("fields").clone();
    // What has a line has a file: this one, unless it is said.
    if expected.contains_key("line") && !expected.contains_key("file") {
        expected.insert("file".into(), json!(files[0].0));
    }
    for (field, value) in &expected {
        let found = &object[field];
        let right = match (field.as_str(), value) {
            ("hint" | "message", Value::String(words)) => found.as_str().is_some_and(|text| text.contains(words)),
            ("reason", Value::Array(any)) => any.contains(found),
            _ => found == value,
        };
        if !right {
            return Err(format!("{field} is {found} instead of {value}"));
        }
    }
    Ok(())
}
