//! `s3://bucket/key`: taken as it is, nothing is decoded.

use timelake_model::{Error, Reason, Result};

const PREFIX: &str = "s3://";

/// An object, or (with any key, also none) a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub uri: String,
    pub bucket: String,
    pub key: String,
}

pub(crate) fn is_s3(uri: &str) -> bool {
    uri.starts_with(PREFIX)
}

impl Address {
    /// Of an object or a prefix.
    pub fn parse(uri: &str) -> Result<Address> {
        let rest = uri.strip_prefix(PREFIX);
        let (bucket, key) = rest.map(|rest| rest.split_once('/').unwrap_or((rest, ""))).unwrap_or_default();
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(is_name) {
            return Err(Error::invalid(Reason::PathNotFound, format!("{uri} names no bucket"))
                .hint("write s3://bucket/key; the bucket's name is taken as it is, patterns are for keys")
                .at(|place| place.file = Some(uri.into())));
        }
        Ok(Address { uri: uri.into(), bucket: bucket.into(), key: key.into() })
    }

    /// Of an object: with a key.
    pub fn of_object(uri: &str) -> Result<Address> {
        let address = Address::parse(uri)?;
        if address.key.is_empty() || address.key.ends_with('/') {
            return Err(Error::not_found(Reason::PathNotFound, format!("{uri} names no object"))
                .hint("write s3://bucket/key")
                .at(|place| place.file = Some(uri.into())));
        }
        Ok(address)
    }

    /// The URI of a key of the same bucket.
    pub fn with_key(&self, key: &str) -> String {
        format!("{PREFIX}{}/{key}", self.bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_bucket_and_key_as_they_stand() {
        let address = Address::of_object("s3://plant-a/x/ts_day=2024-01-01/a%20b+c.parquet").unwrap();
        assert_eq!((address.bucket.as_str(), address.key.as_str()), ("plant-a", "x/ts_day=2024-01-01/a%20b+c.parquet"));
        assert_eq!(address.with_key("k"), "s3://plant-a/k");
        assert_eq!(Address::parse("s3://b//k").unwrap().key, "/k");
        for wrong in ["s3://", "s3:///k", "s3://b*/k", "/s3", "http://b/k", "s3://user@b/k"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Address::of_object("s3://b/k/").is_err() && Address::of_object("s3://b").is_err());
    }
}
