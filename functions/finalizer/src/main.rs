//! The finalizer as a Lambda function.

/// As in the command: writing makes and drops many buffers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    timelake_functions::serve("finalizer", async |ports, event, stop| Ok(timelake_finalizer::handle(ports, event, stop).await)).await
}
