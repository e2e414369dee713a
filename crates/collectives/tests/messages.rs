//! What ranks send on the way of an operation, as it is recorded, against the program that they execute.

mod common;

use common::{LONG, connect, devices, in_parallel, lent, lent_mut};
use openmrc_collectives::{Algorithm, Call, Communicator, DataType, Options, Rank, ReduceOp, Shape};

/// Every operation of `rank` with sizes that no number of ranks divides; some parts are empty, some longer than a slot.
fn shapes(rank: Rank, ranks: usize) -> Vec<Shape> {
    let counts: Vec<usize> = (0..ranks).map(|r| [5, 0, 70_001, 1][r % 4]).collect();
    let between = |from: usize, to: usize| [3, 700, 0, 66_001][(3 * from + to) % 4];
    let root = ranks / 2;
    let mut shapes: Vec<Shape> =
        [1, 1003, 300_007].into_iter().map(|count| Shape::AllReduce { count }).collect();
    shapes.extend([
        Shape::ReduceScatter { counts: counts.clone() },
        Shape::AllGather { counts },
        Shape::AllToAll {
            send: (0..ranks).map(|to| between(rank, to)).collect(),
            recv: (0..ranks).map(|from| between(from, rank)).collect(),
        },
        Shape::Broadcast { root, count: 100_003 },
        Shape::Reduce { root, count: 100_003 },
        Shape::Gather { root, count: 1003 },
        Shape::Scatter { root, count: 1003 },
        Shape::Barrier,
    ]);
    shapes
}

/// Lengths of the messages to each rank, in their order.
fn by_receiver(ranks: usize, messages: impl Iterator<Item = (Rank, u64)>) -> Vec<Vec<u64>> {
    let mut lens = vec![Vec::new(); ranks];
    messages.for_each(|(to, len)| lens[to].push(len));
    lens
}

fn sends_what_its_program_says(comm: &Communicator, shape: &Shape, algorithm: Algorithm) {
    let (rank, ranks, dtype) = (comm.rank(), comm.size(), DataType::Float32);
    let (ins, outs) = shape.sizes(rank, ranks);
    let (input, mut output) = (vec![1f32; ins], vec![0f32; outs]);
    let call = Call {
        shape: shape.clone(),
        dtype,
        op: ReduceOp::Sum,
        factor: None,
        input: lent(&input),
        output: Some(lent_mut(&mut output)),
        algorithm: Some(algorithm),
        timeout: LONG,
    };
    let work = comm.call(call).unwrap();
    assert!(work.wait(Some(LONG)), "{} hangs", work.name());
    work.result().unwrap().unwrap();
    let records = comm.take_records();
    let [record] = records.as_slice() else { panic!("{records:?}") };
    let program = shape.program(algorithm, rank, ranks, dtype.size());
    let sent = by_receiver(ranks, record.messages.iter().copied());
    let planned = by_receiver(ranks, program.sends.iter().map(|send| (send.to, send.from.len as u64)));
    assert_eq!(sent, planned, "{shape:?} by {algorithm:?}, rank {rank}");
}

#[test]
fn every_rank_sends_the_messages_of_its_program_in_their_order() {
    for ranks in 2..=9 {
        for shared_memory in [true, false] {
            let devices = devices(ranks, 1);
            let comms = connect(&devices, &Options { shared_memory, ..Options::default() });
            in_parallel(&comms, |comm| {
                comm.record_messages(true);
                for shape in shapes(comm.rank(), ranks) {
                    for algorithm in Algorithm::ALL.into_iter().filter(|&each| shape.allows(each, ranks)) {
                        sends_what_its_program_says(comm, &shape, algorithm);
                    }
                }
            });
        }
    }
}
