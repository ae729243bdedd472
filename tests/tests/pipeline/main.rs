//! Black-box tests of the whole road: the real command, a lake in a folder, independent readers.

mod boundaries;
mod cases;
mod contract;
mod gc;
mod hostile;
mod kills;
mod landing;
mod layout;
mod live;
mod minutes;
mod mistakes;
mod model;
mod modes;
mod moved_main;
mod processes;
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
