//! The `timelake` command.

mod args;
mod choices;
mod command_text;
mod config;
mod dry_run;
mod dry_run_text;
mod error_text;
#[cfg(feature = "failpoints")]
mod failpoints;
mod html;
mod input_file;
mod job_text;
mod lake;
mod lake_text;
mod load;
mod manual;
mod output;
mod output_file;
mod plan_file;
mod progress;
mod report;
mod request_file;
mod resolve;
mod run;
mod signals;
mod table_text;

// Writing is dominated by short-lived buffers of many sizes on a few threads, where the system's allocator is slow.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    #[cfg(feature = "failpoints")]
    failpoints::install();
    run::main(std::env::args_os().collect())
}

#[cfg(test)]
mod tests;
