//! Rules of the project as tests: which crate may know which, under which licences the dependencies come, and what
//! must not stand in the code.

#[path = "architecture/dependencies.rs"]
mod dependencies;
#[path = "architecture/tidy.rs"]
mod tidy;
