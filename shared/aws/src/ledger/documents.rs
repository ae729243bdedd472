//! Texts of any length beside items of at most a kilobyte: a short one is an attribute, a long one an object in the
//! job's folder that the attribute `<name>_object` names. The object is there before the item says so.

use crate::ledger::items::{damaged, optional_string};
use crate::ledger::table::{Item, text};
use bytes::Bytes;
use std::sync::Arc;
use timelake_engine::ports::ObjectStore;
use timelake_model::ledger::RoundKey;
use timelake_model::{Kind, Result};

/// Longest text in an item. What DynamoDB takes for a write grows with each kilobyte of its item.
const INLINE_BYTES: usize = 600;

#[derive(Clone)]
pub(crate) struct Documents {
    objects: Arc<dyn ObjectStore>,
    /// Folder of the jobs.
    root: String,
}

impl Documents {
    pub fn new(objects: Arc<dyn ObjectStore>, root: &str) -> Documents {
        Documents { objects, root: root.trim_end_matches('/').to_string() }
    }

    /// The attribute that holds a text of a round. `object`: a name for it, of which there is one for each content.
    pub async fn keep(&self, name: &str, content: String, round: &RoundKey, object: &str) -> Result<(String, String)> {
        if content.len() <= INLINE_BYTES {
            return Ok((name.to_string(), content));
        }
        let RoundKey { job, generation, phase, group, round } = round;
        let uri = format!("{}/{job}/g{generation}/ledger/{phase}-{group}-r{round}/{object}", self.root);
        self.objects.put(&uri, Bytes::from(content)).await?;
        self.objects.make_durable(std::slice::from_ref(&uri)).await?;
        Ok((pointer(name), uri))
    }

    /// The text of an attribute, wherever it is.
    pub async fn text(&self, item: &Item, name: &str) -> Result<Option<String>> {
        if let Some(text) = optional_string(item, name)? {
            return Ok(Some(text));
        }
        let Some(uri) = optional_string(item, &pointer(name))? else { return Ok(None) };
        let bytes = self.objects.read(&uri).await.map_err(|e| match e.kind {
            Kind::NotFound => damaged(format!("it names {uri}, which is gone")).at(|place| place.file = Some(uri.clone())),
            _ => e,
        })?;
        let text = String::from_utf8(bytes.to_vec());
        text.map(Some).map_err(|_| damaged(format!("{uri} is no text")).at(|place| place.file = Some(uri.clone())))
    }
}

fn pointer(name: &str) -> String {
    format!("{name}_object")
}

/// Puts an attribute into an item.
pub(crate) fn with(mut item: Item, (name, content): (String, String)) -> Item {
    item.insert(name, text(content));
    item
}
