//! Runs thousands of seeds on two threads and reports the first failures with the command to reproduce them.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::driver::Outcome;
use super::{Scenario, Subject, World};

/// Reads a number from the environment.
fn from_env(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    Some(parsed.unwrap_or_else(|_| panic!("{name} is {text:?}, which is not a number")))
}

/// Runs one scenario to its end.
pub fn run_one<T: Subject>(scenario: Scenario, verbose: bool) -> Result<Outcome, String> {
    match catch_unwind(AssertUnwindSafe(|| World::<T>::new(scenario, verbose).run())) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

/// Runs `count` seeds, or `OPENMRC_SEEDS` seeds from `OPENMRC_FIRST_SEED` on, or only `OPENMRC_SEED`, with a trace.
/// Passes every outcome and its scenario to `judge`. Stops after ten failures, or after `OPENMRC_FAILURES`.
///
/// If a seed fails; the message lists the failed seeds, the errors and the command to reproduce them.
pub fn run_seeds<T: Subject>(
    test: &str,
    count: u64,
    generate: impl Fn(u64) -> Scenario + Sync,
    judge: impl Fn(&Scenario, &Outcome) -> Result<(), String> + Sync,
) {
    if let Some(seed) = from_env("OPENMRC_SEED") {
        let scenario = generate(seed);
        eprintln!("{scenario:#?}");
        let result = run_one::<T>(scenario.clone(), true).and_then(|outcome| {
            eprintln!("{outcome:#?}");
            judge(&scenario, &outcome)
        });
        result.unwrap_or_else(|text| panic!("seed {seed}: {text}"));
        return;
    }
    let count = from_env("OPENMRC_SEEDS").unwrap_or(count);
    let first = from_env("OPENMRC_FIRST_SEED").unwrap_or(0);
    let enough = from_env("OPENMRC_FAILURES").unwrap_or(10) as usize;
    let next = AtomicU64::new(first);
    let failures = Mutex::new(Vec::<(u64, String)>::new());
    let worker = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count || failures.lock().unwrap().len() >= enough {
                return;
            }
            let scenario = generate(seed);
            let result = run_one::<T>(scenario.clone(), false).and_then(|outcome| judge(&scenario, &outcome));
            if let Err(text) = result {
                failures.lock().unwrap().push((seed, text));
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(worker);
        scope.spawn(worker);
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    if let Some((seed, _)) = failures.first() {
        let list: Vec<_> = failures.iter().map(|(seed, text)| format!("  seed {seed}: {text}")).collect();
        panic!(
            "{} of the first {} seeds failed\n{}\nreplay with\n  OPENMRC_SEED={seed} cargo test -p openmrc-transport --test {test} -- --nocapture",
            failures.len(),
            next.into_inner().min(first + count) - first,
            list.join("\n"),
        );
    }
}
