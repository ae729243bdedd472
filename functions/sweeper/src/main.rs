//! The sweeper as a Lambda function.

/// As in the command: writing makes and drops many buffers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    timelake_functions::serve("sweeper", async |ports, event, stop| timelake_sweeper::handle(ports, event, stop).await).await
}
