//! Behaviour that a foreign peer sees, from single packets (docs/spec/wire.md, docs/spec/transport.md,
//! docs/spec/paths.md, docs/spec/congestion.md). Each test feeds one queue pair literal packets and looks at what it
//! sends; no second queue pair takes part.

#[path = "conformance/bench.rs"]
mod bench;
#[path = "conformance/feedback.rs"]
mod feedback;
#[path = "conformance/life.rs"]
mod life;
#[path = "conformance/messages.rs"]
mod messages;
#[path = "conformance/paths.rs"]
mod paths;
#[path = "conformance/requestor.rs"]
mod requestor;
#[path = "conformance/requestor_loss.rs"]
mod requestor_loss;
#[path = "conformance/requestor_timers.rs"]
mod requestor_timers;
#[path = "conformance/responder.rs"]
mod responder;
