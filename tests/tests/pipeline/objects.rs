//! The object store on S3, against the emulator and a network that fails: the contract, and what retries must not do.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use timelake_aws::{S3Objects, Settings, WarehouseStorageFactory};
use timelake_engine::ports::ObjectStore;
use timelake_model::Reason;
use timelake_tests::{Asked, Emulator, Fault, Proxy};

const MIB: usize = 1 << 20;

/// A client in a hurry.
fn client(endpoint: String) -> S3Objects {
    S3Objects::with(Settings {
        endpoint: Some(endpoint),
        first_delay: Duration::from_millis(2),
        longest_delay: Duration::from_millis(50),
        answer_timeout: Duration::from_secs(20),
        pace_window: Duration::from_millis(500),
        ..Settings::default()
    })
}

fn bucket() -> Emulator {
    let emulator = Emulator::start();
    emulator.make_bucket("lab");
    emulator
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime")
}

fn noise(bytes: usize) -> Bytes {
    let mut state = 1_u64;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        })
        .collect()
}

/// Writes a file as the table's files are written: in pieces.
async fn write(objects: &S3Objects, uri: &str, bytes: &Bytes) -> Result<(), iceberg::Error> {
    let file_io = iceberg::io::FileIOBuilder::new(Arc::new(WarehouseStorageFactory::new(objects.clone()))).build();
    let mut writer = file_io.new_output(uri)?.writer().await?;
    for piece in bytes.chunks(3 * MIB) {
        writer.write(Bytes::copy_from_slice(piece)).await?;
    }
    writer.close().await
}

#[test]
fn s3_is_a_store_of_objects() {
    let emulator = bucket();
    let store = Arc::new(client(emulator.endpoint()));
    runtime().block_on(timelake_testkit::object_suite::run(store, "s3://lab/suite"));
}

#[test]
fn s3_is_one_also_when_every_third_answer_is_spoiled() {
    let emulator = bucket();
    let proxy = Proxy::start(emulator.port(), |asked| match asked.number % 9 {
        0 => Fault::Refused,
        3 => Fault::Failed,
        6 => Fault::Lost,
        _ => Fault::None,
    });
    let store = Arc::new(client(proxy.endpoint()));
    runtime().block_on(timelake_testkit::object_suite::run(store, "s3://lab/suite"));
    assert!(proxy.count(Fault::Refused) > 5 && proxy.count(Fault::Failed) > 5 && proxy.count(Fault::Lost) > 5);
}

#[test]
fn a_read_that_breaks_off_goes_on_where_it_was() {
    let emulator = bucket();
    let bytes = noise(6 * MIB);
    let gets = AtomicU64::new(0);
    // Half of what is left comes, six times in a row; then once nothing.
    let proxy = Proxy::start(emulator.port(), move |asked| match (asked.method.as_str(), gets.load(Ordering::Relaxed)) {
        ("GET", n) => {
            gets.store(n + 1, Ordering::Relaxed);
            if n < 6 { Fault::Cut } else { [Fault::Refused, Fault::None][usize::from(n > 6)] }
        }
        _ => Fault::None,
    });
    let objects = client(proxy.endpoint());
    runtime().block_on(async {
        objects.put("s3://lab/a", bytes.clone()).await.unwrap();
        assert!(objects.read("s3://lab/a").await.unwrap() == bytes);
        assert_eq!((proxy.count(Fault::Cut), proxy.count(Fault::Refused)), (6, 1));
        let pinned = objects.stat("s3://lab/a").await.unwrap();
        let range = 1_000_000..5_000_000;
        assert!(objects.read_range(&pinned, range.clone()).await.unwrap() == bytes[range.start as usize..range.end as usize]);
    });
}

#[test]
fn a_slow_answer_is_given_up_and_asked_for_again() {
    let emulator = bucket();
    let slow = AtomicBool::new(true);
    let proxy = Proxy::start(emulator.port(), move |asked| {
        let first = asked.method == "GET" && slow.swap(false, Ordering::Relaxed);
        if first { Fault::Slow } else { Fault::None }
    });
    let objects = client(proxy.endpoint());
    runtime().block_on(async {
        objects.put("s3://lab/a", noise(MIB)).await.unwrap();
        let start = Instant::now();
        assert!(objects.read("s3://lab/a").await.unwrap() == noise(MIB));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        assert_eq!(proxy.count(Fault::Slow), 1);
    });
}

#[test]
fn an_object_that_is_replaced_between_two_answers_is_never_mixed() {
    let emulator = bucket();
    let spoil = Arc::new(AtomicBool::new(false));
    let cut = spoil.clone();
    let proxy =
        Proxy::start(
            emulator.port(),
            move |asked| {
                if asked.method == "GET" && cut.swap(false, Ordering::Relaxed) { Fault::Cut } else { Fault::None }
            },
        );
    // Slow enough in between to be overtaken.
    let objects =
        S3Objects::with(Settings { endpoint: Some(proxy.endpoint()), first_delay: Duration::from_secs(2), ..Settings::default() });
    let direct = client(emulator.endpoint());
    runtime().block_on(async {
        direct.put("s3://lab/a", noise(MIB)).await.unwrap();
        let pinned = direct.stat("s3://lab/a").await.unwrap();
        spoil.store(true, Ordering::Relaxed);
        let reading = tokio::spawn(async move { objects.read_range(&pinned, 0..MIB as u64).await });
        while proxy.count(Fault::Cut) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        direct.put("s3://lab/a", Bytes::from(vec![7; MIB])).await.unwrap();
        let now = direct.stat("s3://lab/a").await.unwrap();
        let error = reading.await.unwrap().unwrap_err();
        assert_eq!(error.reason, Reason::SourceChanged);
        assert!(error.message.contains(&now.fingerprint), "{}", error.message);
    });
}

#[test]
fn files_in_parts_are_whole_whatever_answers_are_lost() {
    let emulator = bucket();
    let proxy = Proxy::start(emulator.port(), |asked: &Asked| {
        let completes = asked.method == "POST" && asked.path.contains("uploadId=");
        match asked.number % 4 {
            // The upload is completed, and nobody is told: the next try finds no such upload.
            0 if completes => Fault::Lost,
            1 if asked.method != "POST" => Fault::Lost,
            2 => Fault::Refused,
            _ => Fault::None,
        }
    });
    let objects = client(proxy.endpoint());
    runtime().block_on(async {
        for (n, bytes) in [0, 1, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 37 * MIB].into_iter().enumerate() {
            let (uri, bytes) = (format!("s3://lab/data/{n}"), noise(bytes));
            write(&objects, &uri, &bytes).await.unwrap();
            assert!(objects.read(&uri).await.unwrap() == bytes, "{n}");
        }
    });
    let listed = emulator.list("lab", "");
    assert_eq!(listed["objects"].as_object().unwrap().len(), 6, "{listed}");
    assert!(proxy.count(Fault::Lost) > 3 && proxy.count(Fault::Refused) > 3);
}

#[test]
fn an_upload_that_fails_leaves_nothing() {
    let emulator = bucket();
    let proxy = Proxy::start(emulator.port(), |asked| {
        if asked.method == "PUT" && asked.path.contains("partNumber=3") { Fault::Refused } else { Fault::None }
    });
    let objects = client(proxy.endpoint());
    runtime().block_on(async {
        let error = write(&objects, "s3://lab/data/a", &noise(30 * MIB)).await.unwrap_err();
        assert!(error.to_string().contains("SlowDown"), "{error}");
        assert!(objects.stat("s3://lab/data/a").await.is_err());
    });
    let listed = emulator.list("lab", "");
    assert_eq!((listed["objects"].as_object().unwrap().len(), listed["uploads"].as_array().unwrap().len()), (0, 0), "{listed}");
}

#[test]
fn an_endpoint_that_is_not_there_is_said_after_some_tries() {
    let objects = S3Objects::with(Settings {
        tries: 3,
        first_delay: Duration::from_millis(1),
        endpoint: Some("http://127.0.0.1:9".into()),
        ..Settings::default()
    });
    let error = runtime().block_on(objects.read("s3://lab/a")).unwrap_err();
    assert_eq!((error.reason, error.exit_code(), error.hint.is_some()), (Reason::StorageUnavailable, 5, true));
}
