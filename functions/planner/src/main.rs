//! The planner as a Lambda function.

/// As in the command: writing makes and drops many buffers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    timelake_functions::serve("planner", async |ports, event, stop| timelake_planner::handle(ports, event, stop).await).await
}
