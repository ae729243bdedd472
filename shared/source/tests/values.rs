//! Values against an independent judge: zones against Python's zoneinfo, numbers against its float and Decimal.

#[path = "values/numbers.rs"]
mod numbers;
#[path = "values/python.rs"]
mod python;
#[path = "values/zones.rs"]
mod zones;
