//! Black-box tests of the whole road: the real command, a lake in a folder, independent readers.

mod cases;
mod contract;
mod hostile;
mod landing;
mod layout;
mod mistakes;
mod model;
mod modes;
mod moved_main;
mod readers;
mod repeat;
mod samples;
mod sensors;
mod splitting;
mod text;
mod text_keys;
mod text_samples;
mod text_times;
mod values;
mod variants;
