//! Options with a closed list of words: the words stand in `--help`, the values are the model's enums.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::Shell;
use serde::de::DeserializeOwned;

/// Reads one of `words`; each is the serialised name of a value of `T`.
pub fn choice<T: DeserializeOwned + Clone + Send + Sync + 'static>(words: &'static [&'static str]) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value::<T>(serde_json::Value::String(word)))
}

/// A shell whose completions we can make and have tried.
pub fn shell() -> impl TypedValueParser<Value = Shell> {
    PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|word| word.parse::<Shell>())
}
