//! The one long-lived Python process with the independent readers (`tests/python/reader.py`).

use crate::workspace;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub struct Reader {
    /// Kept so that the process lives as long as this one; it ends when its stdin closes.
    _child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

static SHARED: OnceLock<Mutex<Reader>> = OnceLock::new();

/// The Python that has what `tests/python/requirements.txt` names.
pub(crate) fn python() -> PathBuf {
    let python = std::env::var_os("TIMELAKE_PYTHON").map_or_else(|| workspace().join(".venv/bin/python"), PathBuf::from);
    assert!(
        python.is_file(),
        "no Python with the readers at {}: run `make venv`, or set TIMELAKE_PYTHON to one that has tests/python/requirements.txt",
        python.display()
    );
    python
}

impl Reader {
    /// The reader of this test process.
    pub fn shared() -> MutexGuard<'static, Reader> {
        SHARED.get_or_init(|| Mutex::new(Reader::start())).lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start() -> Reader {
        let python = python();
        let script = workspace().join("tests/python/reader.py");
        let mut child = Command::new(&python)
            .arg(&script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("start {} {}: {e}", python.display(), script.display()));
        let requests = child.stdin.take().expect("the reader's stdin");
        let answers = BufReader::new(child.stdout.take().expect("the reader's stdout"));
        Reader { _child: child, requests, answers }
    }

    /// The answer to a request, or an error text.
    pub fn try_ask(&mut self, request: &Value) -> Result<Value, String> {
        writeln!(self.requests, "{request}").and_then(|()| self.requests.flush()).map_err(|e| format!("the reader is gone: {e}"))?;
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).map_err(|e| format!("the reader is gone: {e}"))?;
        if read == 0 {
            return Err("the reader ended; its stderr says why".into());
        }
        let mut answer: Value = serde_json::from_str(&line).map_err(|e| format!("the reader answered {line}: {e}"))?;
        match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(format!("{error}\n{}", answer["trace"].as_str().unwrap_or_default())),
            None => Ok(answer["ok"].take()),
        }
    }
    #[track_caller]
    pub fn ask(&mut self, request: &Value) -> Value {
        self.try_ask(request).unwrap_or_else(|e| panic!("the reader cannot answer {request}: {e}"))
    }
}
