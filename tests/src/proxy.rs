//! A proxy before the emulator that spoils answers as networks and services do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    None,
    /// Not carried out: answered with 503 SlowDown.
    Refused,
    /// Carried out, but the connection breaks before the answer.
    Lost,
    /// The answer breaks off in the middle of its body.
    Cut,
    /// The body comes, but so slowly that nobody should wait for it.
    Slow,
    /// A 500 in place of the answer; the request was carried out.
    Failed,
    /// Not carried out: answered with this status and JSON.
    Answered(u16, &'static str),
}

/// A request as the plan of faults sees it.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Of this proxy, from 0.
    pub number: u64,
    pub method: String,
    /// With the query.
    pub path: String,
    /// Of services that name it in a header: `DynamoDB_20120810.GetItem`.
    pub operation: String,
}

type Plan = dyn Fn(&Asked) -> Fault + Send + Sync;

pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    upstream: u16,
    plan: Box<Plan>,
    requests: AtomicU64,
    closed: AtomicBool,
    done: Mutex<Vec<(Asked, Fault)>>,
}

impl Proxy {
    pub fn start(upstream: u16, plan: impl Fn(&Asked) -> Fault + Send + Sync + 'static) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            upstream,
            plan: Box::new(plan),
            requests: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            done: Mutex::default(),
        });
        let accepting = {
            let shared = shared.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    if shared.closed.load(Ordering::Relaxed) {
                        return;
                    }
                    let shared = shared.clone();
                    // A client that goes away is no failure of the proxy.
                    std::thread::spawn(move || drop(serve(stream, &shared)));
                }
            })
        };
        Proxy { port, shared, accepting: Some(accepting) }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
    /// All requests so far and what happened to them.
    pub fn done(&self) -> Vec<(Asked, Fault)> {
        self.shared.done.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    pub fn count(&self, fault: Fault) -> usize {
        self.done().iter().filter(|(_, done)| *done == fault).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port)); // wakes the listener
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

/// One request, then the connection is closed.
fn serve(mut client: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut head = Vec::new();
    let (mut length, mut expects, mut operation) = (0, false, String::new());
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if lower.starts_with("x-amz-target:") {
            operation = line.split_once(':').map_or("", |(_, value)| value).trim().to_string();
        }
        assert!(!lower.starts_with("transfer-encoding:"), "the proxy knows bodies of a stated length only");
        expects |= lower.starts_with("expect: 100-continue");
        if line == "\r\n" {
            break;
        }
        if !lower.starts_with("connection:") && !lower.starts_with("expect:") {
            head.push(line);
        }
    }
    if expects {
        client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut words = head.first().map_or("", String::as_str).split_whitespace().map(str::to_string);
    let number = shared.requests.fetch_add(1, Ordering::Relaxed);
    let asked = Asked { number, method: words.next().unwrap_or_default(), path: words.next().unwrap_or_default(), operation };
    let fault = (shared.plan)(&asked);
    let answer = match fault {
        Fault::Refused | Fault::Answered(..) => None,
        _ => Some(forward(shared.upstream, &head, &body)?),
    };
    shared.done.lock().unwrap_or_else(PoisonError::into_inner).push((asked, fault));
    let xml = |status: &str, code: &str| {
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>spoiled on purpose</Message></Error>");
        format!("HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    };
    match (fault, answer) {
        (Fault::None, Some(answer)) => client.write_all(&answer),
        (Fault::Answered(status, json), _) => {
            let length = json.len();
            let head = format!("HTTP/1.1 {status} Spoiled\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {length}");
            client.write_all(format!("{head}\r\nConnection: close\r\n\r\n{json}").as_bytes())
        }
        (Fault::Refused, _) | (_, None) => client.write_all(xml("503 Slow Down", "SlowDown").as_bytes()),
        (Fault::Failed, _) => client.write_all(xml("500 Internal Server Error", "InternalError").as_bytes()),
        (Fault::Lost, _) => Ok(()),
        (Fault::Cut, Some(answer)) => {
            let start = body_start(&answer);
            client.write_all(&answer[..start + (answer.len() - start) / 2])
        }
        (Fault::Slow, Some(answer)) => {
            let start = body_start(&answer);
            client.write_all(&answer[..start])?;
            for byte in answer[start..].chunks(1) {
                client.write_all(byte)?;
                std::thread::sleep(Duration::from_millis(100));
                if shared.closed.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(())
        }
    }
}

fn body_start(answer: &[u8]) -> usize {
    answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").map_or(answer.len(), |at| at + 4)
}

/// The whole answer, which says that the connection is closed after it.
fn forward(port: u16, head: &[String], body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut upstream = TcpStream::connect(("127.0.0.1", port))?;
    let mut request = head.concat().into_bytes();
    request.extend_from_slice(b"Connection: close\r\n\r\n");
    request.extend_from_slice(body);
    upstream.write_all(&request)?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer)?;
    Ok(answer)
}
