//! A request in a file: what `--save-request` writes and `--request` reads. The JSON is the model's `BackfillRequest`; only
//! the number of threads is left out unless it was asked for, because it is that of the machine.

use crate::input_file;
use crate::resolve::MIN_MEMORY_BYTES;
use serde::Serialize;
use std::path::Path;
use timelake_model::request::{RowOptions, RunOptions};
use timelake_model::similar::names_hint;
use timelake_model::{BackfillRequest, Error, Kind, Reason, Result};

const OPTION: &str = "--request";
/// No request comes near it; a wrong file is not read to its end.
const LONGEST_FILE_BYTES: u64 = 1 << 20;

/// A saved request, or none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Saved {
    pub table: Option<String>,
    pub rows: RowOptions,
    pub run: RunOptions,
    pub threads: Option<usize>,
}

pub fn read(file: &Path) -> Result<Saved> {
    let text = input_file::read(file, LONGEST_FILE_BYTES, "request", "--save-request FILE writes one")?;
    parse(&text).map_err(|error| {
        error.at(|p| {
            p.file = Some(file.display().to_string());
            p.option = Some(OPTION.into());
        })
    })
}

fn parse(text: &str) -> Result<Saved> {
    let request: BackfillRequest = serde_json::from_str(text).map_err(|e| unfit(&e))?;
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| unfit(&e))?;
    if request.run.memory_bytes < MIN_MEMORY_BYTES {
        let message = format!("memory_bytes {} is too small", request.run.memory_bytes);
        return Err(Error::invalid(Reason::InvalidOption, message)
            .hint(format!("at least {MIN_MEMORY_BYTES}"))
            .at(|p| p.limit = Some(MIN_MEMORY_BYTES)));
    }
    let threads = value.pointer("/run/threads").map(|_| request.run.threads);
    Ok(Saved { table: Some(request.table), rows: request.rows, run: request.run, threads })
}

/// What serde refuses, with the field that was probably meant.
fn unfit(error: &serde_json::Error) -> Error {
    let (line, text) = (error.line() as u64, error.to_string());
    let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
    let mut quoted = message.split('`').skip(1).step_by(2);
    let hint = match quoted.next().filter(|_| message.starts_with("unknown ")) {
        Some(wrong) => names_hint(wrong, "known", &quoted.collect::<Vec<_>>()),
        None => "--save-request FILE writes one that fits".into(),
    };
    Error::new(Kind::Invalid, Reason::InvalidOption, format!("this is not a request: {message}")).hint(hint).at(|p| p.line = Some(line))
}

/// The request as `--request` reads it.
pub fn text(request: &BackfillRequest, threads_asked: bool) -> Result<String> {
    #[derive(Serialize)]
    struct File<'a> {
        table: &'a str,
        rows: &'a RowOptions,
        run: serde_json::Value,
    }
    let failed = |e: serde_json::Error| Error::internal(format!("the request cannot be written as JSON: {e}"));
    let BackfillRequest { table, rows, run } = request;
    let mut run = serde_json::to_value(run).map_err(failed)?;
    if let Some(options) = run.as_object_mut().filter(|_| !threads_asked) {
        options.remove("threads");
    }
    Ok(serde_json::to_string_pretty(&File { table, rows, run }).map_err(failed)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> BackfillRequest {
        let rows = RowOptions { from: vec!["a b".into()], tz: Some("Europe/Berlin".into()), ..RowOptions::default() };
        BackfillRequest { table: "iot.sensor".into(), rows, run: RunOptions { threads: 7, keep_runs: true, ..RunOptions::default() } }
    }

    #[test]
    fn what_is_saved_comes_back() {
        for (asked, threads) in [(true, Some(7)), (false, None)] {
            let saved = parse(&text(&request(), asked).unwrap()).unwrap();
            assert_eq!((saved.table.as_deref(), saved.threads, saved.run.keep_runs), (Some("iot.sensor"), threads, true));
            assert_eq!(saved.rows, request().rows);
        }
        insta::assert_snapshot!("saved_request", text(&request(), false).unwrap());
    }

    #[test]
    fn a_request_may_say_little() {
        let saved = parse(r#"{"table": "iot.sensor", "rows": {"from": ["a"]}}"#).unwrap();
        assert_eq!((saved.rows.from.len(), saved.run, saved.threads), (1, RunOptions::default(), None));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, message, hint, line) in [
            ("{\"table\": \"a.b\",\n \"rows\": {\"form\": []}}", "unknown field `form`", "did you mean from?", 2),
            ("{\"table\": \"a.b\", \"row\": {}}", "unknown field `row`", "did you mean rows?", 1),
            ("{\"table\": \"a.b\", \"rows\": {\"text\": {\"encodng\": \"x\"}}}", "`encodng`", "did you mean encoding?", 1),
            ("{\"table\": \"a.b\", \"rows\": {}, \"run\": {\"thread\": 1}}", "`thread`", "did you mean threads?", 1),
            ("{\"table\": \"a.b\", \"rows\": {\"mode\": \"merg\"}}", "unknown variant `merg`", "did you mean merge?", 1),
            ("{\"rows\": {}}", "missing field `table`", "--save-request", 1),
            ("{\"table\": \"a.b\", \"rows\": {\"from\": \"a\"}}", "expected a sequence", "--save-request", 1),
            ("not json", "expected ident", "--save-request", 1),
            ("", "EOF", "--save-request", 1),
            ("{\"table\": \"a.b\", \"rows\": {}, \"run\": {\"memory_bytes\": 5}}", "memory_bytes 5", "at least", 0),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!((error.exit_code(), error.place.line.unwrap_or(0)), (2, line), "{error:?}");
            assert!(error.message.contains(message) && error.hint.as_ref().unwrap().contains(hint), "{error:?}");
        }
    }
}
