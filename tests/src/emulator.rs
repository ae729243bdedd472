//! An emulator of AWS of a test's own, on a free port of this machine; it ends with the test.

use crate::reader::{Reader, python};
use crate::workspace;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
const STARTS: u32 = 5;

pub struct Emulator {
    /// Ends when its stdin closes, at the latest.
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Default for Emulator {
    fn default() -> Self {
        Emulator::start()
    }
}

impl Emulator {
    pub fn start() -> Emulator {
        Emulator::start_with(false)
    }
    /// One that knows who may do what: nobody but `test`.
    pub fn start_guarded() -> Emulator {
        Emulator::start_with(true)
    }

    fn start_with(guarded: bool) -> Emulator {
        // Somebody else may take the port between here and there.
        (0..STARTS).find_map(|_| Emulator::try_start(guarded)).expect("the S3 emulator starts")
    }

    fn try_start(guarded: bool) -> Option<Emulator> {
        let folder = tempfile::Builder::new().prefix("timelake-s3-").tempdir().expect("a temporary folder");
        let port = free_port();
        let child = Command::new(python())
            .arg(workspace().join("tests/python/emulator.py"))
            .env_clear()
            .envs([("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("BIND_HOST", "127.0.0.1"), ("LOG_LEVEL", "ERROR")])
            .env("AUTH", guarded.to_string())
            .env("GATEWAY_PORT", port.to_string())
            .env("HOME", folder.path())
            .env("TMPDIR", folder.path())
            .env("S3_DATA_DIR", folder.path().join("s3"))
            .env("STATE_DIR", folder.path().join("state"))
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start the S3 emulator");
        let mut emulator = Emulator { child, port, _folder: folder };
        let start = Instant::now();
        while start.elapsed() < START_LIMIT {
            if is_healthy(port) {
                return Some(emulator);
            }
            if !matches!(emulator.child.try_wait(), Ok(None)) {
                return None;
            }
            std::thread::sleep(POLL);
        }
        None
    }

    pub fn port(&self) -> u16 {
        self.port
    }
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn ask(&self, mut request: Value) -> Value {
        request["s3"] = json!(self.endpoint());
        Reader::shared().ask(&request)
    }
    pub fn make_bucket(&self, bucket: &str) {
        self.ask(json!({"command": "s3_bucket", "bucket": bucket}));
    }
    /// Puts a file there; gives its etag.
    pub fn put_file(&self, bucket: &str, key: &str, file: &Path) -> String {
        text(self.ask(json!({"command": "s3_put", "bucket": bucket, "key": key, "file": file})))
    }
    pub fn put_text(&self, bucket: &str, key: &str, content: &str) -> String {
        text(self.ask(json!({"command": "s3_put", "bucket": bucket, "key": key, "text": content})))
    }
    pub fn delete(&self, bucket: &str, key: &str) {
        self.ask(json!({"command": "s3_delete", "bucket": bucket, "key": key}));
    }
    /// `objects` (size by key), and the keys of unfinished `uploads`.
    pub fn list(&self, bucket: &str, prefix: &str) -> Value {
        self.ask(json!({"command": "s3_list", "bucket": bucket, "prefix": prefix}))
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(value: Value) -> String {
    value.as_str().expect("an etag").to_string()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

fn is_healthy(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let _ = stream.set_read_timeout(Some(START_LIMIT));
    let request = b"GET /_localstack/health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    stream.write_all(request).is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
}
