//! What every store of objects does, whatever it is made of. `root`: a folder or prefix that is empty, without a slash
//! at the end; a store on whose objects others work may be shared.

use bytes::Bytes;
use std::sync::Arc;
use timelake_engine::ports::ObjectStore;
use timelake_model::{Kind, Reason};

/// Panics where the store breaks the contract.
pub async fn run(store: Arc<dyn ObjectStore>, root: &str) {
    puts(store.as_ref(), &format!("{root}/puts")).await;
    one_winner(&store, &format!("{root}/winner")).await;
    lists(store.as_ref(), &format!("{root}/lists")).await;
    pinned(store.as_ref(), &format!("{root}/pinned")).await;
    absent(store.as_ref(), &format!("{root}/absent")).await;
}

async fn puts(store: &dyn ObjectStore, root: &str) {
    let plan = format!("{root}/g1/plan.json");
    assert!(store.put_if_absent(&plan, Bytes::from_static(b"one")).await.unwrap());
    assert!(!store.put_if_absent(&plan, Bytes::from_static(b"two")).await.unwrap());
    assert_eq!(store.read(&plan).await.unwrap(), "one");
    store.put(&plan, Bytes::from_static(b"three")).await.unwrap();
    store.make_durable(std::slice::from_ref(&plan)).await.unwrap();
    assert_eq!(store.read(&plan).await.unwrap(), "three");
    let empty = format!("{root}/empty");
    store.put(&empty, Bytes::new()).await.unwrap();
    assert_eq!((store.read(&empty).await.unwrap().len(), store.stat(&empty).await.unwrap().size), (0, 0));
}

async fn one_winner(store: &Arc<dyn ObjectStore>, uri: &str) {
    let write = |n: u8| {
        let (store, uri) = (store.clone(), uri.to_string());
        tokio::spawn(async move { store.put_if_absent(&uri, Bytes::from(vec![n; 100_000])).await.unwrap() })
    };
    let mut won = Vec::new();
    for (n, task) in (0..8).map(|n| (n, write(n))).collect::<Vec<_>>() {
        if task.await.unwrap() {
            won.push(n);
        }
    }
    assert_eq!(won.len(), 1, "{won:?}");
    assert_eq!(store.read(uri).await.unwrap(), vec![won[0]; 100_000]);
}

async fn lists(store: &dyn ObjectStore, root: &str) {
    for name in ["a/z", "a-b/x", "a%2Fb", "ts_day=2024-01-01/ä +&.parquet", "c"] {
        store.put(&format!("{root}/{name}"), Bytes::from_static(b"x")).await.unwrap();
    }
    let listed = store.list(root).await.unwrap();
    let names: Vec<&str> = listed.iter().map(|o| &o.uri[root.len() + 1..]).collect();
    assert_eq!(names, ["a%2Fb", "a-b/x", "a/z", "c", "ts_day=2024-01-01/ä +&.parquet"]);
    for object in &listed {
        assert_eq!(store.stat(&object.uri).await.unwrap(), *object, "a listing says what a look says");
    }
    assert_eq!(store.list(&format!("{root}/a")).await.unwrap().len(), 1, "a folder, not the start of a name");
    assert_eq!(store.list(&format!("{root}/none")).await.unwrap(), []);
}

async fn pinned(store: &dyn ObjectStore, root: &str) {
    let source = format!("{root}/a.parquet");
    store.put(&source, Bytes::from_static(b"0123456789")).await.unwrap();
    let pinned = store.stat(&source).await.unwrap();
    assert_eq!((pinned.size, store.read_range(&pinned, 2..5).await.unwrap().as_ref()), (10, b"234".as_slice()));
    assert_eq!(store.read_range(&pinned, 0..10).await.unwrap(), "0123456789");
    assert_eq!(store.read_range(&pinned, 10..10).await.unwrap().len(), 0);
    assert_eq!(store.read_range(&pinned, 5..11).await.unwrap_err().kind, Kind::Internal);
    store.put(&source, Bytes::from_static(b"abcdefghij")).await.unwrap();
    let error = store.read_range(&pinned, 2..5).await.unwrap_err();
    assert_eq!((error.reason, error.place.file.as_deref()), (Reason::SourceChanged, Some(source.as_str())));
}

async fn absent(store: &dyn ObjectStore, uri: &str) {
    store.delete(uri).await.unwrap();
    for error in [store.stat(uri).await.unwrap_err(), store.read(uri).await.unwrap_err()] {
        assert_eq!((error.reason, error.place.file.as_deref()), (Reason::PathNotFound, Some(uri)));
    }
    store.put(uri, Bytes::from_static(b"x")).await.unwrap();
    store.delete(uri).await.unwrap();
    store.delete(uri).await.unwrap();
    assert!(store.put_if_absent(uri, Bytes::from_static(b"y")).await.unwrap(), "its name is free again");
}
